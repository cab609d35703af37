//! The entries of a log, as limits count them: messages, and blanks.
//!
//! A **blank** is an entry that is no message of a user: a notice, or the place of a message that
//! is gone. It takes no room from messages.

use crate::message::Content;

/// The number of entries of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryCount {
    pub messages: u64,
    pub blanks: u64,
}

/// The number of blanks that go beside each message of a limit.
///
/// Each erasure leaves two blanks: a place and a notice. So a message behind which `N` others at
/// most were published has fewer than `3 * N` blanks behind it: two of each of those, and the
/// notices of the `N` messages that were there before it. With this factor no erasure drops a
/// message, and whoever publishes and erases in turn drops no more than by publishing alone.
const BLANKS_PER_MESSAGE: u64 = 3;

impl EntryCount {
    /// Counts one more.
    pub fn add(&mut self, is_blank: bool) {
        let count = if is_blank { &mut self.blanks } else { &mut self.messages };
        *count += 1;
    }

    /// True if a limit of this many messages, and of the blanks that go beside them, is exceeded.
    pub fn exceeds(self, max_messages: usize) -> bool {
        let max = max_messages as u64;
        self.messages > max || self.blanks > max.saturating_mul(BLANKS_PER_MESSAGE)
    }
}

impl Content {
    /// True if it is a blank in its log: see [`EntryCount`].
    pub fn is_blank(&self) -> bool {
        self.is_without_body() || self.is_notice()
    }
}
