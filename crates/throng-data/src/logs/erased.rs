//! Messages of erased histories. They are beyond the bounds of their logs, so nobody can read them
//! any more, and are removed some at a time, also after a restart: a note in [`Space::Records`]
//! says which are left.

use std::ops::{ControlFlow, RangeInclusive};

use throng_core::{ChannelName, Charges, KeyQuery};

use super::format::{self, Table};
use super::group::TRIMMED_PER_COMMIT;
use super::reader::Logs;
use super::state_rows as rows;
use super::writer::Writer;
use crate::storage::{KeyOrder, Space, StorageError, Write};

/// The erased messages of the channel whose messages are read now that are yet to be removed.
#[derive(Default)]
pub(super) struct ErasedOf {
    channel: Option<ChannelName>,
    offsets: Vec<RangeInclusive<u64>>,
}

impl ErasedOf {
    /// True if a message is erased.
    pub(super) fn contains(
        &mut self,
        logs: &Logs,
        name: &ChannelName,
        offset: u64,
    ) -> Result<bool, StorageError> {
        if self.channel.as_ref() != Some(name) {
            let offsets = logs.erased(name)?;
            *self = ErasedOf { channel: Some(name.clone()), offsets };
        }
        Ok(self.offsets.iter().any(|offsets| offsets.contains(&offset)))
    }
}

impl Logs {
    /// Removes some messages of erased histories. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn remove_erased(&self) -> Result<bool, StorageError> {
        let mut noted = None;
        let range: (&[u8], &[u8]) = (&[Table::Erased as u8], &[Table::Erased as u8 + 1]);
        self.storage.scan(Space::Records, range, KeyOrder::Up, &mut |key, value| {
            noted = Some((key.to_vec(), format::erased_of(key, value)));
            ControlFlow::Break(())
        })?;
        let Some((key, noted)) = noted else { return self.remove_erased_keys() };
        let mut writes = vec![Write::remove(Space::Records, key)];
        // Of a note that cannot be read messages stay, which a check reports.
        if let Ok((name, all)) = noted {
            let range = (format::message(&name, *all.start()), format::message_end(&name, &all));
            let mut last = None;
            self.storage.scan(
                Space::Messages,
                (&range.0, &range.1),
                KeyOrder::Up,
                &mut |key, _| {
                    writes.push(Write::remove(Space::Messages, key));
                    last = Some(format::message_of(key));
                    if writes.len() <= TRIMMED_PER_COMMIT {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                },
            )?;
            if let Some(Ok((_, last))) = last.filter(|_| writes.len() > TRIMMED_PER_COMMIT)
                && last < *all.end()
            {
                let left = format::erased(&name, last + 1);
                writes.push(Write::put(Space::Records, left, all.end().to_be_bytes()));
            }
        }
        self.storage.commit(&writes)?;
        Ok(true)
    }

    /// Removes some entries of the keys of erased histories. Returns whether there may be more.
    fn remove_erased_keys(&self) -> Result<bool, StorageError> {
        let table = [Table::ErasedKeys as u8];
        let range: (&[u8], &[u8]) = (&table, &[Table::ErasedKeys as u8 + 1]);
        let mut noted = None;
        self.storage.scan(Space::Records, range, KeyOrder::Up, &mut |key, value| {
            noted = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        })?;
        let Some((note, value)) = noted else { return Ok(false) };
        let mut writes = vec![Write::remove(Space::Records, &*note)];
        let mut charges = Charges::default();
        let read = format::name_of(&note[1..]).and_then(|name| {
            let (last, key) = format::erased_keys_of(&value)?;
            Ok((name, last, rows::text(key)?))
        });
        // Of a note that cannot be read entries stay: they are passed over.
        if let Ok((name, last, from)) = read {
            let query = KeyQuery {
                prefix: "".into(),
                after: Some(from),
                limit: usize::MAX,
                is_of_one: false,
            };
            let (mut visited, mut reached) = (0, None);
            self.visit_keys(&name, &query, &mut |key, row| {
                if row.offset <= last {
                    row.remove(&name, &key, &mut writes);
                    let (holder, bytes) = row.charge();
                    charges.add(holder, -bytes);
                }
                visited += 1;
                reached = Some(key);
                if visited < TRIMMED_PER_COMMIT {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            if let Some(reached) = reached.filter(|_| visited == TRIMMED_PER_COMMIT) {
                let left = format::erased_keys(last, reached.as_bytes());
                writes.push(Write::put(Space::Records, note, left));
            }
        }
        let held = self.room.write(charges.drain(), &mut writes);
        self.storage.commit(&writes)?;
        self.room.note(held);
        Ok(true)
    }

    /// The offsets of a channel's erased messages that are yet to be removed.
    fn erased(&self, name: &ChannelName) -> Result<Vec<RangeInclusive<u64>>, StorageError> {
        let mut all = Vec::new();
        let (from, to) = (format::erased(name, 0), format::erased(name, u64::MAX));
        self.storage.scan(Space::Records, (&from, &to), KeyOrder::Up, &mut |key, value| {
            all.extend(format::erased_of(key, value).map(|(_, offsets)| offsets));
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }
}

impl Writer {
    /// Removes some messages of erased histories. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub(crate) fn remove_erased(&mut self) -> Result<bool, StorageError> {
        if self.has_erased {
            self.has_erased = match self.logs.remove_erased() {
                Err(error @ StorageError::Damaged(_)) => {
                    self.unreadable.add(error.to_string());
                    false
                }
                has_more => has_more?,
            };
        }
        Ok(self.has_erased)
    }
}
