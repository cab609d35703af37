//! How far users have read durable inboxes. A marker is on the disk, as the inbox is.
//!
//! # Invariants
//!
//! * Of one inbox, a marker is compared with what it was before, and handed to the journal, under
//!   one lock. So no marker overtakes another one.
//! * Whoever has moved a marker is answered when the journal has written it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::records::StoreError;
use throng_core::{ChannelName, Mark, Marked, MessageId, ReadMarker, Ticket, UNREAD_MAX};

use super::expired_runs::ExpiredRuns;
use super::read::LogReader;
use crate::journal::{ChangeDone, DiskJournal};
use crate::logs::{LogBounds, Logs, read_marker_key};
use crate::storage::{Space, StorageError, Write};

/// Locks of inboxes, each for a part of them: more than there are threads that read.
const LOCKS: usize = 64;

/// The markers of some inboxes that the journal has yet to write, in the order of the writes.
type UnderWay = Arc<Mutex<HashMap<ChannelName, Vec<u64>>>>;

/// The markers, which the journal writes.
pub(super) struct Markers {
    logs: Arc<Logs>,
    journal: Arc<DiskJournal>,
    /// Held while a marker is read and moved. Never by the journal.
    moves: [Mutex<()>; LOCKS],
    under_way: [UnderWay; LOCKS],
}

/// The outcome of moving a marker.
struct Move {
    marker: ReadMarker,
    /// The position to write, if it moves.
    write: Option<MessageId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of an inbox.
fn at(inbox: &ChannelName) -> usize {
    let mix = |sum: usize, byte: &u8| sum.wrapping_mul(31).wrapping_add(usize::from(*byte));
    inbox.name().as_bytes().iter().fold(0, mix) % LOCKS
}

impl Markers {
    pub(super) fn new(logs: Arc<Logs>, journal: Arc<DiskJournal>) -> Markers {
        let (moves, under_way) =
            (std::array::from_fn(|_| Mutex::default()), std::array::from_fn(|_| Arc::default()));
        Markers { logs, journal, moves, under_way }
    }

    /// Answers with the marker of an inbox, after `mark`. Blocks while it is read. There is no
    /// answer if the disk cannot be read.
    pub(super) fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        ticket: Ticket<Marked>,
    ) {
        let _moves = mark.map(|_| lock(&self.moves[at(inbox)]));
        // Nor can it be read while the disk is opened again.
        if mark.is_some()
            && let Some(refused) = self.journal.state()
        {
            return ticket.answer(Err(StoreError::from(refused).into()));
        }
        let Ok(Move { marker, write }) = self.look(now_ms, inbox, mark) else { return };
        match write {
            None => ticket.answer(Ok(marker)),
            Some(id) => self.write(inbox, id, marker, ticket),
        }
    }

    fn look(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
    ) -> Result<Move, StorageError> {
        let LogBounds { head, .. } = self.logs.bounds(inbox)?;
        let old = self.offset(inbox, head)?;
        let moves_to = |mark: &Mark| {
            let is_known = mark.id.epoch == head.epoch && mark.id.offset <= head.offset;
            is_known && (mark.id.offset > old || mark.may_go_back)
        };
        let write = mark.filter(moves_to).map(|mark| mark.id);
        let offset = write.map_or(old, |id| id.offset);
        let (logs, expired) = (&*self.logs, &ExpiredRuns::default());
        let reader = LogReader { logs, name: inbox, now_ms, is_known: false, expired };
        let unread = reader.unread(offset, UNREAD_MAX as usize)? as u64;
        let read = (offset > 0).then_some(MessageId { offset, ..head });
        Ok(Move { marker: ReadMarker { read, unread, has_moved: offset != old }, write })
    }

    fn offset(&self, inbox: &ChannelName, head: MessageId) -> Result<u64, StorageError> {
        let under_way = lock(&self.under_way[at(inbox)]);
        if let Some(offset) = under_way.get(inbox).and_then(|offsets| offsets.last()) {
            return Ok(*offset);
        }
        drop(under_way);
        let value = self.logs.storage().get(Space::Records, &read_marker_key(inbox))?;
        let text = value.and_then(|value| String::from_utf8(value).ok());
        let id: Option<MessageId> = text.and_then(|text| text.parse().ok());
        // A marker of another epoch means nothing: messages may have been lost.
        Ok(id.filter(|id| id.epoch == head.epoch).map_or(0, |id| id.offset.min(head.offset)))
    }

    /// Lets the journal write a marker, and answers then.
    fn write(
        &self,
        inbox: &ChannelName,
        id: MessageId,
        marker: ReadMarker,
        ticket: Ticket<Marked>,
    ) {
        let write = Write::put(Space::Records, read_marker_key(inbox), id.to_string());
        let under_way = &self.under_way[at(inbox)];
        lock(under_way).entry(inbox.clone()).or_default().push(id.offset);
        let (all, of) = (Arc::clone(under_way), inbox.clone());
        let mut ticket = Some(ticket);
        let written = || -> ChangeDone {
            let ticket = ticket.take();
            Box::new(move |result| {
                end(&all, &of, id.offset, result.is_ok());
                let answer = result.map(|()| marker);
                let answer = answer.map_err(|error| StoreError::from(error).into());
                if let Some(ticket) = ticket {
                    ticket.answer(answer);
                }
            })
        };
        if let Err(refused) = self.journal.change(vec![write], written) {
            end(under_way, inbox, id.offset, false);
            let refused = StoreError::from(refused);
            if let Some(ticket) = ticket {
                ticket.answer(Err(refused.into()));
            }
        }
    }
}

/// One write of a marker less is under way. Those that are refused wait behind the others.
fn end(under_way: &UnderWay, inbox: &ChannelName, offset: u64, is_written: bool) {
    let mut all = lock(under_way);
    let Some(offsets) = all.get_mut(inbox) else { return };
    let mut places = offsets.iter();
    let place = if is_written {
        places.position(|other| *other == offset)
    } else {
        places.rposition(|other| *other == offset)
    };
    place.map(|place| offsets.remove(place));
    if offsets.is_empty() {
        all.remove(inbox);
    }
}
