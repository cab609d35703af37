//! Channels that may end, and what nodes may say of them.

use throng_core::{Body, Epoch, LogChange, LogState, MessageId, Publication};
use throng_nats::journal::LogEdit;

use super::{CHANNELS, STREAM, World, channel, subject};

/// So many of the channels may end.
const MAY_END: usize = 2;

pub(super) fn may_end(index: usize) -> bool {
    index < MAY_END
}

/// Whether each of them has ended, and how often that has changed.
#[derive(Default)]
pub(super) struct Ends([(bool, u64); MAY_END]);

/// The same of one channel at the time of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenEnd(bool, u64);

impl World {
    pub(super) fn note_ends(&mut self) {
        for (index, (has_ended, changes)) in self.ends.0.iter_mut().enumerate() {
            let is_so = self.broker.has_ended(STREAM, &subject(index));
            *changes += u64::from(std::mem::replace(has_ended, is_so) != is_so);
        }
    }

    pub(super) fn seen_end(&self, index: usize) -> SeenEnd {
        let (has_ended, changes) = self.ends.0.get(index).copied().unwrap_or_default();
        SeenEnd(has_ended, changes)
    }

    /// True if a channel may have been as said at some time since it was seen.
    pub(super) fn was_ended(&self, index: usize, SeenEnd(has_ended, changes): SeenEnd) -> bool {
        has_ended || self.seen_end(index).1 != changes
    }

    /// The same of one that had not ended.
    pub(super) fn was_open(&self, index: usize, SeenEnd(has_ended, changes): SeenEnd) -> bool {
        !has_ended || self.seen_end(index).1 != changes
    }

    /// Ends a channel that the node has seen, or opens it again.
    pub(super) fn end_log(&mut self, node: usize) {
        let index = self.random.below(MAY_END);
        const { assert!(MAY_END <= CHANNELS) };
        let Some(facts) = self.nodes[node].facts.get(&index).cloned() else {
            return self.read_log_of(node, index);
        };
        let head = MessageId { epoch: Epoch::numbered(1), offset: facts.head };
        let before = LogState { head, record: facts.record };
        let text = |text: String| Body::Text(text.into());
        let last = Publication::new(channel(index), text(format!("last {}", self.next_token)));
        let last = self.random.percent(50).then_some(last);
        let opened = LogChange::open(channel(index), &before);
        let opened = opened.filter(|_| self.random.percent(70));
        let mut change = opened.unwrap_or_else(|| LogChange::end(channel(index), last, &before));
        if let Some(notice) = change.messages.last_mut() {
            // Each body is there once.
            notice.body = text(format!("end {}", self.next_token));
        }
        let LogChange { condition, messages, record, .. } = change;
        let record_version = condition.record;
        let edit =
            LogEdit { head: None, record_version, key: None, messages, record, may_end: true };
        self.make_change(node, index, edit);
    }
}
