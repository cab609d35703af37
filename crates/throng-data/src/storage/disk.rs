//! Storage on a disk, by the library `fjall`.
//!
//! After a failed write the library accepts no more until it is opened again: it cannot know what
//! the file system has kept. So [`Storage::recover`] writes its journals anew, and closes and opens
//! it; readers get errors while it is closed. A process may end before that, so a file beside the
//! directory, `store.running`, says that the last one has not ended cleanly: the next one writes
//! the journals anew before it opens them.
//!
//! The library keeps its own journals at the top of the directory, and what it has of each table in
//! files below.

pub mod copy;
mod journals;
mod memtables;
mod rewrite;
mod tables;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode};

use super::{Each, KeyOrder, Space, Storage, StorageError, Write};
use memtables::Memtables;

/// How long the recovery waits for the library to write some memtables.
const REWRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Journals of the library, at most. A start reads them into memory.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// The least limit of the directory: journals alone must not reach it, with the one that is written
/// and those that are being removed. A server with few messages would refuse all of them for ever.
pub const BYTES_LIMIT_MIN: u64 = 256 << 20;

const _: () = assert!(BYTES_LIMIT_MIN >= 4 * JOURNAL_BYTES_MAX);

/// Bytes of a block, in which the system counts a file's size.
const BLOCK_BYTES: u64 = 512;

/// Size of the write that probes whether the disk is full: as much as a file of a table may take.
/// When that does not fit any more, less may.
const PROBE_BYTES: u64 = tables::MEMTABLE_BYTES_MAX;

/// It is written in pieces, the first of which that does not fit is the last.
static PROBE_PIECE: [u8; 64 << 10] = [1; 64 << 10];

/// Threads of the library that write files of tables. The first one leaves merging files to the
/// others, and waits for them in a busy loop while something is left to merge: with one other, the
/// two that are the library's choice on two processors, that took a sixth of the machine.
const THREADS: std::ops::RangeInclusive<usize> = 3..=4;

/// How long closing waits for those who read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The library reports the end of a flush nowhere.
const REWRITE_POLL: Duration = Duration::from_millis(5);

struct Open {
    database: Database,
    /// In the order of [`Space::ALL`].
    keyspaces: Vec<Keyspace>,
}

/// See the module.
pub struct DiskStorage {
    path: PathBuf,
    cache_bytes: u64,
    slot: RwLock<Slot>,
    /// Held while it is opened again.
    reopening: Mutex<Reopening>,
    /// True if the last run had ended cleanly.
    was_clean: bool,
    /// Begun and ended commits, together.
    commits: AtomicU64,
    /// The number of [`DiskStorage::commits`] that are all in files of tables.
    settled: AtomicU64,
    /// The directory, once it is open: device and inode.
    place: OnceLock<(u64, u64)>,
    memtables: Memtables,
}

/// One thread at a time opens the storage again: copies of journals have fixed names.
#[derive(Default)]
struct Reopening;

#[derive(Default)]
struct Slot {
    /// `None` while it is being opened again.
    open: Option<Arc<Open>>,
    /// The same, which others may still read when it is not there any more.
    last: Weak<Open>,
}

/// The error of the system behind one of the library.
fn io_error(error: &fjall::Error) -> Option<&io::Error> {
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) => Some(io),
        _ => None,
    }
}

/// Why something cannot be read.
fn unread(error: &fjall::Error) -> StorageError {
    // The system says so of a block that the disk cannot read.
    let code = io_error(error).and_then(io::Error::raw_os_error);
    let is_bad_block = code == Some(rustix::io::Errno::IO.raw_os_error());
    match failed(error) {
        StorageError::Failed(what) if is_bad_block || is_damage(error) => {
            StorageError::Damaged(what)
        }
        other => other,
    }
}

fn failed(error: &fjall::Error) -> StorageError {
    match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => StorageError::Full,
        _ => StorageError::Failed(format!("{error:?}")),
    }
}

/// Why the library does not open what is on the disk.
fn unopened(error: &fjall::Error) -> StorageError {
    match failed(error) {
        StorageError::Failed(what) if is_damage(error) => StorageError::Failed(damaged(&what)),
        other => other,
    }
}

fn damaged(what: &str) -> String {
    format!(
        "a file in it is damaged or missing ({what}); put back a copy of the whole directory, or \
         start with an empty one"
    )
}

/// True if an error of opening says that the files are not as the library has left them.
fn is_damage(error: &fjall::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            [AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof]
                .contains(&error.kind())
        }
        fjall::Error::Storage(_)
        | fjall::Error::JournalRecovery(_)
        | fjall::Error::Decompress(_)
        | fjall::Error::InvalidTrailer
        | fjall::Error::InvalidTag(_)
        | fjall::Error::InvalidVersion(None)
        | fjall::Error::Unrecoverable => true,
        _ => false,
    }
}

impl DiskStorage {
    /// Opens the storage in the directory `path`, and creates it if it is not there. `cache_bytes`
    /// is the memory for blocks that were read.
    ///
    /// # Errors
    ///
    /// An error of the library.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<DiskStorage, StorageError> {
        let io = |error| failed(&fjall::Error::Io(error));
        if let Some(what) = journals::missing(path).map_err(io)? {
            return Err(StorageError::Failed(damaged(&what)));
        }
        let running = running(path);
        let was_clean = !running.try_exists().map_err(io)?;
        if let Some(what) = tables::missing(path, !was_clean).map_err(io)? {
            return Err(StorageError::Failed(damaged(&what)));
        }
        let storage = DiskStorage {
            path: path.into(),
            cache_bytes,
            slot: RwLock::default(),
            reopening: Mutex::default(),
            was_clean,
            commits: AtomicU64::new(0),
            settled: AtomicU64::new(u64::MAX),
            place: OnceLock::new(),
            memtables: Memtables::start().map_err(io)?,
        };
        storage.reopen(!was_clean, &mut Reopening)?;
        let metadata = fs::metadata(path).map_err(io)?;
        storage.place.get_or_init(|| place(&metadata));
        fs::write(running, "").map_err(io)?;
        Ok(storage)
    }

    /// The same, which holds about this much at most of what it has not written to files of tables.
    #[must_use]
    pub fn holding_at_most(mut self, bytes: u64) -> DiskStorage {
        self.memtables.set_max_bytes(bytes);
        self
    }

    /// Rewrites the files of all tables without what was replaced or removed, and empties the
    /// library's journals. Nobody else may read or write meanwhile.
    ///
    /// # Errors
    ///
    /// An error of the library.
    pub fn compact(&self) -> Result<(), StorageError> {
        self.settle()?;
        for keyspace in &self.get_open()?.keyspaces {
            keyspace.major_compact().map_err(|error| self.failure(&error))?;
        }
        // Nobody has written since it was settled: what journals have is in files of tables.
        self.close()?;
        journals::empty_all(&self.path).map_err(|error| failed(&fjall::Error::Io(error)))?;
        self.reopen(false, &mut self.begin_reopening())
    }

    /// Begins to write to files what is in memory, so that [`Storage::settle`] has less to do. The
    /// next commit tells a failure.
    pub fn write_ahead(&self) {
        let Ok(open) = self.get_open() else { return };
        for keyspace in &open.keyspaces {
            let _ = keyspace.rotate_memtable();
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has data that is only in the library's journal written to files of its own.
    fn flush(&self, open: &Open) -> Result<(), StorageError> {
        for keyspace in &open.keyspaces {
            keyspace.rotate_memtable().map_err(|error| failed(&error))?;
        }
        let deadline = Instant::now() + REWRITE_TIMEOUT;
        let is_left = |keyspace: &Keyspace| keyspace.sealed_memtable_count() > 0;
        while open.keyspaces.iter().any(is_left) {
            // A flush that fails leaves its memtable where it is, and closes the library.
            if open.database.persist(PersistMode::Buffer).is_err() {
                return Err(self.why_closed());
            }
            if Instant::now() > deadline {
                return Err(StorageError::Failed("its data was not written in time".into()));
            }
            std::thread::sleep(REWRITE_POLL);
        }
        Ok(())
    }

    fn get_open(&self) -> Result<Arc<Open>, StorageError> {
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        slot.open.clone().ok_or_else(|| StorageError::Failed("it is being opened again".into()))
    }
}

impl Open {
    fn keyspace(&self, space: Space) -> &Keyspace {
        &self.keyspaces[space as usize]
    }
}

impl Storage for DiskStorage {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let value = self.get_open()?.keyspace(space).get(key).map_err(|error| unread(&error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        space: Space,
        (from, to): (&[u8], &[u8]),
        order: KeyOrder,
        each: Each<'_>,
    ) -> Result<(), StorageError> {
        let open = self.get_open()?;
        let mut range = open.keyspace(space).range(from..to);
        loop {
            let next = match order {
                KeyOrder::Up => range.next(),
                KeyOrder::Down => range.next_back(),
            };
            let Some(guard) = next else { return Ok(()) };
            let (key, value) = guard.into_inner().map_err(|error| unread(&error))?;
            if each(&key, &value).is_break() {
                return Ok(());
            }
        }
    }

    fn commit(&self, writes: &[Write]) -> Result<(), StorageError> {
        let open = self.get_open()?;
        let batch = OwnedWriteBatch::with_capacity(open.database.clone(), writes.len());
        let mut batch = batch.durability(Some(PersistMode::Buffer));
        for Write { space, key, value } in writes {
            let keyspace = open.keyspace(*space);
            match value {
                Some(value) => batch.insert(keyspace, key.clone(), value.clone()),
                None => batch.remove(keyspace, key.clone()),
            }
        }
        self.commits.fetch_add(1, Ordering::SeqCst);
        let committed = self.memtables.commit(&open.keyspaces, || batch.commit());
        self.commits.fetch_add(1, Ordering::SeqCst);
        committed.map_err(|error| self.failure(&error))
    }

    fn sync(&self) -> Result<(), StorageError> {
        let synced = self.get_open()?.database.persist(PersistMode::SyncData);
        synced.map_err(|error| self.failure(&error))
    }

    fn recover(&self) -> Result<(), StorageError> {
        // Opening has done it after an end that was not clean.
        if self.was_clean || self.commits.load(Ordering::SeqCst) > 0 {
            return self.reopen(true, &mut self.begin_reopening());
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), StorageError> {
        let open = self.get_open()?;
        let commits = self.commits.load(Ordering::SeqCst);
        self.flush(&open)?;
        open.database.persist(PersistMode::SyncAll).map_err(|error| self.failure(&error))?;
        self.settled.store(commits, Ordering::SeqCst);
        match fs::remove_file(running(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed(&fjall::Error::Io(error)))
            }
            _ => Ok(()),
        }
    }

    fn give_back(&self) {
        if let Ok(open) = self.get_open() {
            self.memtables.give_back(&open.keyspaces);
        }
    }

    fn check(&self) -> Result<(), StorageError> {
        // A recovery that fails leaves it closed.
        self.get_open()?;
        self.check_place()
    }

    fn approximate_len(&self, space: Space) -> u64 {
        self.get_open().map_or(0, |open| open.keyspace(space).approximate_len() as u64)
    }

    fn bytes(&self) -> Result<u64, StorageError> {
        let open = self.get_open()?;
        let tables: u64 = open.keyspaces.iter().map(Keyspace::disk_space).sum();
        // The library counts journals by their length, most of which is a hole at first.
        let journals =
            blocks_bytes(&self.path).map_err(|error| failed(&fjall::Error::Io(error)))?;
        Ok(tables + journals)
    }
}

fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(*THREADS.start(), *THREADS.end())
}

/// The file that says that the last run has not ended cleanly.
fn running(path: &Path) -> PathBuf {
    path.with_extension("running")
}

impl Drop for DiskStorage {
    fn drop(&mut self) {
        if self.was_clean && *self.commits.get_mut() == 0 {
            // It is as it was. If the file stays, the next start has more to do.
            let _ = fs::remove_file(running(&self.path));
        }
    }
}

/// Which directory it is, whatever its path.
fn place(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn write_probe(path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    for _ in 0..PROBE_BYTES / PROBE_PIECE.len() as u64 {
        file.write_all(&PROBE_PIECE)?;
    }
    // Some file systems find out only now.
    file.sync_data()
}

/// Disk usage of a directory's files, without subdirectories.
fn blocks_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        match entry?.metadata() {
            Ok(metadata) if metadata.is_file() => bytes += metadata.blocks() * BLOCK_BYTES,
            // A journal that is not needed any more is removed at any time.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(bytes)
}

impl DiskStorage {
    /// The meaning of a write error. A thread of the library that could not write a file closes it,
    /// and the next commit is told only that.
    fn failure(&self, error: &fjall::Error) -> StorageError {
        match error {
            fjall::Error::Poisoned => self.why_closed(),
            _ => failed(error),
        }
    }

    /// Closes it, so that another process can open it. Until [`DiskStorage::open_again`] nothing
    /// can be read or written. If it is [settled](Storage::settle), the library's journals are
    /// emptied: opening would read tens of megabytes that are all in files of tables.
    ///
    /// # Errors
    ///
    /// It is read all the time. Then it is closed soon.
    pub fn close(&self) -> Result<(), StorageError> {
        let open = self.slot.write().unwrap_or_else(PoisonError::into_inner).open.take();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let Some(mut open) = open else { return Ok(()) };
        loop {
            match Arc::try_unwrap(open) {
                // With it the library's lock on the directory ends.
                Ok(open) => {
                    drop(open);
                    let [commits, settled] = [&self.commits, &self.settled];
                    if commits.load(Ordering::SeqCst) == settled.load(Ordering::SeqCst) {
                        // One that is not emptied is read in vain.
                        let _ = journals::empty_all(&self.path);
                    }
                    return Ok(());
                }
                Err(_) if Instant::now() > deadline => {
                    return Err(StorageError::Failed("it is read all the time".into()));
                }
                Err(shared) => open = shared,
            }
            std::thread::sleep(REWRITE_POLL);
        }
    }

    /// Opens it again, if it is closed.
    ///
    /// # Errors
    ///
    /// An error of the library. Then [`Storage::recover`] tries it again.
    pub fn open_again(&self) -> Result<(), StorageError> {
        let mut reopening = self.begin_reopening();
        if self.get_open().is_ok() {
            return Ok(());
        }
        // Another process may have had it, and have ended at any moment.
        let io = |error| failed(&fjall::Error::Io(error));
        let running = running(&self.path);
        self.reopen(running.try_exists().map_err(io)?, &mut reopening)?;
        fs::write(running, "").map_err(io)
    }

    /// Why the library is closed for writes, which it does not say.
    fn why_closed(&self) -> StorageError {
        let probe = self.path.with_extension("probe");
        let written = write_probe(&probe);
        // It is replaced the next time if it stays.
        let _ = fs::remove_file(&probe);
        let error = written.err().unwrap_or_else(|| io::Error::other("a flush has failed"));
        failed(&fjall::Error::Io(error))
    }

    fn begin_reopening(&self) -> MutexGuard<'_, Reopening> {
        self.reopening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where there is no directory, such as after its file system was unmounted, the library would
    /// begin a new one, and ids would be given again.
    fn check_place(&self) -> Result<(), StorageError> {
        let Some(opened) = self.place.get() else { return Ok(()) };
        match fs::metadata(&self.path) {
            Ok(metadata) if place(&metadata) == *opened => Ok(()),
            Ok(_) => Err(StorageError::Failed("its directory has been replaced".into())),
            Err(error) => Err(StorageError::Failed(format!("its directory is not there: {error}"))),
        }
    }

    fn reopen(&self, with_new_journals: bool, _: &mut Reopening) -> Result<(), StorageError> {
        let io = |error| failed(&fjall::Error::Io(error));
        self.check_place()?;
        if with_new_journals {
            // Reads go on if there is no room.
            journals::copy_all(&self.path).map_err(io)?;
        }
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        // The library closes its files with the last handle.
        slot.open = None;
        if slot.last.strong_count() > 0 {
            return Err(StorageError::Failed("it is still being read".into()));
        }
        if with_new_journals {
            journals::replace_all(&self.path).map_err(io)?;
        }
        let database = Database::builder(&self.path)
            .cache_size(self.cache_bytes)
            .manual_journal_persist(true)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .worker_threads(threads())
            .open()
            .map_err(|error| unopened(&error))?;
        if let Some(what) = tables::forgotten(&database).map_err(|error| unopened(&error))? {
            return Err(StorageError::Failed(damaged(&what)));
        }
        let keyspaces = tables::open_all(&database).map_err(|error| unopened(&error))?;
        let open = Arc::new(Open { database, keyspaces });
        *slot = Slot { last: Arc::downgrade(&open), open: Some(open) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_can_have_it_while_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let open = || DiskStorage::open(folder.path(), 1 << 20);
        let write = |value: &str| vec![Write::put(Space::Meta, "key", value)];
        let first = open().unwrap();
        first.commit(&write("first")).unwrap();
        assert!(open().is_err(), "it is open");
        first.close().unwrap();
        assert!(first.get(Space::Meta, b"key").is_err());
        first.check().unwrap_err();
        let second = open().unwrap();
        assert_eq!(second.get(Space::Meta, b"key").unwrap().as_deref(), Some(&b"first"[..]));
        second.commit(&write("second")).unwrap();
        assert!(first.open_again().is_err(), "another has it");
        drop(second);
        first.open_again().unwrap();
        first.open_again().unwrap();
        first.check().unwrap();
        assert_eq!(first.get(Space::Meta, b"key").unwrap().as_deref(), Some(&b"second"[..]));
    }

    #[test]
    fn a_directory_that_was_replaced_is_not_begun_anew() {
        let folder = tempfile::tempdir().expect("a directory");
        let [path, aside] = ["store", "aside"].map(|name| folder.path().join(name));
        let storage = DiskStorage::open(&path, 1 << 20).expect("it opens");
        let write = [Write::put(Space::Meta, "key", "value")];
        storage.commit(&write).expect("it writes");
        storage.sync().expect("it syncs");
        fs::rename(&path, &aside).expect("it is moved");
        storage.recover().expect_err("it is not there");
        assert!(!path.exists());
        fs::create_dir(&path).expect("another one");
        storage.recover().expect_err("it is another one");
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), 0);
        fs::remove_dir(&path).expect("it is empty");
        fs::rename(&aside, &path).expect("it is moved back");
        storage.recover().expect("it is the same one");
        let found = storage.get(Space::Meta, b"key").expect("it can be read");
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
    }

    #[test]
    fn what_it_takes_is_what_is_written_and_not_the_length_of_files() {
        let folder = tempfile::tempdir().expect("a directory");
        let storage = DiskStorage::open(folder.path(), 1 << 20).expect("it opens");
        let empty = storage.bytes().expect("it is counted");
        assert!(empty < 1 << 20, "{empty}");
        // The library compresses what it can.
        let mut random = 1_u64;
        let value: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        })
        .take(4 << 20)
        .collect();
        let written = value.len() as u64;
        let write = Write::put(Space::Messages, "key", value);
        storage.commit(&[write]).expect("it writes");
        storage.sync().expect("it syncs");
        let bytes = storage.bytes().expect("it is counted");
        assert!((written..2 * written).contains(&bytes), "{bytes} bytes");
    }
}
