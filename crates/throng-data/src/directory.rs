//! The directory that has everything: for one server at a time, and for nobody else to read.
//!
//! | path | contents |
//! |---|---|
//! | `lock` | nothing: a server that runs holds a lock on it |
//! | `store` | the tables of the [storage](crate::storage) |
//! | `store.running` | nothing: while it is there, the last server has not ended cleanly |
//!
//! Names of channels and users are keys in tables, never parts of paths.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

/// The mode of directories.
const DIRECTORY_MODE: u32 = 0o700;

/// The mode of files.
const FILE_MODE: u32 = 0o600;

const LOCK: &str = "lock";

const STORE: &str = "store";

/// Why a directory cannot be used. The texts follow `the data directory PATH`.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has it.
    #[error("is in use by another server; give each its own")]
    InUse,
    /// It has files, but none of a server.
    #[error("is not empty, and not of Throng; name one that is empty or does not exist")]
    NotOurs,
    /// There is nothing of a server.
    #[error("is not there, or has nothing of Throng in it")]
    Missing,
    /// A process that takes over would have another one.
    #[error("is not the one of the running server; restart instead")]
    Another,
    /// What the system reports.
    #[error("cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// A directory that this process has for itself until it is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: File,
}

impl Directory {
    /// Takes the directory, and creates it if it is not there; its parent must be.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn open(path: &Path) -> Result<Directory, DirectoryError> {
        match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let (lock, store) = (path.join(LOCK), path.join(STORE));
        // Others have files of this name, too. A server that has just begun has no store.
        let is_ours = lock.try_exists()? && store.try_exists()?;
        if !is_ours && has_files(path)? {
            return Err(DirectoryError::NotOurs);
        }
        // What a package or a container made for the server may be open to others.
        fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(lock)?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Takes the directory of a server that does not run.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn open_existing(path: &Path) -> Result<Directory, DirectoryError> {
        if !path.join(STORE).try_exists()? {
            return Err(DirectoryError::Missing);
        }
        Directory::open(path)
    }

    /// Goes on with the lock of another process, which has this directory. Both have it until both
    /// have ended.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn take_over(path: &Path, lock: OwnedFd) -> Result<Directory, DirectoryError> {
        let lock = File::from(lock);
        let its = lock.metadata()?;
        let at_path = match fs::metadata(path.join(LOCK)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DirectoryError::Another);
            }
            found => found?,
        };
        if (at_path.dev(), at_path.ino()) == (its.dev(), its.ino()) {
            Ok(Directory { path: path.to_owned(), lock })
        } else {
            Err(DirectoryError::Another)
        }
    }

    /// The lock, for [`Directory::take_over`].
    ///
    /// # Errors
    ///
    /// The process is short of descriptors.
    pub fn pass(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Where the storage is.
    pub fn store(&self) -> PathBuf {
        self.path.join(STORE)
    }
}

/// Whether anything is there but the lock, which a new file system does not have.
fn has_files(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if name != "lost+found" && name != LOCK {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_is_closed_to_others_and_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let first = Directory::open(&path).unwrap();
        assert_eq!((mode(&path), mode(&path.join(LOCK))), (DIRECTORY_MODE, FILE_MODE));
        assert!(matches!(Directory::open(&path), Err(DirectoryError::InUse)));
        assert!(matches!(Directory::open_existing(&path), Err(DirectoryError::Missing)));
        drop(first);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        // The first one has ended before it had a store.
        let second = Directory::open(&path).unwrap();
        fs::create_dir(second.store()).unwrap();
        fs::write(path.join("revocations"), "").unwrap();
        assert!(matches!(Directory::open_existing(&path), Err(DirectoryError::InUse)));
        drop(second);
        drop(Directory::open(&path).unwrap());
        Directory::open_existing(&path).unwrap();
        assert_eq!(mode(&path), DIRECTORY_MODE);
    }

    #[test]
    fn another_process_goes_on_with_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["data", "other"].map(|name| folder.path().join(name));
        let first = Directory::open(&path).unwrap();
        let take_over = |path: &Path| Directory::take_over(path, first.pass().unwrap());
        assert!(matches!(take_over(&other), Err(DirectoryError::Another)));
        drop(Directory::open(&other).unwrap());
        assert!(matches!(take_over(&other), Err(DirectoryError::Another)));
        let second = take_over(&path).unwrap();
        assert_eq!(second.store(), first.store());
        drop(first);
        assert!(matches!(Directory::open(&path), Err(DirectoryError::InUse)));
        drop(second);
        Directory::open(&path).unwrap();
    }

    #[test]
    fn a_directory_of_others_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("letter"), "dear ann").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(Directory::open(&path), Err(DirectoryError::NotOurs)));
        assert_eq!((mode(&path), fs::read_dir(&path).unwrap().count()), (0o755, 1));
        // As package managers have one.
        fs::write(path.join(LOCK), "").unwrap();
        assert!(matches!(Directory::open(&path), Err(DirectoryError::NotOurs)));
        assert_eq!((mode(&path), fs::read_dir(&path).unwrap().count()), (0o755, 2));
        let none = Directory::open_existing(&folder.path().join("none"));
        assert!(matches!(none, Err(DirectoryError::Missing)));
        assert!(!folder.path().join("none").exists());
        let missing = Directory::open(&folder.path().join("no/data"));
        assert!(matches!(missing, Err(DirectoryError::Io(_))));
        assert!(matches!(Directory::open(&path.join("letter")), Err(DirectoryError::Io(_))));
    }
}
