//! How far users have read durable inboxes and channels. A marker is on the disk, as the log is.
//!
//! Those in channels are entries of a table by user and channel, and their keys are in another one
//! by channel and user. So they are counted and erased both ways without a look at all others.
//!
//! # Invariants
//!
//! * Of one user, a marker is compared with what it was before, and handed to the journal, under
//!   one lock. So no marker overtakes another one.
//! * Whoever has moved a marker is answered when the journal has written it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::records::{StoreError, Table};
use throng_core::{
    ChannelName, ErasedMarkers, MARKED_CHANNELS_MAX, Mark, Marked, MarkerKey, MarkersErased,
    MarkersOf, MessageId, ReadMarker, Ticket, too_many_markers,
};

use super::expired_runs::ExpiredRuns;
use super::read::LogReader;
use crate::journal::{ChangeDone, DiskJournal};
use crate::logs::{LogBounds, Logs, channel_marker, names_of_marker, read_marker_key};
use crate::storage::{Space, StorageError, Write};

/// Locks of users, each for a part of them: more than there are threads that read.
const LOCKS: usize = 64;

/// Markers of a channel that one step erases.
const ERASED_MAX: usize = 1_000;

/// Markers of a user at the limit that are looked at for one that means nothing any more.
const LOOKED_AT_MAX: usize = 64;

/// The markers of some users that the journal has yet to write, in the order of the writes.
type UnderWay = Arc<Mutex<HashMap<MarkerKey, Vec<u64>>>>;

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
    /// True if there was none before.
    is_new: bool,
}

/// Why nothing is written.
enum Unmoved {
    /// The disk cannot be read, which the storage tells.
    Unreadable,
    TooMany,
}

impl From<StorageError> for Unmoved {
    fn from(_: StorageError) -> Unmoved {
        Unmoved::Unreadable
    }
}

/// The key of an entry among all tables.
fn in_table(table: Table, key: &[u8]) -> Vec<u8> {
    [&[table as u8], key].concat()
}

/// The writes that set a marker, or remove it.
fn writes(of: &MarkerKey, id: Option<MessageId>) -> Vec<Write> {
    let space = Space::Records;
    let put = |key: Vec<u8>, value: String| match id {
        Some(_) => Write::put(space, key, value),
        None => Write::remove(space, key),
    };
    let value = id.map(|id| id.to_string()).unwrap_or_default();
    let Some(user) = of.reader() else { return vec![put(read_marker_key(of.log()), value)] };
    let [marker, marked] = channel_marker(user, of.log().name());
    vec![
        put(in_table(Table::ChannelMarkers, &marker), value),
        put(in_table(Table::MarkedChannels, &marked), String::new()),
    ]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of a user.
fn at(user: &str) -> usize {
    let mix = |sum: usize, byte: &u8| sum.wrapping_mul(31).wrapping_add(usize::from(*byte));
    user.as_bytes().iter().fold(0, mix) % LOCKS
}

fn user_of(of: &MarkerKey) -> &str {
    of.reader().unwrap_or_else(|| of.log().name())
}

impl Markers {
    pub(super) fn new(logs: Arc<Logs>, journal: Arc<DiskJournal>) -> Markers {
        let (moves, under_way) =
            (std::array::from_fn(|_| Mutex::default()), std::array::from_fn(|_| Arc::default()));
        Markers { logs, journal, moves, under_way }
    }

    /// Answers with a marker, after `mark`. Blocks while it is read. There is no answer if the disk
    /// cannot be read.
    pub(super) fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        ticket: Ticket<Marked>,
    ) {
        let _moves = mark.map(|_| lock(&self.moves[at(user_of(of))]));
        // Nor can it be read while the disk is opened again.
        if mark.is_some()
            && let Some(refused) = self.journal.state()
        {
            return ticket.answer(Err(StoreError::from(refused).into()));
        }
        let moved = self.look(now_ms, of, mark).map_err(Unmoved::from);
        match moved.and_then(|moved| self.with_room(now_ms, of, moved)) {
            Ok((Move { marker, write: None, .. }, _)) => ticket.answer(Ok(marker)),
            Ok((Move { marker, write: Some(id), .. }, others)) => {
                self.write(of, (id, others), marker, ticket);
            }
            Err(Unmoved::Unreadable) => {}
            Err(Unmoved::TooMany) => ticket.answer(Err(too_many_markers())),
        }
    }

    fn look(&self, now_ms: u64, of: &MarkerKey, mark: Option<Mark>) -> Result<Move, StorageError> {
        let LogBounds { head, .. } = self.logs.bounds(of.log())?;
        let found = self.offset(of, head)?;
        let old = found.unwrap_or(0);
        let moves_to = |mark: &Mark| {
            let is_known = mark.id.epoch == head.epoch && mark.id.offset <= head.offset;
            is_known && (mark.id.offset > old || mark.may_go_back)
        };
        let write = mark.filter(moves_to).map(|mark| mark.id);
        let offset = write.map_or(old, |id| id.offset);
        let (logs, expired) = (&*self.logs, &ExpiredRuns::default());
        let reader = LogReader { logs, name: of.log(), now_ms, is_known: false, expired };
        let unread = reader.unread(offset, of.unread_max() as usize)? as u64;
        let read = (offset > 0).then_some(MessageId { offset, ..head });
        let marker = ReadMarker { read, unread, has_moved: offset != old };
        Ok(Move { marker, write, is_new: found.is_none() })
    }

    /// The offset of a marker, if there is one that counts or is under way.
    fn offset(&self, of: &MarkerKey, head: MessageId) -> Result<Option<u64>, StorageError> {
        let under_way = lock(&self.under_way[at(user_of(of))]);
        if let Some(offset) = under_way.get(of).and_then(|offsets| offsets.last()) {
            return Ok(Some(*offset));
        }
        drop(under_way);
        let key = match of.reader() {
            None => read_marker_key(of.log()),
            Some(user) => {
                let [key, _] = channel_marker(user, of.log().name());
                in_table(Table::ChannelMarkers, &key)
            }
        };
        let value = self.logs.storage().get(Space::Records, &key)?;
        let text = value.and_then(|value| String::from_utf8(value).ok());
        let id: Option<MessageId> = text.and_then(|text| text.parse().ok());
        // A marker of another epoch means nothing: messages may have been lost.
        Ok(id.filter(|id| id.epoch == head.epoch).map(|id| id.offset.min(head.offset)))
    }

    /// The markers of a user in channels, with those under way, in the order of the channels.
    fn all_of(&self, user: &str) -> Result<Vec<(ChannelName, Option<MessageId>)>, StorageError> {
        let [from, _] = channel_marker(user, "");
        let mut all = Vec::new();
        self.logs.visit_records(Table::ChannelMarkers, &from, &mut |key, value| {
            let Some((_, channel)) = names_of_marker(key).filter(|(of, _)| *of == user) else {
                return ControlFlow::Break(());
            };
            let id = str::from_utf8(value).ok().and_then(|id| id.parse().ok());
            all.push((ChannelName::channel(channel), id));
            ControlFlow::Continue(())
        })?;
        let under_way = lock(&self.under_way[at(user)]);
        for of in under_way.keys().filter(|of| of.reader() == Some(user)) {
            if let Err(at) = all.binary_search_by(|(channel, _)| channel.cmp(of.log())) {
                all.insert(at, (of.log().clone(), None));
            }
        }
        Ok(all)
    }

    /// The same move, if the user may have the marker, and what is removed for it.
    fn with_room(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        moved: Move,
    ) -> Result<(Move, Vec<Write>), Unmoved> {
        let new_of = of.reader().filter(|_| moved.is_new && moved.write.is_some());
        let Some(user) = new_of else { return Ok((moved, Vec::new())) };
        let all = self.all_of(user)?;
        if all.len() < MARKED_CHANNELS_MAX {
            return Ok((moved, Vec::new()));
        }
        // Beginning somewhere else each time.
        let from = (now_ms as usize).wrapping_mul(LOOKED_AT_MAX) % all.len();
        for (channel, id) in all.iter().cycle().skip(from).take(LOOKED_AT_MAX) {
            let Some(id) = id else { continue };
            let LogBounds { head, floor, .. } = self.logs.bounds(channel)?;
            if id.epoch != head.epoch || id.offset <= floor {
                return Ok((moved, writes(&MarkerKey::channel(channel.clone(), user), None)));
            }
        }
        Err(Unmoved::TooMany)
    }

    /// Lets the journal write a marker, with what is written beside, and answers then.
    fn write(
        &self,
        of: &MarkerKey,
        (id, others): (MessageId, Vec<Write>),
        marker: ReadMarker,
        ticket: Ticket<Marked>,
    ) {
        // In a channel, one that goes back to the beginning says no more than none.
        let kept = Some(id).filter(|id| of.reader().is_none() || id.offset > 0);
        let writes = writes(of, kept).into_iter().chain(others).collect();
        let under_way = &self.under_way[at(user_of(of))];
        lock(under_way).entry(of.clone()).or_default().push(id.offset);
        let (all, key) = (Arc::clone(under_way), of.clone());
        let mut ticket = Some(ticket);
        let written = || -> ChangeDone {
            let ticket = ticket.take();
            Box::new(move |result| {
                end(&all, &key, id.offset, result.is_ok());
                let answer = result.map(|()| marker);
                let answer = answer.map_err(|error| StoreError::from(error).into());
                if let Some(ticket) = ticket {
                    ticket.answer(answer);
                }
            })
        };
        if let Err(refused) = self.journal.change(writes, written) {
            end(under_way, of, id.offset, false);
            let refused = StoreError::from(refused);
            if let Some(ticket) = ticket {
                ticket.answer(Err(refused.into()));
            }
        }
    }

    /// Erases markers in channels, some at a time. Blocks while they are read. There is no answer
    /// if the disk cannot be read.
    pub(super) fn erase(&self, of: MarkersOf<'_>, ticket: Ticket<ErasedMarkers>) {
        match of {
            MarkersOf::User(user) => {
                let _moves = lock(&self.moves[at(user)]);
                let Ok(all) = self.all_of(user) else { return };
                let keys = all.into_iter().map(|(channel, _)| MarkerKey::channel(channel, user));
                self.remove((keys.collect(), false), ticket);
            }
            MarkersOf::Channel(channel) => {
                let Ok(found) = self.users_of(channel) else { return };
                self.remove(found, ticket);
            }
        }
    }

    /// Some markers in a channel, and whether there are others.
    fn users_of(&self, channel: &ChannelName) -> Result<(Vec<MarkerKey>, bool), StorageError> {
        let [_, from] = channel_marker("", channel.name());
        let (mut found, mut are_more) = (Vec::new(), false);
        self.logs.visit_records(Table::MarkedChannels, &from, &mut |key, _| {
            let names = names_of_marker(key).filter(|(of, _)| *of == channel.name());
            let Some((_, user)) = names else { return ControlFlow::Break(()) };
            are_more = found.len() == ERASED_MAX;
            if are_more {
                return ControlFlow::Break(());
            }
            found.push(MarkerKey::channel(channel.clone(), user));
            ControlFlow::Continue(())
        })?;
        Ok((found, are_more))
    }

    fn remove(&self, (keys, are_more): (Vec<MarkerKey>, bool), ticket: Ticket<ErasedMarkers>) {
        let erased = MarkersErased { count: keys.len() as u64, are_more };
        if keys.is_empty() {
            return ticket.answer(Ok(erased));
        }
        let writes = keys.iter().flat_map(|of| writes(of, None)).collect();
        let mut ticket = Some(ticket);
        let written = || -> ChangeDone {
            let ticket = ticket.take();
            Box::new(move |result| {
                let answer = result.map(|()| erased);
                if let Some(ticket) = ticket {
                    ticket.answer(answer.map_err(|error| StoreError::from(error).into()));
                }
            })
        };
        if let (Err(refused), Some(ticket)) = (self.journal.change(writes, written), ticket) {
            ticket.answer(Err(StoreError::from(refused).into()));
        }
    }
}

/// One write of a marker less is under way. Those that are refused wait behind the others.
fn end(under_way: &UnderWay, of: &MarkerKey, offset: u64, is_written: bool) {
    let mut all = lock(under_way);
    let Some(offsets) = all.get_mut(of) else { return };
    let mut places = offsets.iter();
    let place = if is_written {
        places.position(|other| *other == offset)
    } else {
        places.rposition(|other| *other == offset)
    };
    place.map(|place| offsets.remove(place));
    if offsets.is_empty() {
        all.remove(of);
    }
}
