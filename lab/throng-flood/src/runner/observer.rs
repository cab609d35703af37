//! What the caller of a run sees of it, and how the caller ends it.

use crate::report::live::Moment;

/// Why a run ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyEnd {
    /// The caller asked for it.
    Stopped,
    /// The plan's deadline.
    Deadline,
}

/// Observes a run: the live view, and the caller's Ctrl-C.
pub trait Observer {
    /// Called every second.
    fn on_sample(&mut self, on_sample: &Moment<'_>);

    /// Called often. Whether the run should end now, with the report so far.
    fn should_stop(&mut self) -> bool {
        false
    }
}
