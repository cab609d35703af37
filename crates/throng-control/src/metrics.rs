//! What the control plane itself counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::Histogram;

use crate::memory_quota::Pot;
use throng_wire::ErrorCode;

/// A count or a level that many tasks change.
#[derive(Debug, Default)]
pub(crate) struct Figure(AtomicU64);

impl Figure {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures, as `/metrics` names them.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Connections now.
    pub(crate) connections: Figure,
    /// Requests answered.
    pub(crate) requests: Figure,
    /// How long their answers took: from the head to the answer, without writing it.
    pub(crate) responses: Histogram,
    /// Messages accepted.
    pub(crate) published: Figure,
    /// Connections closed to make room for others.
    pub(crate) closed_for_room: Figure,
    /// Connections that went back to a worker to subscribe.
    pub(crate) handed_back: Figure,
    /// Bytes of messages that have arrived in part, or are being worked on.
    pub(crate) message_bodies: Arc<Pot>,
    /// The same of batches.
    pub(crate) batch_bodies: Arc<Pot>,
    /// Bytes of what clients have read of logs and workers, and not taken yet.
    pub(crate) pages: Arc<Pot>,
    /// Bytes of what publishers have been answered, and not taken yet.
    pub(crate) receipts: Arc<Pot>,
    /// Connections cut off because others needed the room of their answers.
    pub(crate) cut: Figure,
    refused: [Figure; ErrorCode::ALL.len()],
}

impl Figures {
    pub(crate) fn refused(&self, code: ErrorCode) -> &Figure {
        &self.refused[code as usize]
    }
}
