//! How far users have read durable inboxes. A marker is on the disk, as the inbox is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::records::Table;
use throng_core::{ChannelName, Mark, MessageId, ReadMarker};

use super::read::Reader;
use crate::journal::{ChangeDone, Journal};
use crate::logs::{Bounds, Logs};
use crate::storage::{Space, StorageError, Write};

/// Messages that are counted as unread at most.
const UNREAD_MAX: usize = 10_000;

type UnderWay = HashMap<ChannelName, (u64, u32)>;

/// The markers, and those that the journal has yet to write.
pub(super) struct Markers {
    logs: Arc<Logs>,
    journal: Arc<Journal>,
    /// The newest marker of each inbox, with how many writes of it are under way.
    under_way: Arc<Mutex<UnderWay>>,
}

fn lock(under_way: &Mutex<UnderWay>) -> MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key of a marker in the table of all records.
fn key(inbox: &ChannelName) -> Vec<u8> {
    [&[Table::ReadMarkers as u8], inbox.name().as_bytes()].concat()
}

impl Markers {
    pub(super) fn new(logs: Arc<Logs>, journal: Arc<Journal>) -> Markers {
        Markers { logs, journal, under_way: Arc::default() }
    }

    /// The marker of an inbox, after `mark`. Blocks while it is read.
    pub(super) fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
    ) -> ReadMarker {
        // A disk that cannot be read knows of no marker.
        self.try_read_marker(now_ms, inbox, mark).unwrap_or_default()
    }

    fn try_read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
    ) -> Result<ReadMarker, StorageError> {
        let Bounds { head, .. } = self.logs.bounds(inbox)?;
        let mut offset = self.offset(inbox, head)?;
        if let Some(Mark { id, may_go_back }) = mark
            && id.epoch == head.epoch
            && id.offset <= head.offset
            && (id.offset > offset || may_go_back)
        {
            // One that the disk refuses at once does not move.
            if self.write(inbox, id) {
                offset = id.offset;
            }
        }
        let reader = Reader { logs: &self.logs, name: inbox, now_ms, is_known: false };
        let unread = reader.unread(offset, UNREAD_MAX)? as u64;
        let read = (offset > 0).then_some(MessageId { offset, ..head });
        Ok(ReadMarker { read, unread })
    }

    fn offset(&self, inbox: &ChannelName, head: MessageId) -> Result<u64, StorageError> {
        if let Some((offset, _)) = lock(&self.under_way).get(inbox) {
            return Ok(*offset);
        }
        let value = self.logs.storage().get(Space::Records, &key(inbox))?;
        let text = value.and_then(|value| String::from_utf8(value).ok());
        let id: Option<MessageId> = text.and_then(|text| text.parse().ok());
        // A marker of another epoch means nothing: messages may have been lost.
        Ok(id.filter(|id| id.epoch == head.epoch).map_or(0, |id| id.offset.min(head.offset)))
    }

    /// Lets the journal write a marker. Returns whether it has taken it.
    fn write(&self, inbox: &ChannelName, id: MessageId) -> bool {
        let value = Some(id.to_string().into_bytes());
        let write = Write { space: Space::Records, key: key(inbox), value };
        let mut under_way = lock(&self.under_way);
        let (offset, writes) = under_way.entry(inbox.clone()).or_default();
        (*offset, *writes) = (id.offset, *writes + 1);
        drop(under_way);
        let (all, of) = (Arc::clone(&self.under_way), inbox.clone());
        let end = move || {
            let mut all = lock(&all);
            if let Some((_, writes)) = all.get_mut(&of) {
                *writes -= 1;
                if *writes == 0 {
                    all.remove(&of);
                }
            }
        };
        let undone = end.clone();
        let done = || -> ChangeDone { Box::new(move |_| end()) };
        let is_taken = self.journal.change(vec![write], done).is_ok();
        if !is_taken {
            undone();
        }
        is_taken
    }
}
