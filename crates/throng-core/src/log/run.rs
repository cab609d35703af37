//! Runs of expired messages.

/// A run of fewer expired messages is not worth remembering.
pub(super) const RUN_MIN: u64 = 64;

/// Offsets from the first one to the last one, between which all messages have expired.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Run {
    pub(super) fn length(self) -> u64 {
        self.last - self.first
    }
}
