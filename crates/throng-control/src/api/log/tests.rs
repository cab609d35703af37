//! Reads of a log that has to be fetched.

use std::sync::Arc;

use throng_core::conformance::{Lateness, OpenReading, TestJournal};
use throng_core::{Epoch, Fetched, MemoryEngine, Rules, Ticket};
use tokio::runtime::Builder;

use super::*;

/// Channels over a journal whose fetches the test answers.
struct Elsewhere {
    channels: Channels,
    journal: Arc<TestJournal>,
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let rules = Arc::new(Rules::default().with_journal());
        let memory = Arc::new(MemoryEngine::new(Epoch::numbered(1), rules, vec![], 1));
        let lateness = Lateness { of_readings: true, ..Lateness::default() };
        let journal = TestJournal::new(Arc::clone(&memory), usize::MAX).with_lateness(lateness);
        let journal = Arc::new(journal);
        Elsewhere { channels: Channels::new(memory, vec![Arc::clone(&journal) as _]), journal }
    }

    /// Waits for a fetch.
    fn next_fetch(&self) -> (ChannelName, Reading, Ticket<Fetched>) {
        loop {
            if let Some(OpenReading::Fetch(channel, reading, ticket)) =
                self.journal.take_readings().pop()
            {
                return (channel, reading, ticket);
            }
            std::thread::yield_now();
        }
    }
}

/// Reads a page while `meanwhile` runs on another thread. Returns it, and what is left of
/// `wait_left`.
fn read_while(
    engine: &Elsewhere,
    mut wait_left: Duration,
    meanwhile: impl FnOnce() + Send,
) -> (Result<History, ErrorResponse>, Duration) {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let channel = ChannelName::channel("news");
    let reading = read(&engine.channels, &channel, HistoryQuery::Newest, 9, &mut wait_left);
    let history = std::thread::scope(|scope| {
        scope.spawn(meanwhile);
        runtime.block_on(reading)
    });
    (history, wait_left)
}

#[test]
fn a_page_is_read_once_it_is_fetched_and_released_then() {
    let (engine, hour) = (Elsewhere::new(), Duration::from_secs(3600));
    let (history, left) = read_while(&engine, hour, || {
        let (channel, reading, ticket) = engine.next_fetch();
        ticket.answer(Fetched::held_by(engine.journal.read(0, &channel, reading)));
    });
    assert!(history.is_ok_and(|history| history.messages.is_empty()));
    assert!(left < hour && engine.journal.held() == 0);
}

#[test]
fn a_page_that_is_not_fetched_is_refused() {
    let engine = Elsewhere::new();
    let (history, _) = read_while(&engine, Duration::from_secs(3600), || drop(engine.next_fetch()));
    assert_eq!(history.err(), Some(ErrorResponse::unanswered()), "it cannot be fetched");
    let (history, left) = read_while(&engine, Duration::from_millis(1), || {});
    assert_eq!(history.err(), Some(ErrorResponse::unanswered()), "it takes too long");
    assert_eq!(left, Duration::ZERO);
}
