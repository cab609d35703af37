//! The journal's promise when it acknowledges.

/// When a publication is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// When it survives the end of the machine.
    Always,
    /// When it survives the end of the process. It survives the end of the machine a moment later.
    Interval,
    /// When it survives the end of the process. It survives the end of the machine once the system
    /// has written it, which takes half a minute or so.
    Never,
}
