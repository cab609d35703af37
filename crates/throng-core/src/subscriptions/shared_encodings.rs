//! Encodings of what many subscriptions of a channel catch up with at the same time, such as its
//! state: they stay for a moment, so that each message is encoded once for all of these.
//!
//! A replay buffer does not count encodings, so these are bounded on their own: by the messages
//! that they are of, and by time.

use crate::id::LocalId;

/// So many subscriptions of a channel share encodings while they catch up.
const SHARING_MIN: u32 = 4;

/// The bytes of messages, of a worker, whose encodings stay.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// For how long they stay, in milliseconds.
const SHARED_MS: u64 = 1_000;

/// The channels whose encodings stay.
#[derive(Debug, Default)]
pub(super) struct SharedEncodings {
    channels: Vec<LocalId>,
    /// The bytes of their messages, when each was taken up.
    bytes: usize,
    since_ms: u64,
}

impl SharedEncodings {
    /// True if those of a channel stay for now, whose messages have so many bytes, and with which
    /// so many catch up.
    pub(super) fn has(
        &mut self,
        now_ms: u64,
        local: LocalId,
        (catching_up, bytes): (u32, usize),
    ) -> bool {
        if catching_up < SHARING_MIN {
            return false;
        }
        if self.channels.contains(&local) {
            return true;
        }
        if self.bytes + bytes > MESSAGE_BYTES_MAX {
            return false;
        }
        if self.channels.is_empty() {
            self.since_ms = now_ms;
        }
        self.bytes += bytes;
        self.channels.push(local);
        true
    }

    /// The channels whose encodings have stayed for long enough: all or none.
    pub(super) fn take_over(&mut self, now_ms: u64) -> Vec<LocalId> {
        if self.channels.is_empty() || now_ms.abs_diff(self.since_ms) < SHARED_MS {
            return Vec::new();
        }
        self.bytes = 0;
        std::mem::take(&mut self.channels)
    }
}
