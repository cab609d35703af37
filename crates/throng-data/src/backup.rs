//! A copy of the directory, made while a server runs.
//!
//! The copy is a directory of its own. Its storage has its name only when it is whole, so that what
//! an end at any other moment leaves is no data directory. It says of itself that it is an older
//! copy: the server that starts on it gives no id again.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::directory::{Directory, DirectoryError};
use crate::logs::Logs;
pub use crate::storage::disk::copy::Copied;
use crate::storage::disk::{DiskStorage, JOURNAL_BYTES_MAX, copy};
use crate::storage::{Storage as _, StorageError};

/// The room that a backup leaves, as it may be on the disk of the data: what the library's journals
/// take. A server whose disk is full refuses messages.
const ROOM_LEFT_BYTES: u64 = JOURNAL_BYTES_MAX;

/// Why there is no backup. The texts follow `the backup DIRECTORY`.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The directory cannot be used.
    #[error("{0}")]
    Directory(#[from] DirectoryError),
    /// Its file system has little room. A backup takes what the data takes, or less.
    #[error(
        "needs {} MiB of room, as much as the data takes and {} MiB more, and its file system has \
         {} MiB; make room, or name a directory on another one",
        .needed_bytes.div_ceil(1 << 20),
        ROOM_LEFT_BYTES >> 20,
        .free_bytes >> 20
    )]
    NoRoom {
        /// Required free space.
        needed_bytes: u64,
        /// Available space.
        free_bytes: u64,
    },
    /// One of the two storages fails, or it was stopped.
    #[error("was not made: {0}")]
    Storage(#[from] StorageError),
    /// A file beside the storage cannot be written, or something cannot be synced.
    #[error("was not made: {0}")]
    Io(io::Error),
}

/// Copies the present contents of a data directory's `storage` to the directory `path`, which must
/// be empty or missing. Calls `beside` to write the files beside the storage, and `each` every some
/// thousand entries and between the last steps, until it breaks.
///
/// # Errors
///
/// Why there is no backup. Then nothing is left of it.
pub fn back_up(
    storage: &DiskStorage,
    path: &Path,
    beside: impl FnOnce(&Path) -> io::Result<()>,
    each: &mut dyn FnMut(&Copied) -> ControlFlow<()>,
) -> Result<Copied, BackupError> {
    back_up_with_room(storage, path, free_bytes, beside, each)
}

/// Free space on the file system of `path` for a process of this user.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let room = rustix::fs::statvfs(path)?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

fn back_up_with_room(
    storage: &DiskStorage,
    path: &Path,
    free_bytes: impl FnOnce(&Path) -> io::Result<u64>,
    beside: impl FnOnce(&Path) -> io::Result<()>,
    each: &mut dyn FnMut(&Copied) -> ControlFlow<()>,
) -> Result<Copied, BackupError> {
    let data = storage.path().parent().unwrap_or(storage.path());
    let directory = Directory::create(path, data)?;
    let room = free_bytes(path).map_err(BackupError::Io);
    let room = room.and_then(|free_bytes| check_room(storage, free_bytes));
    let filled = room.and_then(|()| fill(storage, &directory, each)).and_then(|copied| {
        go_on(&copied, each)?;
        beside(path).map_err(BackupError::Io)?;
        go_on(&copied, each)?;
        directory.complete().map_err(BackupError::Io)?;
        Ok(copied)
    });
    if filled.is_err() {
        // The error is reported; leftovers are visible.
        let _ = directory.discard();
    }
    filled
}

fn check_room(storage: &DiskStorage, free_bytes: u64) -> Result<(), BackupError> {
    let needed_bytes = storage.bytes()?.saturating_add(ROOM_LEFT_BYTES);
    if free_bytes < needed_bytes {
        return Err(BackupError::NoRoom { needed_bytes, free_bytes });
    }
    Ok(())
}

fn go_on(
    copied: &Copied,
    each: &mut dyn FnMut(&Copied) -> ControlFlow<()>,
) -> Result<(), BackupError> {
    if each(copied).is_break() { Err(copy::stopped().into()) } else { Ok(()) }
}

fn fill(
    storage: &DiskStorage,
    directory: &Directory,
    each: &mut dyn FnMut(&Copied) -> ControlFlow<()>,
) -> Result<Copied, BackupError> {
    let (copy, copied) = storage.copy_to(&directory.incomplete_store(), each)?;
    let copy = Arc::new(copy);
    Logs::at_rest(Arc::clone(&copy) as _)?.note_restored()?;
    go_on(&copied, each)?;
    copy.settle()?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::sync_policy::SyncPolicy;

    fn run(storage: &DiskStorage, path: &Path) -> Result<Copied, BackupError> {
        let beside = |path: &Path| fs::write(path.join("beside"), "all of it");
        back_up(storage, path, beside, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn a_backup_is_a_directory_that_says_it_is_older() {
        let folder = tempfile::tempdir().expect("a directory");
        let first = Directory::open(&folder.path().join("data")).expect("it is new");
        let storage = DiskStorage::open(&first.store(), 1 << 20).expect("it opens");
        let storage = Arc::new(storage);
        let (logs, opened) = Logs::open(Arc::clone(&storage) as _, "boot").expect("it opens");
        let logs = Arc::new(logs);
        let begun = crate::logs::Writer::begin(&logs, SyncPolicy::Always, opened.stamps);
        let _running = begun.expect("it writes");
        let path = folder.path().join("backup");
        let copied = run(&storage, &path).expect("it is made");
        assert!(copied.entries > 0, "{copied:?}");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o700);
        assert_eq!(fs::read(path.join("beside")).expect("it is there"), b"all of it");
        let copy = Directory::open_existing(&path).expect("it is a directory of a server");
        let storage_of_copy = DiskStorage::open(&copy.store(), 1 << 20).expect("it opens");
        let (_, opened) = Logs::open(Arc::new(storage_of_copy), "boot").expect("it opens");
        assert!(opened.is_restored && opened.epoch != logs.epoch(), "{opened:?}");
        drop(copy);
        let before = fs::read_dir(&path).expect("it is there").count();
        let Err(BackupError::Directory(again)) = run(&storage, &path) else {
            panic!("it has a backup");
        };
        assert!(again.to_string().contains("has data of Throng already"), "{again}");
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), before);
    }

    #[test]
    fn a_disk_with_little_room_is_not_filled() {
        let folder = tempfile::tempdir().expect("a directory");
        let data = Directory::open(&folder.path().join("data")).expect("it is new");
        let storage = DiskStorage::open(&data.store(), 1 << 20).expect("it opens");
        let path = folder.path().join("backup");
        let run = |free: u64| {
            let each = &mut |_: &Copied| ControlFlow::Continue(());
            back_up_with_room(&storage, &path, |_| Ok(free), |_| Ok(()), each)
        };
        let needed = storage.bytes().expect("it is counted") + ROOM_LEFT_BYTES;
        let refused = run(10 << 20).expect_err("there is little room");
        assert!(matches!(refused, BackupError::NoRoom { .. }) && !path.exists(), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("and 64 MiB more, and its file system has 10 MiB;"), "{text}");
        run(needed).expect("there is room");
        assert!(free_bytes(&path).expect("it is there") > 0);
    }

    #[test]
    fn nothing_is_left_of_a_backup_that_is_stopped() {
        let folder = tempfile::tempdir().expect("a directory");
        let data = Directory::open(&folder.path().join("data")).expect("it is new");
        let storage = DiskStorage::open(&data.store(), 1 << 20).expect("it opens");
        let write = crate::storage::Write::put(crate::storage::Space::Meta, "key", "value");
        storage.commit(&[write]).expect("it writes");
        let stop =
            |path: &Path| back_up(&storage, path, |_| Ok(()), &mut |_| ControlFlow::Break(()));
        let [none, empty] = ["none", "empty"].map(|name| folder.path().join(name));
        fs::create_dir(&empty).expect("it is made");
        assert!(matches!(stop(&none), Err(BackupError::Storage(_))));
        assert!(matches!(stop(&empty), Err(BackupError::Storage(_))));
        assert!(!none.exists());
        assert_eq!(fs::read_dir(&empty).expect("it is there").count(), 0);
        let beside = |_: &Path| Err(io::Error::other("the disk fails"));
        let failed = back_up(&storage, &none, beside, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(failed, Err(BackupError::Io(_))) && !none.exists(), "{failed:?}");
        // In each of its last steps, too.
        let steps = (0..).find(|&steps| {
            let mut left = steps;
            let mut each = |_: &Copied| {
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            };
            let is_made = back_up(&storage, &none, |_| Ok(()), &mut each).is_ok();
            assert_eq!(none.exists(), is_made, "{steps}");
            is_made
        });
        // After its entry, before it is settled, before what is beside it, before it is complete.
        assert_eq!(steps, Some(4));
        // The rest of a killed process is no data directory.
        fs::create_dir(empty.join("store.part")).expect("it is made");
        assert!(matches!(
            run(&storage, &empty),
            Err(BackupError::Directory(DirectoryError::Incomplete))
        ));
        assert!(matches!(Directory::open(&empty), Err(DirectoryError::Incomplete)));
    }
}
