//! Reading everything there is, while no server does: what the commands for the directory need.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use throng_core::records::Table;
use throng_core::{Content, Epoch};

use super::erased::ErasedOf;
use super::format;
use super::reader::{Logs, unreadable};
use super::room::Room;
use crate::storage::{Each, KeyOrder, Space, Storage, StorageError, Write};

/// Beyond all keys of any table.
pub(super) const END: &[u8] = &[u8::MAX];

impl Logs {
    /// Opens the logs of a storage as the last run has left them. Nobody may write to them.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn at_rest(storage: Arc<dyn Storage>) -> Result<Logs, StorageError> {
        let epoch = storage.get(Space::Meta, format::EPOCH)?;
        let epoch = epoch.map(|value| format::epoch(&value)).transpose().map_err(unreadable)?;
        // Without one there is no message.
        let epoch = epoch.unwrap_or_else(Epoch::random);
        let (unacknowledged, mark) = (Mutex::default(), Mutex::new(Logs::read_mark(&*storage)?));
        let (boot, acknowledged, retries, rewriting) = Default::default();
        let room = Room::read(&*storage)?;
        Ok(Logs {
            storage,
            epoch,
            boot,
            unacknowledged,
            acknowledged,
            retries,
            mark,
            rewriting,
            room,
        })
    }

    /// Notes that the storage is an older copy that was put back: the next run begins a new epoch,
    /// as ids of this one were given to messages that are not in the copy.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn note_restored(&self) -> Result<(), StorageError> {
        self.storage.commit(&[Write::put(Space::Meta, format::RUN, format::RESTORED)])?;
        self.storage.sync()
    }

    /// Visits all messages, each channel's in their order, until `each` breaks.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn visit_all(
        &self,
        each: &mut dyn FnMut(Content) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let mut broken = None;
        let mut erased = ErasedOf::default();
        let mut visit = |key: &[u8], value: &[u8]| {
            let content = format::message_of(key).map_err(unreadable).and_then(|(name, offset)| {
                let is_erased = erased.contains(self, &name, offset)?;
                let content = || format::content(value, self.epoch, &name).map_err(unreadable);
                (!is_erased).then(content).transpose()
            });
            match content {
                Ok(content) => content.map_or(ControlFlow::Continue(()), &mut *each),
                Err(error) => {
                    broken = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        self.storage.scan(Space::Messages, (&[], END), KeyOrder::Up, &mut visit)?;
        broken.map_or(Ok(()), Err)
    }

    /// Visits the entries of a table of other state from a key on, until `each` breaks.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn visit_records(
        &self,
        table: Table,
        from: &[u8],
        each: Each<'_>,
    ) -> Result<(), StorageError> {
        let (from, to) = ([&[table as u8], from].concat(), [table as u8 + 1]);
        let mut visit = |key: &[u8], value: &[u8]| each(&key[1..], value);
        self.storage.scan(Space::Records, (&from, &to), KeyOrder::Up, &mut visit)
    }
}
