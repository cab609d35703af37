//! What all threads have seen, in one place.
//!
//! Histograms are large (hundreds of kilobytes when latencies spread) and there may be fifty
//! threads, each for no more clients than a descriptor table holds. So a thread only collects what
//! it measures, and carries it here when it has [`BATCH`] of it or is asked. That is also faster:
//! the histograms stay in the cache of whoever writes many values at once.

use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::seen::Seen;
use crate::marker::Mark;
use crate::tally::Tally;

/// Values that a thread collects: 24 KiB, little more than a byte for each of its clients, and the
/// lock is taken for a thousandth of the deliveries.
pub(super) const BATCH: usize = 1024;

const _: () = assert!(size_of::<(Mark, u64)>() * BATCH <= 32 * 1024);

/// What all threads have seen since somebody asked.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Inner>);

/// See [`Ledger`].
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) tally: Tally,
    pub(super) seen: Seen,
}

/// What one thread has measured since its last visit, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Measured {
    connects: Vec<u64>,
    deliveries: Vec<(Mark, u64)>,
}

impl Ledger {
    /// Nobody panics with the lock held, and numbers would still be numbers.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Measured {
    /// A client became subscribed.
    pub(super) fn connect(&mut self, latency_ns: u64, ledger: &Ledger) {
        self.connects.push(latency_ns);
        if self.connects.len() >= BATCH {
            self.carry(&mut ledger.lock());
        }
    }

    /// A message came.
    pub(super) fn delivery(&mut self, mark: &Mark, latency_ns: u64, ledger: &Ledger) {
        self.deliveries.push((*mark, latency_ns));
        if self.deliveries.len() >= BATCH {
            self.carry(&mut ledger.lock());
        }
    }

    /// Carries everything to the ledger.
    pub(super) fn carry(&mut self, ledger: &mut Inner) {
        // Histograms that grow as they must take any value.
        for latency_ns in self.connects.drain(..) {
            let _ = ledger.tally.connect.record(latency_ns);
        }
        for (mark, latency_ns) in self.deliveries.drain(..) {
            let _ = ledger.tally.delivery.record(latency_ns);
            ledger.seen.record(&mark, latency_ns);
        }
    }
}
