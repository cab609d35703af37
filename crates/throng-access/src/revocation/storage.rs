//! Where revocations are kept: a file that grows at its end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The bytes of a log, on a medium that survives a crash.
pub trait RevocationStorage {
    /// Everything that is stored.
    ///
    /// # Errors
    ///
    /// An error of the medium.
    fn read(&mut self) -> io::Result<Vec<u8>>;

    /// Adds bytes at the end. They survive a crash once this returns.
    ///
    /// # Errors
    ///
    /// An error of the medium. Then any number of the bytes may have been stored.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Drops everything beyond the first `length` bytes.
    ///
    /// # Errors
    ///
    /// An error of the medium. Then everything may still be there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Replaces everything in one step: after a crash either all old or all new bytes are there.
    ///
    /// # Errors
    ///
    /// An error of the medium. Then the old bytes are there, or, if only making the step permanent
    /// failed, perhaps the new ones.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file of its own. Locked, so that two servers do not write to it.
#[derive(Debug)]
pub struct FileStorage {
    path: PathBuf,
    file: File,
    /// The locked file beside it. `replace` exchanges the file itself, and a lock with it.
    lock: File,
}

impl FileStorage {
    /// Opens the file, and creates it if it does not exist. Beside it are `PATH.lock`, and for a
    /// moment `PATH.new`.
    ///
    /// # Errors
    ///
    /// An error of the system; [`ErrorKind::WouldBlock`] if another process has the file open.
    pub fn open(path: &Path) -> io::Result<FileStorage> {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(beside(path, "lock"))?;
        lock.try_lock().map_err(io::Error::from)?;
        let file = open(path)?;
        sync_folder(path)?;
        Ok(FileStorage { path: path.to_owned(), file, lock })
    }
}

/// An open file with its lock, on the way to another process. Both processes have the lock until
/// both have closed it.
#[derive(Debug)]
pub struct PassedFile {
    file: OwnedFd,
    lock: OwnedFd,
}

impl PassedFile {
    /// From the descriptors of [`PassedFile::descriptors`].
    pub fn new([file, lock]: [OwnedFd; 2]) -> PassedFile {
        PassedFile { file, lock }
    }

    /// The descriptors to send.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.file.as_fd(), self.lock.as_fd()]
    }
}

impl FileStorage {
    /// Copies for another process. Only one of the two may write.
    ///
    /// # Errors
    ///
    /// The process is short of descriptors.
    pub fn pass(&self) -> io::Result<PassedFile> {
        let copy = |file: &File| file.as_fd().try_clone_to_owned();
        Ok(PassedFile { file: copy(&self.file)?, lock: copy(&self.lock)? })
    }

    /// The file that another process has passed, if it is the one at this path; otherwise `None`.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub fn take_over(path: &Path, passed: PassedFile) -> io::Result<Option<FileStorage>> {
        let (file, lock) = (File::from(passed.file), File::from(passed.lock));
        let at_path = match std::fs::metadata(beside(path, "lock")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        let its = lock.metadata()?;
        let is_same = (at_path.dev(), at_path.ino()) == (its.dev(), its.ino());
        Ok(is_same.then(|| FileStorage { path: path.to_owned(), file, lock }))
    }
}

impl RevocationStorage for FileStorage {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = beside(&self.path, "new");
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.path)?;
        self.file = file;
        sync_folder(&self.path)
    }
}

/// Opens a file for reading and for writing at its end, whatever else was read in between.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).append(true).open(path)
}

/// Makes the names of a file's folder permanent.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_what_is_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revocations");
        let mut storage = FileStorage::open(&path).unwrap();
        assert_eq!(storage.read().unwrap(), b"");
        storage.append(b"one").unwrap();
        storage.append(b"two").unwrap();
        assert_eq!(storage.read().unwrap(), b"onetwo");
        storage.truncate(4).unwrap();
        storage.append(b"!").unwrap();
        drop(storage);
        assert_eq!(FileStorage::open(&path).unwrap().read().unwrap(), b"onet!");
    }

    #[test]
    fn a_replaced_file_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revocations");
        std::fs::write(beside(&path, "new"), "left over by a crash").unwrap();
        let mut storage = FileStorage::open(&path).unwrap();
        storage.append(b"old").unwrap();
        storage.replace(b"new").unwrap();
        storage.append(b" and more").unwrap();
        assert_eq!(storage.read().unwrap(), b"new and more");
        assert_eq!(std::fs::read(&path).unwrap(), b"new and more");
        assert!(!beside(&path, "new").exists());
    }

    #[test]
    fn a_file_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revocations");
        let mut first = FileStorage::open(&path).unwrap();
        first.replace(b"x").unwrap();
        let second = FileStorage::open(&path);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(first);
        assert!(FileStorage::open(&path).is_ok());
    }

    #[test]
    fn another_process_goes_on_with_the_file_and_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let [path, elsewhere] = ["revocations", "others"].map(|name| folder.path().join(name));
        let mut first = FileStorage::open(&path).unwrap();
        first.replace(b"one").unwrap();
        first.append(b"two").unwrap();
        let passed = || first.pass().unwrap();
        assert!(FileStorage::take_over(&elsewhere, passed()).unwrap().is_none());
        drop(FileStorage::open(&elsewhere).unwrap());
        assert!(FileStorage::take_over(&elsewhere, passed()).unwrap().is_none());
        let mut second = FileStorage::take_over(&path, passed()).unwrap().unwrap();
        drop(first);
        assert_eq!(second.read().unwrap(), b"onetwo");
        second.append(b"three").unwrap();
        let third = FileStorage::open(&path);
        assert_eq!(third.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(second);
        assert_eq!(FileStorage::open(&path).unwrap().read().unwrap(), b"onetwothree");
    }

    #[test]
    fn a_folder_that_does_not_exist_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FileStorage::open(&folder.path().join("nowhere").join("revocations"));
        assert_eq!(storage.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
