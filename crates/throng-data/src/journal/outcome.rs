//! Outcomes of the journal's work.

use crate::logs::Appended;

/// Why a publication or change is refused: it is not on the disk, and never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JournalRefused {
    /// More wait than may.
    #[error("the disk does not keep up, so the message was not accepted; try again later")]
    Busy,
    /// The disk has no space.
    #[error("the disk of the data directory is full, so the message was not accepted")]
    Full,
    /// The directory takes more than it may.
    #[error("the data directory is beyond its limit, so the message was not accepted")]
    OverLimit,
    /// The disk fails.
    #[error("the disk of the data directory fails, so the message was not accepted")]
    Failed,
}

/// Called once a change of a log is safe, or refused: for one commit in the order of offsets, where
/// [`JournalServer::answer`](super::JournalServer::answer) says. Dropped without a call if the
/// journal ends while it is not known whether the change is on the disk.
pub type WhenDone = Box<dyn FnOnce(Result<JournalWritten, JournalRefused>) + Send>;

/// The outcome of a change of a log.
#[derive(Debug, Clone)]
pub struct JournalWritten {
    pub(crate) appended: Appended,
    /// The number of subscriptions that its messages were delivered to.
    pub(crate) subscribers: u64,
}

/// The same for a change of other state, in the order of the calls.
pub type ChangeDone = Box<dyn FnOnce(Result<(), JournalRefused>) + Send>;
