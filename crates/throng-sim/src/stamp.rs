//! What sockets and engine have to know of the moment: both are called from within a worker.

use std::sync::atomic::{AtomicU64, Ordering};

/// Stands for no client.
const NOBODY: u64 = u64::MAX;

/// The moment, shared by everything in a world.
#[derive(Debug)]
pub struct Stamp {
    now_ms: AtomicU64,
    published: AtomicU64,
    touched: AtomicU64,
    /// The one before.
    touched_before: AtomicU64,
}

/// A point in simulated time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Messages accepted before it.
    pub published: u64,
}

impl Stamp {
    /// Starts at `now_ms`.
    pub fn new(now_ms: u64) -> Stamp {
        Stamp {
            now_ms: AtomicU64::new(now_ms),
            published: AtomicU64::new(0),
            touched: AtomicU64::new(NOBODY),
            touched_before: AtomicU64::new(NOBODY),
        }
    }

    /// Time goes on.
    pub fn set_now(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The current moment.
    pub fn now(&self) -> Moment {
        Moment {
            now_ms: self.now_ms.load(Ordering::Relaxed),
            published: self.published.load(Ordering::Relaxed),
        }
    }

    /// One more message has been accepted. Returns its number, counted from one.
    pub fn count_published(&self) -> u64 {
        self.published.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A worker reads from or writes to the socket of a client: what it asks of the engine from now
    /// on, it asks for that client.
    pub fn touch(&self, client: Option<usize>) {
        let client = client.map_or(NOBODY, |client| client as u64);
        let before = self.touched.swap(client, Ordering::Relaxed);
        if before != client {
            self.touched_before.store(before, Ordering::Relaxed);
        }
    }

    /// A client's socket is gone. If it was touched last, to give way to another, then that other
    /// is the one for which the worker goes on.
    pub fn forget(&self, client: usize) {
        let before = self.touched_before.load(Ordering::Relaxed);
        // If it was not, nothing changes.
        let _ = self.touched.compare_exchange(
            client as u64,
            before,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// The client whose socket was touched last.
    pub fn touched(&self) -> Option<usize> {
        let touched = self.touched.load(Ordering::Relaxed);
        (touched != NOBODY).then_some(touched as usize)
    }
}
