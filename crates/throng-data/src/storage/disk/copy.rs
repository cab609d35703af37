//! Copies a storage while it is written to, as it is at one moment.
//!
//! The library's snapshot keeps what is replaced or removed meanwhile, so nobody waits for the
//! copy. It is read in pages, each on its own: who closes the storage waits for one page at most,
//! and then the copy fails.

use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::{Arc, Weak};

use fjall::{Readable as _, Snapshot};

use super::{DiskStorage, Open, failed};
use crate::storage::{Space, StorageError};

/// Entries of a page: some milliseconds of reading.
const PAGE_ENTRIES: usize = if cfg!(test) { 7 } else { 4096 };

/// Bytes of a page, but for one entry.
const PAGE_BYTES: usize = 1 << 20;

/// Memory for blocks of the copy. It is written once and hardly read.
const CACHE_BYTES: u64 = 1 << 20;

/// How far a copy has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries of all tables.
    pub entries: u64,
    /// Those that are messages.
    pub messages: u64,
    /// About how many entries there are.
    pub entries_in_all: u64,
}

type Entry = (fjall::UserKey, fjall::UserValue);

/// The contents of all tables at one moment.
struct Moment<'a> {
    storage: &'a DiskStorage,
    open: Weak<Open>,
    snapshot: Snapshot,
}

impl DiskStorage {
    /// Writes all entries, as they are now, to a new storage in the directory `path`, and syncs
    /// them. Calls `each` every some thousand entries, until it breaks.
    ///
    /// # Errors
    ///
    /// An error of either storage by the library; this one was closed meanwhile; `each` has broken.
    /// The directory is left as it is then.
    pub(crate) fn copy_to(
        &self,
        path: &Path,
        each: &mut dyn FnMut(&Copied) -> ControlFlow<()>,
    ) -> Result<(DiskStorage, Copied), StorageError> {
        let moment = Moment::now(self)?;
        let mut copied = Copied { entries_in_all: moment.about_entries()?, ..Copied::default() };
        let copy = DiskStorage::open(path, CACHE_BYTES)?;
        let target = copy.get_open()?;
        for space in Space::ALL {
            // It writes files of tables, with a sync for each, and no journal.
            let ingestion = target.keyspace(space).start_ingestion();
            let mut ingestion = ingestion.map_err(|error| failed(&error))?;
            let mut last = None;
            loop {
                let page = moment.page(space, last.as_ref())?;
                let Some((key, _)) = page.last() else { break };
                last = Some(key.clone());
                copied.entries += page.len() as u64;
                copied.messages += if space == Space::Messages { page.len() as u64 } else { 0 };
                for (key, value) in page {
                    ingestion.write(key, value).map_err(|error| failed(&error))?;
                }
                if each(&copied).is_break() {
                    return Err(stopped());
                }
            }
            ingestion.finish().map_err(|error| failed(&error))?;
        }
        drop(target);
        Ok((copy, copied))
    }
}

/// Why a copy is not made that somebody has stopped.
pub(crate) fn stopped() -> StorageError {
    StorageError::Failed("it was stopped".into())
}

impl Moment<'_> {
    fn now(storage: &DiskStorage) -> Result<Moment<'_>, StorageError> {
        let open = storage.get_open()?;
        Ok(Moment { storage, open: Arc::downgrade(&open), snapshot: open.database.snapshot() })
    }

    /// The storage that was open at the moment. It is gone once the storage was closed.
    fn open(&self) -> Result<Arc<Open>, StorageError> {
        let open = self.storage.get_open()?;
        if self.open.ptr_eq(&Arc::downgrade(&open)) {
            Ok(open)
        } else {
            Err(StorageError::Failed("it was closed meanwhile".into()))
        }
    }

    fn about_entries(&self) -> Result<u64, StorageError> {
        let open = self.open()?;
        Ok(open.keyspaces.iter().map(|keyspace| keyspace.approximate_len() as u64).sum())
    }

    /// The entries of a table after `last`; none at its end.
    fn page(
        &self,
        space: Space,
        last: Option<&fjall::UserKey>,
    ) -> Result<Vec<Entry>, StorageError> {
        let open = self.open()?;
        let from = last.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_ref()));
        let (mut page, mut bytes) = (Vec::new(), 0);
        for entry in self.snapshot.range::<&[u8], _>(open.keyspace(space), (from, Bound::Unbounded))
        {
            let (key, value) = entry.into_inner().map_err(|error| failed(&error))?;
            bytes += key.len() + value.len();
            page.push((key, value));
            if page.len() == PAGE_ENTRIES || bytes >= PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::storage::{KeyOrder, Storage as _, Write};

    /// One commit: an entry of a table, and a note of it in another one.
    fn put(number: u32) -> [Write; 2] {
        let key = number.to_be_bytes().to_vec();
        let note = Write::put(Space::Heads, "newest", &key);
        [Write::put(Space::Messages, key, vec![7; 100]), note]
    }

    fn remove(number: u32) -> Write {
        Write::remove(Space::Messages, number.to_be_bytes().to_vec())
    }

    fn numbers(storage: &DiskStorage) -> Vec<u32> {
        let mut found = Vec::new();
        let mut add = |key: &[u8], _: &[u8]| {
            found.push(u32::from_be_bytes(key.try_into().expect("four bytes")));
            ControlFlow::Continue(())
        };
        let all = (&[][..], &[u8::MAX; 5][..]);
        storage.scan(Space::Messages, all, KeyOrder::Up, &mut add).expect("it is read");
        found
    }

    fn opened(path: &Path) -> DiskStorage {
        DiskStorage::open(path, 1 << 20).expect("it opens")
    }

    #[test]
    fn a_copy_is_of_one_moment_while_others_write() {
        let folder = tempfile::tempdir().expect("a directory");
        let storage = opened(&folder.path().join("first"));
        for number in 1..=100 {
            storage.commit(&put(number)).expect("it writes");
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (storage, is_over) = (&storage, &is_over);
            let writer = scope.spawn(move || {
                for number in 101.. {
                    storage.commit(&put(number)).expect("it writes");
                    storage.commit(&[remove(number - 100)]).expect("it writes");
                    if number % 64 == 0 {
                        storage.settle().expect("it settles");
                    }
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let path = folder.path().join("copy");
            let mut calls = 0;
            let copied = storage.copy_to(&path, &mut |_| {
                calls += 1;
                // Meanwhile the other thread removes what is yet to be copied.
                let before = numbers(storage);
                while numbers(storage) == before && !writer.is_finished() {}
                ControlFlow::Continue(())
            });
            is_over.store(true, Ordering::Relaxed);
            let (copy, copied) = copied.expect("it is copied");
            assert!(calls > 10, "{calls} pages");
            copy.settle().expect("it settles");
            drop(copy);
            let copy = opened(&path);
            let newest =
                copy.get(Space::Heads, b"newest").expect("it is read").expect("it is there");
            let newest = u32::from_be_bytes(newest.try_into().expect("four bytes"));
            let found = numbers(&copy);
            // The oldest is removed in a commit of its own.
            let oldest = found[0];
            assert!([newest - 100, newest - 99].contains(&oldest), "{oldest} and {newest}");
            assert_eq!(found, (oldest..=newest).collect::<Vec<_>>());
            assert_eq!(
                (copied.messages, copied.entries),
                (found.len() as u64, found.len() as u64 + 1)
            );
            // It can be written to, as any other.
            copy.commit(&put(newest + 1)).expect("it writes");
            assert_eq!(numbers(&copy).len(), found.len() + 1);
        });
    }

    #[test]
    fn a_storage_is_closed_while_it_is_copied_and_the_copy_fails() {
        let folder = tempfile::tempdir().expect("a directory");
        let storage = opened(&folder.path().join("first"));
        for number in 1..=100 {
            storage.commit(&put(number)).expect("it writes");
        }
        let close = |_: &Copied| {
            storage.close().expect("nobody reads");
            ControlFlow::Continue(())
        };
        let failed = storage.copy_to(&folder.path().join("copy"), &mut { close });
        assert!(matches!(failed, Err(StorageError::Failed(_))));
        let reopen = |_: &Copied| {
            storage.close().expect("nobody reads");
            storage.open_again().expect("it opens");
            ControlFlow::Continue(())
        };
        storage.open_again().expect("it opens");
        let Err(StorageError::Failed(why)) =
            storage.copy_to(&folder.path().join("another"), &mut { reopen })
        else {
            panic!("it is another moment");
        };
        assert_eq!(why, "it was closed meanwhile");
        let stopped =
            storage.copy_to(&folder.path().join("third"), &mut |_| ControlFlow::Break(()));
        assert!(stopped.is_err());
        assert_eq!(numbers(&storage).len(), 100);
    }
}
