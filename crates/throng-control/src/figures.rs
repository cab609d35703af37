//! What the control plane itself counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::Histogram;

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
    fn add_within(&self, amount: u64, max: u64) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| {
                level.checked_add(amount).filter(|sum| *sum <= max)
            })
            .is_ok()
    }
}

/// What one request takes of a level that has a limit; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    level: Arc<Figure>,
    amount: u64,
}

impl Share {
    /// Nothing yet.
    pub(crate) fn of(level: &Arc<Figure>) -> Share {
        Share { level: Arc::clone(level), amount: 0 }
    }

    /// Takes more, unless the level would exceed `max`.
    pub(crate) fn grow_within(&mut self, amount: usize, max: u64) -> bool {
        let is_taken = self.level.add_within(amount as u64, max);
        self.amount += if is_taken { amount as u64 } else { 0 };
        is_taken
    }

    /// Corrects what was taken for less or more.
    pub(crate) fn settle(&mut self, amount: usize) {
        self.level.add(amount as u64);
        self.level.subtract(self.amount);
        self.amount = amount as u64;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.level.subtract(self.amount);
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
    /// Connections that went back to a worker to subscribe.
    pub(crate) handed_back: Figure,
    /// Bytes of bodies that have arrived in part, or are being worked on.
    pub(crate) body_bytes: Arc<Figure>,
    /// Bytes of answers that clients have not taken yet.
    pub(crate) answer_bytes: Arc<Figure>,
    refused: [Figure; Code::ALL.len()],
}

impl Figures {
    pub(crate) fn refused(&self, code: Code) -> &Figure {
        &self.refused[code as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let level = Arc::new(Figure::default());
        let mut first = Share::of(&level);
        let mut second = Share::of(&level);
        assert!(first.grow_within(6, 10));
        assert!(!second.grow_within(5, 10));
        assert!(second.grow_within(4, 10));
        assert!(!first.grow_within(1, 10));
        first.settle(2);
        assert_eq!(level.get(), 6);
        first.settle(20);
        assert_eq!(level.get(), 24);
        drop(first);
        assert_eq!(level.get(), 4);
        drop(second);
        assert_eq!(level.get(), 0);
    }
}
