//! Sends agents the counters of published and rejected messages, which only the coordinator has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{AgentCommand, StreamSequence};
use crate::streams::StreamCounters;

/// How often agents are updated while something is published. The audit of a client starts at most
/// twice this later. Reading the counters of a million streams takes some milliseconds.
const UPDATE_EVERY: Duration = Duration::from_millis(100);

/// The counters as they were last sent to the agents.
#[derive(Debug)]
pub(super) struct CounterUpdates {
    counters: Arc<StreamCounters>,
    /// The last published sequence of each stream.
    published: Box<[u32]>,
    /// How many rejected messages were sent to the agents.
    refused: usize,
    is_publishing: bool,
    updated_at: Option<Instant>,
}

impl CounterUpdates {
    /// For counters that were never sent, with no phase that publishes.
    pub(super) fn new(counters: Arc<StreamCounters>) -> CounterUpdates {
        let published = vec![0; counters.streams() as usize].into();
        CounterUpdates { counters, published, refused: 0, is_publishing: false, updated_at: None }
    }

    /// True if an update is due, even without another command.
    pub(super) fn is_due(&self) -> bool {
        self.is_publishing && self.updated_at.is_none_or(|at| at.elapsed() >= UPDATE_EVERY)
    }

    /// Publishing starts or has ended. Returns the command to send.
    pub(super) fn publishing(&mut self, is_publishing: bool) -> AgentCommand {
        self.is_publishing = is_publishing;
        self.changes()
    }

    /// The command to send before any other. While something is published there is always one, even
    /// if nothing has changed, because clients count the updates.
    pub(super) fn read(&mut self) -> Option<AgentCommand> {
        let changes = self.changes();
        let AgentCommand::Update { published, refused, .. } = &changes else { return None };
        let is_needed = self.is_publishing || !published.is_empty() || !refused.is_empty();
        is_needed.then_some(changes)
    }

    /// The changes since the last call.
    fn changes(&mut self) -> AgentCommand {
        self.updated_at = Some(Instant::now());
        let mut published: Vec<StreamSequence> = Vec::new();
        for (stream, known) in (0..).zip(&mut self.published) {
            let last = self.counters.last_published(stream);
            if last > *known {
                *known = last;
                published.push((stream, last));
            }
        }
        let mut refused = self.counters.all_refused();
        if refused.len() == std::mem::replace(&mut self.refused, refused.len()) {
            refused.clear();
        }
        AgentCommand::Update { published, refused, is_behind: self.is_publishing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::connection::MESSAGE_BYTES_MAX;

    /// Published messages, rejected messages, `is_behind`.
    fn counts(command: &AgentCommand) -> (usize, usize, bool) {
        match command {
            AgentCommand::Update { published, refused, is_behind } => {
                (published.len(), refused.len(), *is_behind)
            }
            _ => panic!("{command:?}"),
        }
    }

    #[test]
    fn updates_are_sent_while_publishing_even_without_changes() {
        let counters = Arc::new(StreamCounters::new(3));
        let mut updates = CounterUpdates::new(Arc::clone(&counters));
        assert!(updates.read().is_none() && !updates.is_due());
        assert_eq!(counts(&updates.publishing(true)), (0, 0, true));
        counters.published(1, 4);
        let read = |updates: &mut CounterUpdates| updates.read().as_ref().map(counts);
        assert_eq!(read(&mut updates), Some((1, 0, true)));
        assert_eq!(read(&mut updates), Some((0, 0, true)));
        counters.refused(1, 4);
        assert_eq!(counts(&updates.publishing(false)), (0, 1, false));
        assert!(updates.read().is_none() && !updates.is_due());
        counters.refused(1, 3);
        assert_eq!(read(&mut updates), Some((0, 2, false)));
    }

    #[test]
    fn an_update_of_a_million_streams_fits_into_a_frame() {
        let counters = Arc::new(StreamCounters::new(1_000_000));
        (0..1_000_000).for_each(|stream| counters.published(stream, u32::MAX));
        let update = CounterUpdates::new(counters).publishing(true);
        let bytes = serde_json::to_vec(&update).expect("JSON").len();
        assert!(bytes < MESSAGE_BYTES_MAX, "{bytes}");
    }
}
