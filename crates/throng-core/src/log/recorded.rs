//! The record of a log, with what the log knows of it. See [`super::record`].

use crate::change::KnownRecord;
use crate::holder::RoomHolder;

/// The facts about a log that are kept beside its messages.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) known: KnownRecord,
    /// When it was written. A thawed log learns from the notice of an end when that was; without
    /// one it is when the log was thawed.
    pub(super) since_ms: u64,
    /// The bytes that count against limits: they are all that keeps an ended channel there.
    pub(super) bytes: usize,
    /// Whose room a creation takes.
    pub(super) creator: RoomHolder,
}
