//! Reading states.

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use throng_core::frozen::ThawError;
use throng_core::{ChannelName, Content, KeyQuery};

use crate::logs::format::{self, Table};
use crate::logs::group::{ChannelMap, GroupChannel};
use crate::logs::reader::{Logs, unreadable};
use crate::logs::state_rows::{self as rows, AllStates, KeyRow, StateRow};
use crate::storage::{KeyOrder, Space, Storage, StorageError};

/// A key with its newest message, as they are read.
type ReadKey = Result<(Box<str>, KeyRow), ThawError>;

impl Logs {
    pub(in crate::logs) fn read_states(storage: &dyn Storage) -> Result<AllStates, StorageError> {
        let row = storage.get(Space::Meta, format::STATES)?;
        let row = row.map(|row| AllStates::decode(&row)).transpose().map_err(unreadable)?;
        Ok(row.unwrap_or_default())
    }

    /// How much there is of a log's state, as it was committed last; `None` without one.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn state_row(&self, name: &ChannelName) -> Result<Option<StateRow>, StorageError> {
        let row = self.storage.get(Space::Records, &format::of_table(Table::States, name))?;
        row.map(|row| StateRow::decode(&row).map_err(unreadable)).transpose()
    }

    /// What the disk has of a key, which may be of an erased history.
    pub(in crate::logs) fn key_row(
        &self,
        name: &ChannelName,
        key: &str,
    ) -> Result<Option<KeyRow>, StorageError> {
        let row = self.storage.get(Space::Records, &rows::key(name, key))?;
        row.map(|row| KeyRow::decode(&row).map_err(unreadable)).transpose()
    }

    /// Visits the keys of a query in their order, as they were committed last, until `each` breaks.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn visit_keys(
        &self,
        name: &ChannelName,
        query: &KeyQuery,
        each: &mut dyn FnMut(Box<str>, KeyRow) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let prefix = rows::key(name, &query.prefix);
        let from = match &query.after {
            // Behind a key comes that one with another byte.
            Some(after) if **after >= *query.prefix => {
                let mut from = rows::key(name, after);
                from.push(0);
                from
            }
            _ => prefix.clone(),
        };
        let mut broken = None;
        let mut visit = |place: &[u8], row: &[u8]| {
            if !place.starts_with(&prefix) {
                return ControlFlow::Break(());
            }
            let read = || -> ReadKey { Ok((rows::key_of(place, name)?, KeyRow::decode(row)?)) };
            match read() {
                Ok((key, row)) => each(key, row),
                Err(error) => {
                    broken = Some(unreadable(error));
                    ControlFlow::Break(())
                }
            }
        };
        let to = rows::keys_end(name);
        self.storage.scan(Space::Records, (&from, &to), KeyOrder::Up, &mut visit)?;
        broken.map_or(Ok(()), Err)
    }

    /// Visits what the disk has of a channel's messages after one offset and before another,
    /// whatever the bounds of its log and whether acknowledged or not, until `each` breaks: all as
    /// they were at one moment.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn scan(
        &self,
        name: &ChannelName,
        (after, before): (u64, u64),
        order: KeyOrder,
        each: &mut dyn FnMut(Content) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let first = after.saturating_add(1);
        if first >= before {
            return Ok(());
        }
        let range = (format::message(name, first), format::message(name, before));
        let mut broken = None;
        let mut visit = |_: &[u8], value: &[u8]| match format::content(value, self.epoch, name) {
            Ok(content) => each(content),
            Err(error) => {
                broken = Some(unreadable(error));
                ControlFlow::Break(())
            }
        };
        self.storage.scan(Space::Messages, (&range.0, &range.1), order, &mut visit)?;
        broken.map_or(Ok(()), Err)
    }

    /// What the disk has of a message.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn message(
        &self,
        name: &ChannelName,
        offset: u64,
    ) -> Result<Option<Content>, StorageError> {
        let value = self.storage.get(Space::Messages, &format::message(name, offset))?;
        let content = |value: Vec<u8>| format::content(&value, self.epoch, name);
        value.map(content).transpose().map_err(unreadable)
    }

    /// True if a commit that is not acknowledged has ended the state of a log, or may have.
    pub(crate) fn ends_state(&self, name: &ChannelName) -> bool {
        let channels = self.unacknowledged();
        let channel = channels.get(name).filter(|channel| channel.state.is_some());
        channel.is_some_and(|channel| !channel.head.has_keys)
    }

    /// True if a message that was committed is acknowledged, with all before it.
    pub(crate) fn is_acknowledged(&self, name: &ChannelName, offset: u64) -> bool {
        let channels = self.unacknowledged();
        channels.get(name).is_none_or(|channel| channel.acknowledged >= offset)
    }

    /// Waits until what is committed in a channel is acknowledged, or some time.
    pub(crate) fn wait_acknowledged(&self, name: &ChannelName, timeout: Duration) {
        let is_open = |channels: &mut Arc<ChannelMap<GroupChannel>>| channels.contains_key(name);
        let waited = self.acknowledged.wait_timeout_while(self.unacknowledged(), timeout, is_open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
