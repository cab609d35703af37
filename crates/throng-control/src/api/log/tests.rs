//! Reads of a log that has to be fetched.

use std::sync::{Arc, Mutex};

use throng_core::{
    Answer, Audience, ChannelId, EngineMetrics, Epoch, Fetched, Follow, Followed, Kind, ListPlace,
    ListStep, MemoryEngine, Notification, Outcome, PresenceCache, Publication, PublishError, Rules,
    Ticket, VolatilePublication, Watermark, WorkerId,
};
use tokio::runtime::Builder;

use super::*;

/// An engine whose fetches the test answers.
struct Elsewhere {
    engine: MemoryEngine,
    fetches: Mutex<Vec<Ticket<Fetched>>>,
    hold: Arc<()>,
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let engine = MemoryEngine::new(Epoch::numbered(1), Arc::new(Rules::default()), vec![], 1);
        Elsewhere { engine, fetches: Mutex::default(), hold: Arc::default() }
    }

    fn is_held(&self) -> bool {
        Arc::strong_count(&self.hold) > 1
    }
}

impl Engine for Elsewhere {
    fn watermark(&self) -> Watermark {
        self.engine.watermark()
    }

    fn fetch(
        &self,
        _: u64,
        _: &ChannelName,
        _: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let (ticket, answer) = later.ticket();
        self.fetches.lock().unwrap().push(ticket);
        answer
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        assert!(self.is_held(), "the part of the log is kept readable");
        self.engine.history(now_ms, channel, query, limit)
    }

    // Reading a page calls none of these.

    fn publish(&self, _: u64, _: Publication, _: Later<'_, Outcome>) -> Answer<Outcome> {
        unimplemented!()
    }

    fn publish_volatile(&self, _: u64, _: VolatilePublication) -> Result<u64, PublishError> {
        unimplemented!()
    }

    fn follow(&self, _: u64, _: Follow<'_>) -> Followed {
        unimplemented!()
    }

    fn unfollow(&self, _: u64, _: ChannelId, _: WorkerId) {
        unimplemented!()
    }

    fn set_subscribers(&self, _: u64, _: ChannelId, _: WorkerId, _: u32) {
        unimplemented!()
    }

    fn audience(&self, _: &ChannelName) -> Audience {
        unimplemented!()
    }

    fn name(&self, _: ChannelId) -> Option<ChannelName> {
        unimplemented!()
    }

    fn names(&self, _: &mut [ChannelId], _: &mut dyn FnMut(&ChannelName)) {
        unimplemented!()
    }

    fn list(&self, _: u64, _: Kind, _: Option<ListPlace>) -> ListStep {
        unimplemented!()
    }

    fn post(&self, _: WorkerId, _: Notification) {
        unimplemented!()
    }

    fn tick(&self, _: u64) {
        unimplemented!()
    }

    fn log_bytes(&self) -> u64 {
        unimplemented!()
    }

    fn metrics(&self) -> EngineMetrics {
        unimplemented!()
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        unimplemented!()
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
    let reading = read(engine, &channel, HistoryQuery::Newest, 9, &mut wait_left);
    let history = std::thread::scope(|scope| {
        scope.spawn(meanwhile);
        runtime.block_on(reading)
    });
    (history, wait_left)
}

fn next_fetch(engine: &Elsewhere) -> Ticket<Fetched> {
    loop {
        if let Some(ticket) = engine.fetches.lock().unwrap().pop() {
            return ticket;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_page_is_read_once_it_is_fetched_and_released_then() {
    let (engine, hour) = (Elsewhere::new(), Duration::from_secs(3600));
    let (history, left) = read_while(&engine, hour, || {
        next_fetch(&engine).answer(Fetched::held_by(Arc::clone(&engine.hold)));
    });
    assert!(history.is_ok_and(|history| history.messages.is_empty()));
    assert!(left < hour && !engine.is_held());
}

#[test]
fn a_page_that_is_not_fetched_is_refused() {
    let engine = Elsewhere::new();
    let (history, _) = read_while(&engine, Duration::from_secs(3600), || drop(next_fetch(&engine)));
    assert_eq!(history.err(), Some(ErrorResponse::unanswered()), "it cannot be fetched");
    let (history, left) = read_while(&engine, Duration::from_millis(1), || {});
    assert_eq!(history.err(), Some(ErrorResponse::unanswered()), "it takes too long");
    assert_eq!(left, Duration::ZERO);
}
