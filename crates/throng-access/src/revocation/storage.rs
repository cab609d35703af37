//! Where revocations are kept: a file that grows at its end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// The bytes of a log, on a medium that survives a crash.
pub trait Storage {
    /// Everything that is stored.
    ///
    /// # Errors
    ///
    /// What the medium reports.
    fn read(&mut self) -> io::Result<Vec<u8>>;

    /// Adds bytes at the end. They survive a crash once this returns.
    ///
    /// # Errors
    ///
    /// What the medium reports. Then any number of the bytes may have been stored.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Drops everything beyond the first `length` bytes.
    ///
    /// # Errors
    ///
    /// What the medium reports. Then everything may still be there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Replaces everything in one step: after a crash either all old or all new bytes are there.
    ///
    /// # Errors
    ///
    /// What the medium reports. Then the old bytes are there, or, if only making the step permanent
    /// failed, perhaps the new ones.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file of its own. Locked, so that two servers do not write to it.
#[derive(Debug)]
pub struct FileStorage {
    path: PathBuf,
    file: File,
    /// The locked file beside it. `replace` exchanges the file itself, and a lock with it.
    _lock: File,
}

impl FileStorage {
    /// Opens the file, and creates it if it does not exist. Beside it are `PATH.lock`, and for a
    /// moment `PATH.new`.
    ///
    /// # Errors
    ///
    /// What the system reports; [`ErrorKind::WouldBlock`] if another process has the file open.
    pub fn open(path: &Path) -> io::Result<FileStorage> {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(beside(path, "lock"))?;
        lock.try_lock().map_err(io::Error::from)?;
        let file = open(path)?;
        sync_folder(path)?;
        Ok(FileStorage { path: path.to_owned(), file, _lock: lock })
    }
}

impl Storage for FileStorage {
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
    fn a_folder_that_does_not_exist_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FileStorage::open(&folder.path().join("nowhere").join("revocations"));
        assert_eq!(storage.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
