//! What the control plane itself counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Code;

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

    /// Adds `amount` unless that would exceed `max`.
    pub(crate) fn add_within(&self, amount: u64, max: u64) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| {
                level.checked_add(amount).filter(|sum| *sum <= max)
            })
            .is_ok()
    }
}

/// The figures, as `/metrics` names them.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Connections now.
    pub(crate) connections: Figure,
    /// Requests answered.
    pub(crate) requests: Figure,
    /// Messages accepted.
    pub(crate) published: Figure,
    /// Connections that went back to a worker to subscribe.
    pub(crate) handed_back: Figure,
    /// Bytes of bodies that have arrived in part.
    pub(crate) body_bytes: Figure,
    refused: [Figure; Code::ALL.len()],
}

impl Figures {
    pub(crate) fn refused(&self, code: Code) -> &Figure {
        &self.refused[code as usize]
    }
}
