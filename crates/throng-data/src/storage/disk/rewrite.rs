//! Rewrites the files of all tables while others read and write, so that no file has what was
//! replaced or removed before.
//!
//! The library's journals have it, too, and the newest of them is not removed as long as little is
//! written. So it is filled first: a full one is closed with the next flush, and removed when all
//! that it has is in files of tables.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Space, Storage as _, StorageError, Write};
use super::{
    DiskStorage, JOURNAL_BYTES_MAX, Open, REWRITE_TIMEOUT, failed, journals, memtables, tables,
};

/// A key whose value fills journals. It means nothing.
const FILL_KEY: &[u8] = b"fill";

/// How often it looks whether files are gone.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of one such value.
const FILL_BYTES: usize = 1 << 20;

impl DiskStorage {
    /// See the module. Between two tables it stops if `is_ending` says so. Meanwhile the storage
    /// cannot be closed, and tables are not merged otherwise.
    ///
    /// # Errors
    ///
    /// An error of the library, or it was to stop: then files have the old entries as before.
    pub(crate) fn rewrite(&self, is_ending: &dyn Fn() -> bool) -> Result<(), StorageError> {
        let io = |error| failed(&fjall::Error::Io(error));
        let journals = journals::all(&self.path, journals::EXTENSION).map_err(io)?;
        self.fill_journal()?;
        // The library looks for journals that it does not need behind each flush.
        self.until_gone(&journals, |open| self.flush(open))?;
        let files = tables::files(&self.path).map_err(io)?;
        let open = self.get_open()?;
        for keyspace in &open.keyspaces {
            if is_ending() {
                return Err(StorageError::Failed("the server ends".into()));
            }
            keyspace.major_compact().map_err(|error| self.failure(&error))?;
        }
        // A reader of an earlier version keeps its files.
        self.until_gone(&files, |open| {
            memtables::forget_versions(&open.keyspaces);
            Ok(())
        })
    }

    /// Acts until none of these files is there.
    fn until_gone(
        &self,
        files: &[PathBuf],
        act: impl Fn(&Open) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let deadline = Instant::now() + REWRITE_TIMEOUT;
        while files.iter().any(|path| path.try_exists().unwrap_or(true)) {
            if Instant::now() > deadline {
                return Err(StorageError::Failed("earlier files are still being read".into()));
            }
            self.commit(&[Write::remove(Space::Meta, FILL_KEY)])?;
            act(&*self.get_open()?)?;
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Writes as much as the library puts into a journal before it begins another.
    fn fill_journal(&self) -> Result<(), StorageError> {
        // The library compresses each value, so this is noise (Marsaglia's xorshift).
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = Vec::with_capacity(FILL_BYTES);
        while noise.len() < FILL_BYTES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            noise.extend_from_slice(&state.to_le_bytes());
        }
        let write = Write::put(Space::Meta, FILL_KEY, noise);
        for _ in 0..=JOURNAL_BYTES_MAX / FILL_BYTES as u64 {
            self.commit(std::slice::from_ref(&write))?;
        }
        Ok(())
    }
}
