//! What a reading of a channel with a state knows beside its messages.

use std::sync::Arc;

use throng_core::Content;

use crate::api::link::Link;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StateCollect {
    /// The messages that were read since the position: their sequences and links.
    pub(super) read: Vec<(u64, Option<Link>)>,
    /// True if any of them has a key.
    pub(super) has_keys: bool,
    /// True if no message after the position is missing in the log.
    pub(super) is_whole_log: bool,
    /// True if the rule covers some of them no more.
    pub(super) is_cut: bool,
    /// True if these have no keys.
    pub(super) lacks_plain: bool,
    /// The newest messages of keys, oldest first, once they were read.
    pub(super) copies: Option<Vec<Arc<Content>>>,
    /// Whether a client that resumes lacks nothing; `None` if that is not known, or nobody does.
    pub(super) is_recovered: Option<bool>,
}

impl StateCollect {
    pub(super) fn new() -> StateCollect {
        StateCollect { is_whole_log: true, ..StateCollect::default() }
    }

    /// The rule does not cover a message any more.
    pub(super) fn cut(&mut self, content: &Content) {
        self.is_cut = true;
        self.lacks_plain |= content.key().is_none();
    }

    /// The newest message that was read and has a link.
    pub(super) fn newest_linked(&self) -> u64 {
        let linked = self.read.iter().rev().find(|(_, link)| link.is_some());
        linked.map_or(0, |(sequence, _)| *sequence)
    }
}
