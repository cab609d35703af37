//! Sends agents the counters of published and rejected messages, which only the coordinator has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{AgentCommand, StreamSequence};
use crate::streams::StreamCounters;

/// Messages in one command, which fit into a frame.
const SEQUENCES_MAX: usize = 100_000;

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

    /// Publishing starts or has ended. Returns the commands to send, at least one.
    pub(super) fn publishing(&mut self, is_publishing: bool) -> Vec<AgentCommand> {
        self.is_publishing = is_publishing;
        self.commands(true)
    }

    /// The updates to send before any other command, in this order. While something is published
    /// there is always one, even if nothing has changed, because clients count the updates.
    pub(super) fn read(&mut self) -> Vec<AgentCommand> {
        self.commands(self.is_publishing)
    }

    /// The changes since the last call; if there are none, one command without any if `is_always`.
    fn commands(&mut self, is_always: bool) -> Vec<AgentCommand> {
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
        let mut parts = Vec::new();
        while !published.is_empty() || !refused.is_empty() || is_always && parts.is_empty() {
            parts.push(AgentCommand::Update {
                published: published.drain(..published.len().min(SEQUENCES_MAX)).collect(),
                refused: refused.drain(..refused.len().min(SEQUENCES_MAX)).collect(),
                has_more: !published.is_empty() || !refused.is_empty(),
                is_behind: self.is_publishing,
            });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each command: published messages, rejected messages, `has_more`, `is_behind`.
    fn counts(commands: &[AgentCommand]) -> Vec<(usize, usize, bool, bool)> {
        let count = |command: &AgentCommand| match command {
            AgentCommand::Update { published, refused, has_more, is_behind } => {
                (published.len(), refused.len(), *has_more, *is_behind)
            }
            _ => panic!("{command:?}"),
        };
        commands.iter().map(count).collect()
    }

    #[test]
    fn updates_are_sent_while_publishing_even_without_changes() {
        let counters = Arc::new(StreamCounters::new(3));
        let mut updates = CounterUpdates::new(Arc::clone(&counters));
        assert!(updates.read().is_empty() && !updates.is_due());
        assert_eq!(counts(&updates.publishing(true)), [(0, 0, false, true)]);
        counters.published(1, 4);
        assert_eq!(counts(&updates.read()), [(1, 0, false, true)]);
        assert_eq!(counts(&updates.read()), [(0, 0, false, true)]);
        counters.refused(1, 4);
        assert_eq!(counts(&updates.publishing(false)), [(0, 1, false, false)]);
        assert!(updates.read().is_empty() && !updates.is_due());
        counters.refused(1, 3);
        assert_eq!(counts(&updates.read()), [(0, 2, false, false)]);
    }

    #[test]
    fn many_streams_are_read_once() {
        let streams = 2 * SEQUENCES_MAX as u32 + 1;
        let counters = Arc::new(StreamCounters::new(streams));
        (0..streams).for_each(|stream| counters.published(stream, 1));
        let sent = counts(&CounterUpdates::new(counters).publishing(true));
        let full = (SEQUENCES_MAX, 0, true, true);
        assert_eq!(sent, [full, full, (1, 0, false, true)]);
    }
}
