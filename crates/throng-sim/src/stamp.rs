//! Simulated time, and the client on whose behalf a worker acts.
//!
//! Sockets and engine share it, because a worker calls both. What is thawed reads the clock itself:
//! it shows this time to the thread of the world.

use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::clock::simulated;

/// Stands for no client.
const NO_CLIENT: u64 = u64::MAX;

/// The current moment, shared by all parts of a world.
#[derive(Debug)]
pub struct Stamp {
    now_ms: AtomicU64,
    published: AtomicU64,
    touched: AtomicU64,
    /// The client touched before `touched`.
    touched_before: AtomicU64,
}

/// A point in simulated time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// The number of messages accepted before it.
    pub(crate) published: u64,
}

impl Stamp {
    /// A stamp whose time starts at `now_ms`.
    pub fn new(now_ms: u64) -> Stamp {
        simulated::set(now_ms);
        Stamp {
            now_ms: AtomicU64::new(now_ms),
            published: AtomicU64::new(0),
            touched: AtomicU64::new(NO_CLIENT),
            touched_before: AtomicU64::new(NO_CLIENT),
        }
    }

    /// Sets the current time.
    pub fn set_now(&self, now_ms: u64) {
        simulated::set(now_ms);
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The current moment.
    pub fn now(&self) -> Moment {
        Moment {
            now_ms: self.now_ms.load(Ordering::Relaxed),
            published: self.published.load(Ordering::Relaxed),
        }
    }

    /// Counts an accepted message. Returns its number, from one.
    pub(crate) fn count_published(&self) -> u64 {
        self.published.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that a worker reads from or writes to a client's socket. Its next calls to the
    /// engine are on behalf of that client.
    pub(crate) fn touch(&self, client: Option<usize>) {
        let client = client.map_or(NO_CLIENT, |client| client as u64);
        let before = self.touched.swap(client, Ordering::Relaxed);
        if before != client {
            self.touched_before.store(before, Ordering::Relaxed);
        }
    }

    /// Records that a client's socket is closed. If it was touched last, it was evicted for the
    /// client touched before, on whose behalf the worker continues.
    pub(crate) fn forget(&self, client: usize) {
        let before = self.touched_before.load(Ordering::Relaxed);
        // Fails if another client was touched last; then nothing changes.
        let _ = self.touched.compare_exchange(
            client as u64,
            before,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// The client whose socket was touched last.
    pub(crate) fn touched(&self) -> Option<usize> {
        let touched = self.touched.load(Ordering::Relaxed);
        (touched != NO_CLIENT).then_some(touched as usize)
    }
}
