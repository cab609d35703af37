//! The data directory, for the status page.

use throng_core::Snapshot;

/// The size of a data directory, and the bytes written to it since the start.
#[derive(Debug, Clone)]
pub struct DataFigures {
    pub disk_bytes: u64,
    /// `None` without a limit of its own.
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
