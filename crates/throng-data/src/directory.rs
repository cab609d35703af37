//! The directory that has everything: for one server at a time, and for nobody else to read.
//!
//! | path | contents |
//! |---|---|
//! | `format` | `throng data` and the number of the format of all that is here, in a line |
//! | `lock` | nothing: a server that runs holds a lock on it |
//! | `store` | the tables of the [storage](crate::storage) |
//! | `store.running` | nothing: while it is there, the last server has not ended cleanly |
//! | `store.part` | the tables of a backup that is not complete |
//! | `revocations` | the file of revocations, which this crate does not read |
//!
//! Names of channels and users are keys in tables, never parts of paths.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

const DIRECTORY_MODE: u32 = 0o700;

const FILE_MODE: u32 = 0o600;

const LOCK: &str = "lock";

const STORE: &str = "store";

/// The file with [`FORMAT`]. It is read before the storage, which changes when it is opened.
const FORMAT_FILE: &str = "format";

/// [`FORMAT_FILE`] while it is written.
const FORMAT_PART: &str = "format.part";

/// The text before the number in [`FORMAT_FILE`].
const FORMAT_MARK: &str = "throng data ";

/// The format that is written: of the files, and of the keys and values in the tables.
pub const FORMAT: u32 = 6;

/// The oldest format that is read. What the later ones add is missing in it: attributes of messages
/// before 2, records of logs and notes of erased messages before 3, states before 4,
/// counts of notices and of erased messages before 5, publishers of values and creations before 6.
const FORMAT_OLDEST: u32 = 1;

/// Bytes of [`FORMAT_FILE`] that are read.
const FORMAT_BYTES_MAX: u64 = 32;

/// The storage of a copy while it is written.
const PART: &str = "store.part";

/// The file of revocations.
pub const REVOCATIONS: &str = "revocations";

/// Files of a copy before it is complete.
const OF_INCOMPLETE: [&str; 7] =
    [LOCK, PART, FORMAT_FILE, FORMAT_PART, "store.running", "store.probe", REVOCATIONS];

/// Why a directory cannot be used. The texts follow `the data directory PATH`.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has it.
    #[error("is in use by another server; give each its own")]
    InUse,
    /// It has files, but none of a server.
    #[error("is not empty, and not of Throng; name one that is empty or does not exist")]
    NotOurs,
    /// It has no number of a format, as builds from before version 0.1.0 left it.
    #[error(
        "is of a build of Throng from before version 0.1.0, which this version does not read; \
         name an empty directory, or export its messages with that build first"
    )]
    Unreleased,
    /// A later version wrote it.
    #[error(
        "has format {0}, and this version reads up to format {FORMAT}; use the version of Throng \
         that wrote it"
    )]
    Newer(u32),
    /// There is no room for a copy beside what is there.
    #[error("has data of Throng already; name one that is empty or does not exist")]
    NotEmpty,
    /// It has what the end of a process has left of a copy.
    #[error("has nothing but a backup that was not completed; remove it")]
    Incomplete,
    /// A copy would be among the files of what is copied.
    #[error("is the data directory of the server, or is inside it; name one elsewhere")]
    Inside,
    /// There is nothing of a server.
    #[error("is not there, or has nothing of Throng in it")]
    Missing,
    /// The directory that it would be in is not there.
    #[error("cannot be made, because the directory that it would be in does not exist; make that")]
    NoParent,
    /// Its mode cannot be set.
    #[error("belongs to another user; make the server's user its owner")]
    NotOwned,
    /// A process that takes over would have another one.
    #[error("is not the one of the running server; restart instead")]
    Another,
    #[error("cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// A directory that this process has for itself until it is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: File,
    is_new: bool,
}

impl Directory {
    /// Takes the directory, and creates it if it is not there; its parent must be.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn open(path: &Path) -> Result<Directory, DirectoryError> {
        let directory = Directory::take(path)?;
        if !has_format(path)? {
            directory.note_format()?;
        }
        Ok(directory)
    }

    /// Takes the directory, and creates it if it is not there. Nothing is changed in one that has
    /// files of anybody else.
    fn take(path: &Path) -> Result<Directory, DirectoryError> {
        let is_new = match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(of_parent(error)),
        };
        let lock = path.join(LOCK);
        if is_incomplete(path)? {
            return Err(DirectoryError::Incomplete);
        }
        if !has_format(path)? && has_files(path)? {
            let is_unreleased = lock.try_exists()? && path.join(STORE).try_exists()?;
            return Err(if is_unreleased {
                DirectoryError::Unreleased
            } else {
                DirectoryError::NotOurs
            });
        }
        // Packages and containers may make the directory with access for others.
        fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE)).map_err(|error| {
            match error.kind() {
                // EPERM: only its owner may.
                ErrorKind::PermissionDenied => DirectoryError::NotOwned,
                _ => error.into(),
            }
        })?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(lock)?;
        take(&lock)?;
        Ok(Directory { path: path.to_owned(), lock, is_new })
    }

    /// Notes durably that this version writes: the one before does not read it any more. Comes
    /// before the first write; a directory that is only read keeps its format.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub fn note_format(&self) -> io::Result<()> {
        let path = self.path.join(FORMAT_FILE);
        let noted = format!("{FORMAT_MARK}{FORMAT}\n");
        if fs::read(&path).is_ok_and(|known| known == noted.as_bytes()) {
            return Ok(());
        }
        let part = self.path.join(FORMAT_PART);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(FILE_MODE)
            .open(&part)?;
        file.write_all(noted.as_bytes())?;
        file.sync_all()?;
        fs::rename(part, path)?;
        File::open(&self.path)?.sync_all()
    }

    /// Takes the directory of a server that does not run.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn open_existing(path: &Path) -> Result<Directory, DirectoryError> {
        if !path.join(STORE).try_exists()? {
            return Err(if is_incomplete(path)? {
                DirectoryError::Incomplete
            } else {
                DirectoryError::Missing
            });
        }
        Directory::open(path)
    }

    /// Takes a directory for a copy of the one at `data`, which has nothing in it or is not there.
    /// It is of use to others once it is [complete](Directory::complete).
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn create(path: &Path, data: &Path) -> Result<Directory, DirectoryError> {
        // The library removes what it does not know, or does not open.
        if is_inside(path, data)? {
            return Err(DirectoryError::Inside);
        }
        if path.join(STORE).try_exists()? {
            return Err(DirectoryError::NotEmpty);
        }
        Directory::take(path)
    }

    /// Gives the storage of a copy its name, durably.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub fn complete(&self) -> io::Result<()> {
        self.note_format()?;
        fs::rename(self.incomplete_store(), self.store())?;
        let directory = File::open(&self.path)?;
        directory.sync_all()?;
        if !self.is_new {
            return Ok(());
        }
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_entry(&directory, File::open(parent.unwrap_or(Path::new("."))))
    }

    /// Removes all of a copy that is not complete, and the directory itself if it was made here.
    ///
    /// # Errors
    ///
    /// An error of the system. Then something is left.
    pub fn discard(self) -> io::Result<()> {
        if self.is_new {
            return fs::remove_dir_all(&self.path);
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true if [PART, STORE].iter().any(|name| entry.file_name() == *name) => {
                    fs::remove_dir_all(entry.path())?
                }
                true => {}
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
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
        if (at_path.dev(), at_path.ino()) != (its.dev(), its.ino()) {
            return Err(DirectoryError::Another);
        }
        if !has_format(path)? {
            return Err(DirectoryError::Unreleased);
        }
        Ok(Directory { path: path.to_owned(), lock, is_new: false })
    }

    /// The lock, for [`Directory::take_over`].
    ///
    /// # Errors
    ///
    /// The process is short of descriptors.
    pub fn pass(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Where the storage of a copy is until it is complete.
    pub(crate) fn incomplete_store(&self) -> PathBuf {
        self.path.join(PART)
    }

    /// Where the storage is.
    pub fn store(&self) -> PathBuf {
        self.path.join(STORE)
    }
}

/// True if the directory has a format that this version reads; false if it has none.
fn has_format(path: &Path) -> Result<bool, DirectoryError> {
    let file = match File::open(path.join(FORMAT_FILE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FORMAT_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let number = text.strip_prefix(FORMAT_MARK).and_then(|number| number.trim_end().parse().ok());
    match number {
        Some(FORMAT_OLDEST..=FORMAT) => Ok(true),
        Some(newer) if newer > FORMAT => Err(DirectoryError::Newer(newer)),
        _ => Err(DirectoryError::NotOurs),
    }
}

/// Takes the lock of a directory.
fn take(lock: &File) -> Result<(), DirectoryError> {
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Syncs the entry of a new directory in its parent. One who may make a directory there may not be
/// allowed to read the parent: then the whole file system is synced.
fn sync_entry(directory: &File, parent: io::Result<File>) -> io::Result<()> {
    match parent {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Ok(rustix::fs::syncfs(directory)?)
        }
        parent => parent?.sync_all(),
    }
}

/// Why nothing can be made in a directory.
fn of_parent(error: io::Error) -> DirectoryError {
    match error.kind() {
        ErrorKind::NotFound => DirectoryError::NoParent,
        _ => error.into(),
    }
}

/// Whether `path`, which need not be there, is the directory `data` or inside it.
fn is_inside(path: &Path, data: &Path) -> Result<bool, DirectoryError> {
    let place = match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path);
            parent.canonicalize().map_err(of_parent)?
        }
        place => place?,
    };
    Ok(place.starts_with(data.canonicalize()?))
}

/// Whether a directory has nothing but what a process has left of a copy that it was writing.
///
/// # Errors
///
/// A process still writes it.
fn is_incomplete(path: &Path) -> Result<bool, DirectoryError> {
    if !path.join(PART).try_exists()? {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if name != "lost+found" && !OF_INCOMPLETE.iter().any(|known| name == *known) {
            return Ok(false);
        }
    }
    match OpenOptions::new().write(true).open(path.join(LOCK)) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        lock => take(&lock?)?,
    }
    Ok(true)
}

/// Whether anything is there but what a new file system or a server that has just begun has.
fn has_files(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !["lost+found", LOCK, FORMAT_PART].iter().any(|known| name == *known) {
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
    fn a_directory_is_made_in_one_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let nowhere = folder.path().join("missing/data");
        for refused in [Directory::open(&nowhere), Directory::create(&nowhere, &data)] {
            assert!(matches!(refused, Err(DirectoryError::NoParent)), "{refused:?}");
        }
        assert!(!nowhere.parent().unwrap().exists());
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
    fn what_is_left_of_a_copy_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [data, path] = ["data", "backup"].map(|name| folder.path().join(name));
        drop(Directory::open(&data).unwrap());
        let copy = Directory::create(&path, &data).unwrap();
        fs::create_dir(copy.incomplete_store()).unwrap();
        fs::write(path.join("store.running"), "").unwrap();
        fs::write(path.join(REVOCATIONS), "").unwrap();
        assert!(matches!(Directory::create(&path, &data), Err(DirectoryError::InUse)));
        drop(copy);
        let refused = [
            Directory::create(&path, &data),
            Directory::open(&path),
            Directory::open_existing(&path),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(DirectoryError::Incomplete)), "{refused:?}");
        }
        fs::write(path.join("letter"), "dear ann").unwrap();
        assert!(matches!(Directory::create(&path, &data), Err(DirectoryError::NotOurs)));
    }

    #[test]
    fn a_directory_of_another_format_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let data = Directory::open(&path).unwrap();
        fs::create_dir(data.store()).unwrap();
        let lock = data.pass().unwrap();
        drop(data);
        let format = path.join(FORMAT_FILE);
        assert_eq!(fs::read_to_string(&format).unwrap(), "throng data 6\n");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let refused = || {
            let refused = Directory::open(&path).unwrap_err().to_string();
            for again in [
                Directory::open_existing(&path),
                Directory::take_over(&path, lock.try_clone().unwrap()),
            ] {
                assert_eq!(again.unwrap_err().to_string(), refused);
            }
            assert_eq!(mode(&path), 0o755);
            refused
        };
        fs::write(&format, "throng data 7\n").unwrap();
        let newer = "has format 7, and this version reads up to format 6; ";
        assert!(refused().starts_with(newer));
        for foreign in ["throng data 0\n", "throng data\n", "", "anything"] {
            fs::write(&format, foreign).unwrap();
            assert!(refused().starts_with("is not empty, and not of Throng"), "{foreign}");
        }
        fs::remove_file(&format).unwrap();
        let unreleased = "is of a build of Throng from before version 0.1.0, which this version ";
        assert!(refused().starts_with(unreleased));
        let mut left: Vec<_> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [LOCK, STORE]);
    }

    #[test]
    fn a_format_before_is_read_and_kept_until_something_is_written() {
        for before in [1, 2, 3, 4, 5].map(|format| format!("throng data {format}\n")) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("data");
            let data = Directory::open(&path).unwrap();
            fs::create_dir(data.store()).unwrap();
            let lock = data.pass().unwrap();
            drop(data);
            let format = path.join(FORMAT_FILE);
            fs::write(&format, &before).unwrap();
            let successor = Directory::take_over(&path, lock).unwrap();
            assert_eq!(fs::read_to_string(&format).unwrap(), before);
            drop(successor);
            let data = Directory::open_existing(&path).unwrap();
            assert_eq!(fs::read_to_string(&format).unwrap(), before);
            data.note_format().unwrap();
            assert_eq!(fs::read_to_string(&format).unwrap(), "throng data 6\n");
        }
    }

    #[test]
    fn a_copy_is_outside_of_what_it_copies() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let inside = Directory::open(&data).unwrap().store().join("keyspaces");
        fs::create_dir_all(&inside).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&inside, &link).unwrap();
        fs::create_dir(inside.join("empty")).unwrap();
        let refused =
            [data.join("new"), inside.join("new"), inside.join("empty"), link.join("new"), link];
        for path in refused {
            let refused = Directory::create(&path, &data);
            assert!(matches!(refused, Err(DirectoryError::Inside)), "{path:?}: {refused:?}");
        }
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
        // It begins with the same letters, and is beside it.
        Directory::create(&folder.path().join("data-copy"), &data).unwrap();
    }

    #[test]
    fn a_parent_that_may_not_be_read_does_not_fail_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        sync_entry(&directory, File::open(folder.path())).unwrap();
        sync_entry(&directory, Err(ErrorKind::PermissionDenied.into())).unwrap();
        sync_entry(&directory, Err(ErrorKind::NotFound.into())).unwrap_err();
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
        assert!(matches!(Directory::open(&path.join("letter")), Err(DirectoryError::Io(_))));
    }
}
