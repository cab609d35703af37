//! Since when something that was erased may be in the store's files, and when those are rewritten.
//!
//! An erasure removes entries of the store, whose files keep what was in them until the store
//! happens to merge them. So the first erasure is noted with its time, in the same commit, and the
//! note is removed once all files have been rewritten. What is erased meanwhile has a note of its
//! own, which takes the first one's place then: its bytes may be in files that were written
//! before.
//!
//! The writer makes all notes, and takes the steps between groups. Another thread asks for a
//! rewriting, makes it, and tells how it went.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::erasure_notes::{ASKED, DONE, ErasureNotes, FAILED, IDLE, RUNNING};
use super::format::{self, Table};
use super::reader::{Logs, unreadable};
use super::writer::Writer;
use crate::storage::{KeyOrder, Space, StorageError, Write};

impl Logs {
    /// When the first message was erased that may be in the store's files, by the machine's clock;
    /// `None` if there is none.
    pub(crate) fn erased_ms(&self) -> Option<u64> {
        Some(self.rewriting.erased_ms.load(Ordering::SeqCst)).filter(|ms| *ms > 0)
    }

    /// True if entries of erased histories are yet to be removed.
    pub(crate) fn has_erased_entries(&self) -> Result<bool, StorageError> {
        let mut has_some = false;
        for table in [Table::Erased, Table::ErasedKeys] {
            let range: (&[u8], &[u8]) = (&[table as u8], &[table as u8 + 1]);
            self.storage.scan(Space::Records, range, KeyOrder::Up, &mut |_, _| {
                has_some = true;
                ControlFlow::Break(())
            })?;
        }
        Ok(has_some)
    }

    /// Asks the writer to let a rewriting begin.
    pub(crate) fn ask_rewriting(&self) {
        self.rewriting.take_step(IDLE, ASKED);
    }

    /// Takes the question back. Returns true if it is too late: the rewriting has begun.
    pub(crate) fn withdraw_rewriting(&self) -> bool {
        self.rewriting.take_step(ASKED, IDLE);
        self.is_rewriting()
    }

    /// True while the files are being rewritten.
    pub(crate) fn is_rewriting(&self) -> bool {
        self.rewriting.is_running()
    }

    /// True while the writer has yet to note that a rewriting is over.
    #[cfg(test)]
    pub(crate) fn rewriting_ends(&self) -> bool {
        [DONE, FAILED].contains(&self.rewriting.step.load(Ordering::SeqCst))
    }

    /// The rewriting is over.
    pub(crate) fn end_rewriting(&self, is_done: bool) {
        let ended = self.rewriting.take_step(RUNNING, if is_done { DONE } else { FAILED });
        debug_assert!(ended, "it is under way");
    }

    /// Reads the notes, and shows the first one to all threads.
    pub(super) fn read_erasures(&self) -> Result<ErasureNotes, StorageError> {
        let read = |key| {
            let value = self.storage.get(Space::Meta, key)?;
            value.map_or(Ok(0), |value| format::number(&value).map_err(unreadable))
        };
        let (first_ms, again_ms) = (read(format::ERASED_MS)?, read(format::ERASED_AGAIN_MS)?);
        self.rewriting.erased_ms.store(first_ms, Ordering::SeqCst);
        Ok(ErasureNotes { first_ms, again_ms })
    }
}

impl Writer {
    /// True while the files are being rewritten. The writer's thread alone has that begin.
    pub(crate) fn is_rewriting(&self) -> bool {
        self.logs.is_rewriting()
    }

    /// Takes the writer's part of a rewriting. No group is under way.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub(crate) fn take_rewriting_step(&mut self) -> Result<(), StorageError> {
        let rewriting = &self.logs.rewriting;
        match rewriting.step.load(Ordering::SeqCst) {
            ASKED => {
                // A note of a rewriting that was not finished is later than the first.
                self.erasures.again_ms = 0;
                rewriting.take_step(ASKED, RUNNING);
            }
            DONE => {
                let again_ms = self.erasures.again_ms;
                let first = match again_ms {
                    0 => Write::remove(Space::Meta, format::ERASED_MS),
                    again_ms => Write::put(Space::Meta, format::ERASED_MS, again_ms.to_be_bytes()),
                };
                let again = Write::remove(Space::Meta, format::ERASED_AGAIN_MS);
                self.logs.storage.commit(&[first, again])?;
                self.erasures = ErasureNotes { first_ms: again_ms, again_ms: 0 };
                rewriting.erased_ms.store(again_ms, Ordering::SeqCst);
                rewriting.take_step(DONE, IDLE);
            }
            FAILED => drop(rewriting.take_step(FAILED, IDLE)),
            _ => {}
        }
        Ok(())
    }
}
