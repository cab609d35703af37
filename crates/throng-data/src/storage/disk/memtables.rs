//! Frees the library's memtables on a thread of its own.
//!
//! The library frees a memtable once its contents are in a file, under a lock that commits to the
//! table wait for. A full one has some hundred thousand allocations, and commits waited 30 ms. So
//! each commit passes full memtables to the thread, which keeps a reference to each until it is
//! the last one.
//!
//! All tables together hold a limited memory, whose sizes the library does not know: it keeps the
//! sizes that a table was made with. Beyond half of the limit the largest memtable is written to a
//! file, and beyond the other half commits wait until files are written. A memtable that nobody
//! adds to is written to a file after a while, too.

use std::any::Any;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fjall::{AbstractTree as _, Keyspace};

use super::super::Space;
use super::tables::memtable_bytes;

/// How often the thread looks whether it has the last reference to a memtable.
const LOOK: Duration = Duration::from_millis(20);

/// How long a commit waits at most until files are written. Then the disk does not keep up, and
/// the queue before it fills.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// How often it looks whether they are.
const WAIT_LOOK: Duration = Duration::from_millis(5);

/// A memtable without additions for this long is written to a file.
const IDLE: Duration = Duration::from_secs(10);

/// Less than this is kept: a file of its own would be worth less.
const IDLE_BYTES_MIN: u64 = 1 << 20;

/// A key that is written to begin a new memtable. It means nothing.
const VERSIONS_KEY: &[u8] = b"memtables";

/// A memtable, whose type the library does not name.
type Memtable = dyn Any + Send + Sync;

/// A memtable that is being written to a file, and its size.
struct Full {
    memtable: Arc<Memtable>,
    bytes: u64,
}

/// See the module. The thread ends after this is dropped; it has nothing but memory.
pub(super) struct Memtables {
    full: Sender<Full>,
    state: Mutex<State>,
    /// Bytes of those that are being written to files.
    full_bytes: Arc<AtomicU64>,
    /// Bytes that all may take.
    max_bytes: u64,
}

/// A memtable of each table, in their order.
type OfEach = [Option<Weak<Memtable>>; Space::ALL.len()];

struct State {
    /// The last memtable handed over, of each table.
    last: OfEach,
    committed: Instant,
    /// True if nothing was committed since all was written to files.
    is_idle: bool,
}

impl Memtables {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub(super) fn start() -> io::Result<Memtables> {
        let (full, handed_over) = mpsc::channel();
        let full_bytes = Arc::<AtomicU64>::default();
        let of_thread = Arc::clone(&full_bytes);
        let thread = thread::Builder::new().name("memtables".into());
        thread.spawn(move || keep(&handed_over, &of_thread))?;
        let state = State { last: OfEach::default(), committed: Instant::now(), is_idle: true };
        Ok(Memtables { full, state: Mutex::new(state), full_bytes, max_bytes: u64::MAX })
    }

    /// Changes what all memtables may take.
    pub(super) fn set_max_bytes(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits, and hands over the memtables of the tables, in their order, that are full then. The
    /// library replaces them as soon as it can.
    pub(super) fn commit<T>(&self, tables: &[Keyspace], commit: impl FnOnce() -> T) -> T {
        let active: Vec<_> = tables.iter().map(|table| table.tree.active_memtable()).collect();
        let committed = commit();
        let mut state = self.state();
        (state.committed, state.is_idle) = (Instant::now(), false);
        let sizes: Vec<_> = active.iter().map(|memtable| memtable.size()).collect();
        let is_beyond = sizes.iter().sum::<u64>() > self.max_bytes / 2;
        let largest = (0..sizes.len()).max_by_key(|at| sizes[*at]).filter(|_| is_beyond);
        for (at, (space, memtable)) in Space::ALL.into_iter().zip(active).enumerate() {
            let is_largest = largest == Some(at);
            // A failure closes the library, which the next commit tells.
            if is_largest {
                let _ = tables[at].rotate_memtable();
            }
            if is_largest || sizes[at] > memtable_bytes(space) {
                self.hand_over(&mut state.last[at], memtable, sizes[at]);
            }
        }
        drop(state);
        self.wait(tables);
        committed
    }

    /// Hands over a full memtable of a table, once.
    fn hand_over(&self, last: &mut Option<Weak<Memtable>>, memtable: Arc<Memtable>, bytes: u64) {
        // Its place is not given to another one as long as there is a weak reference.
        if !last.as_ref().is_some_and(|last| ptr::addr_eq(last.as_ptr(), Arc::as_ptr(&memtable))) {
            *last = Some(Arc::downgrade(&memtable));
            self.full_bytes.fetch_add(bytes, Ordering::Relaxed);
            // The thread ends only after this.
            let _ = self.full.send(Full { memtable, bytes });
        }
    }

    /// Waits until files are written, if too much waits for that.
    fn wait(&self, tables: &[Keyspace]) {
        let until = Instant::now() + WAIT_MAX;
        while self.full_bytes() > self.max_bytes / 2 && Instant::now() < until {
            if !is_flushing(tables) {
                forget_versions(tables);
            }
            thread::sleep(WAIT_LOOK);
        }
    }

    /// Bytes of the memtables that are full, and not freed.
    fn full_bytes(&self) -> u64 {
        self.full_bytes.load(Ordering::Relaxed)
    }

    /// Has what is in memory written to files, and freed then, if nobody has committed anything for
    /// a while. Call it from time to time.
    pub(super) fn give_back(&self, tables: &[Keyspace]) {
        let mut state = self.state();
        if state.committed.elapsed() < IDLE {
            return;
        }
        if std::mem::replace(&mut state.is_idle, true) {
            if self.full_bytes() > IDLE_BYTES_MIN && !is_flushing(tables) {
                forget_versions(tables);
            }
            return;
        }
        let active: Vec<_> = tables.iter().map(|table| table.tree.active_memtable()).collect();
        if active.iter().map(|memtable| memtable.size()).sum::<u64>() < IDLE_BYTES_MIN {
            return;
        }
        for (at, (table, memtable)) in tables.iter().zip(active).enumerate() {
            let bytes = memtable.size();
            // A failure closes the library, which the next commit tells.
            if bytes > 0 && table.rotate_memtable().is_ok() {
                self.hand_over(&mut state.last[at], memtable, bytes);
            }
        }
    }
}

/// True if the library has yet to write memtables to files.
fn is_flushing(tables: &[Keyspace]) -> bool {
    tables.iter().any(|table| table.sealed_memtable_count() > 0)
}

/// Has the library forget earlier versions of its tables, which keep memtables that are in files,
/// and files that were merged.
/// It does so when it begins a new memtable of any table that is not empty.
pub(super) fn forget_versions(tables: &[Keyspace]) {
    let meta = &tables[Space::Meta as usize];
    // A failure closes the library, which the next commit tells.
    if meta.insert(VERSIONS_KEY, []).is_ok() {
        let _ = meta.rotate_memtable();
    }
}

/// Frees each memtable when this thread has the last reference to it.
fn keep(handed_over: &Receiver<Full>, full_bytes: &AtomicU64) {
    let mut kept = Vec::new();
    loop {
        let next = if kept.is_empty() {
            handed_over.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            handed_over.recv_timeout(LOOK)
        };
        match next {
            Ok(full) => kept.push(full),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        kept.retain(|Full { memtable, bytes }| {
            let is_used = Arc::strong_count(memtable) > 1;
            if !is_used {
                full_bytes.fetch_sub(*bytes, Ordering::Relaxed);
            }
            is_used
        });
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
        let newest = || storage.memtables.state().last[Space::Heads as usize].clone();
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

    /// Waits until hardly any memory is held by memtables that are full.
    fn settle(storage: &DiskStorage) {
        while storage.memtables.full_bytes() > IDLE_BYTES_MIN {
            storage.memtables.state().committed -= IDLE;
            storage.give_back();
            thread::sleep(WAIT_LOOK);
        }
    }

    #[test]
    fn all_tables_together_hold_what_they_may() {
        const MAX: u64 = 1 << 20;
        let folder = tempfile::tempdir().expect("a directory");
        let storage = DiskStorage::open(&folder.path().join("store"), 1 << 20).expect("it opens");
        let storage = storage.holding_at_most(MAX);
        let value = vec![7; 10 << 10];
        for key in 0..2_000_u64 {
            let space = [Space::Heads, Space::Messages, Space::Numbers][key as usize % 3];
            let write = Write::put(space, key.to_be_bytes(), value.clone());
            storage.commit(&[write]).expect("it writes");
            let open = storage.get_open().expect("it is open");
            let active = open.keyspaces.iter().map(|table| table.tree.active_memtable().size());
            assert!(active.sum::<u64>() <= MAX / 2 + (20 << 10));
        }
        assert!(storage.memtables.full_bytes() <= MAX);
        settle(&storage);
        assert_eq!(storage.get(Space::Heads, &0_u64.to_be_bytes()), Ok(Some(value)));
    }

    #[test]
    fn what_nobody_adds_to_is_given_back() {
        let folder = tempfile::tempdir().expect("a directory");
        let storage = DiskStorage::open(&folder.path().join("store"), 1 << 20).expect("it opens");
        let write = Write::put(Space::Heads, "key", vec![7; 2 << 20]);
        storage.commit(&[write]).expect("it writes");
        let held = || {
            let open = storage.get_open().expect("it is open");
            open.keyspace(Space::Heads).tree.active_memtable().size()
        };
        storage.give_back();
        assert!(held() > 1 << 20, "it was written just now");
        storage.memtables.state().committed -= IDLE;
        storage.give_back();
        assert_eq!(held(), 0);
        settle(&storage);
        assert!(storage.get(Space::Heads, b"key").expect("it is read").is_some());
    }
}
