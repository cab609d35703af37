//! Frees the library's memtables on a thread of its own.
//!
//! The library frees a memtable once its contents are in a file, under a lock that commits to the
//! table wait for. A full one has some hundred thousand allocations, and commits waited 30 ms. So
//! each commit passes full memtables to the thread, which keeps a reference to each until it is
//! the last one.

use std::any::Any;
use std::io;
use std::ptr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fjall::{AbstractTree as _, Keyspace};

use super::super::Space;
use super::tables::memtable_bytes;

/// How often the thread looks whether it has the last reference to a memtable.
const LOOK: Duration = Duration::from_millis(20);

/// A memtable, whose type the library does not name.
type Memtable = dyn Any + Send + Sync;

/// See the module. The thread ends after this is dropped; it has nothing but memory.
pub(super) struct Memtables {
    full: Sender<Arc<Memtable>>,
    /// What was handed over last of each table.
    last: Mutex<[Option<Weak<Memtable>>; Space::ALL.len()]>,
}

impl Memtables {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub(super) fn start() -> io::Result<Memtables> {
        let (full, handed_over) = mpsc::channel();
        let thread = std::thread::Builder::new().name("memtables".into());
        thread.spawn(move || keep(&handed_over))?;
        Ok(Memtables { full, last: Mutex::default() })
    }

    /// Commits, and hands over the memtables of the tables, in their order, that are full then. The
    /// library replaces them as soon as it can.
    pub(super) fn commit<T>(&self, tables: &[Keyspace], commit: impl FnOnce() -> T) -> T {
        let active: Vec<_> = tables.iter().map(|table| table.tree.active_memtable()).collect();
        let committed = commit();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        for ((space, memtable), last) in Space::ALL.into_iter().zip(active).zip(&mut *last) {
            if memtable.size() <= memtable_bytes(space) {
                continue;
            }
            let full: Arc<Memtable> = memtable;
            // Its place is not given to another one as long as there is a weak reference.
            if !last.as_ref().is_some_and(|last| ptr::addr_eq(last.as_ptr(), Arc::as_ptr(&full))) {
                *last = Some(Arc::downgrade(&full));
                // The thread ends only after this.
                let _ = self.full.send(full);
            }
        }
        committed
    }
}

/// Frees each memtable when this thread has the last reference to it.
fn keep(handed_over: &Receiver<Arc<Memtable>>) {
    let mut kept = Vec::new();
    loop {
        let next = if kept.is_empty() {
            handed_over.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            handed_over.recv_timeout(LOOK)
        };
        match next {
            Ok(memtable) => kept.push(memtable),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        kept.retain(|memtable| Arc::strong_count(memtable) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Storage as _, Write};
    use super::super::DiskStorage;
    use super::*;

    #[test]
    fn a_full_memtable_is_kept_as_long_as_the_library_keeps_it() {
        let folder = tempfile::tempdir().expect("a directory");
        let storage = DiskStorage::open(&folder.path().join("store"), 1 << 20).expect("it opens");
        let newest =
            || storage.memtables.last.lock().expect("no panic")[Space::Heads as usize].clone();
        let value = vec![7; 1 << 20];
        let mut keys = 0_u64..;
        let mut fill = |bytes: u64| {
            for key in keys.by_ref().take((bytes >> 20) as usize) {
                let write = Write::put(Space::Heads, key.to_be_bytes(), value.clone());
                storage.commit(&[write]).expect("it writes");
            }
        };
        fill(1 << 20);
        assert!(newest().is_none(), "there is room");
        fill(memtable_bytes(Space::Heads));
        let full = newest().expect("it is full");
        storage.settle().expect("it is written to a file");
        // The library drops it with the next file at the latest.
        fill(2 * memtable_bytes(Space::Heads));
        storage.settle().expect("it is written to a file");
        while full.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
