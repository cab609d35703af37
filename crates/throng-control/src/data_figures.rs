//! What the status page shows of the data directory.

use throng_core::Snapshot;

/// What a data directory takes, and what was written to it since the start.
#[derive(Debug, Clone)]
pub struct DataFigures {
    /// What it takes on the disk, in bytes.
    pub disk_bytes: u64,
    /// What it may take; `None` without a limit of its own.
    pub limit_bytes: Option<u64>,
    /// Why changes are refused now: `full`, `limit` or `failed`.
    pub refuses: Option<&'static str>,
    /// Messages of durable channels that were written.
    pub messages: u64,
    /// Bytes of their bodies.
    pub message_bytes: u64,
    /// Time to write and sync one group of messages.
    pub commits: Snapshot,
}
