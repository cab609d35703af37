//! How far users have read their inboxes and channels: an entry for each marker, which nodes read
//! when somebody asks.
//!
//! The key of an entry is the name of the user, encoded, and behind it that of the channel, if it
//! is in one; its value is the id of the last message read. The messages after it are counted in
//! the stream, unless this node has them in memory.
//!
//! # Invariants
//!
//! * An entry is written only if it replaces the one that was read. So of two devices that read on
//!   at the same time, on two nodes, neither takes the marker back.
//! * A marker moves only to a message that can be read, or before one.

use std::sync::Arc;

use throng_core::parts::{Limits, Part};
use throng_core::{
    Answer, ChannelName, ErasedMarkers, Fetched, HistoryQuery, Later, MARKED_CHANNELS_MAX, Mark,
    Marked, MarkerKey, MarkersErased, MarkersOf, MessageId, ReadMarker, Reading, Ticket, key_text,
    too_many_markers,
};
use throng_wire::{ErrorCode, ErrorResponse};

use super::shared::{NodeShared, unanswered};
use crate::api::table::{StoredEntry, TableEntry};
use crate::journal::{Changed, JournalEvent, TableId};

/// Attempts to move a marker that another node moves.
const ATTEMPTS_MAX: u32 = 8;

/// A question about a marker, or an attempt to move it.
struct NodesAnswered {
    table: TableId,
    of: MarkerKey,
    mark: Option<Mark>,
    now_ms: u64,
    attempts: u32,
    ticket: Ticket<Marked>,
}

/// The messages of a log after an id.
struct FoundElsewhere {
    /// The offset of each, and whether it may be unread: a notice of erasure is not.
    messages: Vec<(u64, bool)>,
    /// How many count as unread at most.
    unread_max: u64,
}

impl FoundElsewhere {
    fn none(of: &MarkerKey) -> FoundElsewhere {
        FoundElsewhere { messages: Vec::new(), unread_max: of.unread_max() }
    }

    fn after(&self, offset: u64) -> u64 {
        let newer = self.messages.iter().filter(|(of, may_be)| *of > offset && *may_be);
        (newer.count() as u64).min(self.unread_max)
    }
}

/// The key of a marker's entry.
fn key_of(of: &MarkerKey) -> String {
    let log = key_text::encode(of.log().name());
    of.reader().map_or(log.clone(), |user| format!("{}.{log}", key_text::encode(user)))
}

/// The keys of all markers of a user, or in a channel.
fn keys_of(of: MarkersOf<'_>) -> String {
    match of {
        MarkersOf::User(user) => format!("{}.*", key_text::encode(user)),
        MarkersOf::Channel(channel) => format!("*.{}", key_text::encode(channel.name())),
    }
}

fn unknown() -> ErrorResponse {
    let message = "NATS did not answer in time: it is not known whether the marker is moved; \
                   repeat it";
    ErrorResponse::new(ErrorCode::OutcomeUnknown, message)
}

fn away() -> ErrorResponse {
    let message = "NATS cannot be reached, so the marker is not moved; try again later";
    ErrorResponse::new(ErrorCode::Unavailable, message)
}

impl NodeShared {
    /// As [`throng_core::Journal::read_marker`] has to.
    pub(super) fn read_marker(
        self: &Arc<NodeShared>,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let Some(table) = self.markers.filter(|_| self.link.is_open()) else {
            return if mark.is_some() { Err(away()).into() } else { unanswered(later) };
        };
        let (ticket, answer) = later.ticket();
        self.look(NodesAnswered { table, of: of.clone(), mark, now_ms, attempts: 0, ticket });
        answer
    }

    /// As [`throng_core::Journal::erase_markers`] has to.
    pub(super) fn erase_markers(
        self: &Arc<NodeShared>,
        of: MarkersOf<'_>,
        later: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        let Some(table) = self.markers.filter(|_| self.link.is_open()) else {
            let message = "NATS cannot be reached, so the markers are not erased; try again later";
            return Err(ErrorResponse::new(ErrorCode::Unavailable, message)).into();
        };
        let (ticket, answer) = later.ticket();
        let done = move |count: Option<Option<u64>>| {
            let erased = |count| MarkersErased { count, are_more: false };
            let message = "NATS has not erased the markers, or has not said so: see whether this \
                           server may purge the bucket";
            let unknown = || ErrorResponse::new(ErrorCode::Unavailable, message);
            ticket.answer(count.flatten().map(erased).ok_or_else(unknown));
        };
        let (keys, done) = (keys_of(of), Ticket::new(done));
        match of {
            // Mostly there are none. Then nothing has to be permitted.
            MarkersOf::User(_) => {
                let node = Arc::downgrade(self);
                let counted =
                    move |count: Option<Option<u64>>| match (count.flatten(), node.upgrade()) {
                        (Some(1..), Some(node)) => node.of_keys((table, keys), true, done),
                        (count, _) => done.answer(count),
                    };
                let counted_keys = keys_of(of);
                self.of_keys((table, counted_keys), false, Ticket::new(counted));
            }
            MarkersOf::Channel(_) => self.of_keys((table, keys), true, done),
        }
        answer
    }

    /// Counts the entries with these keys, or removes them.
    fn of_keys(&self, (table, keys): (TableId, String), removes: bool, done: Ticket<Option<u64>>) {
        let token = self.token();
        self.tables.match_keys(token, done);
        self.tell(JournalEvent::Match(table, keys, (token, removes)));
    }

    /// Reads the marker.
    fn look(self: &Arc<NodeShared>, asked: NodesAnswered) {
        let (table, token) = (asked.table, self.token());
        let key = key_of(&asked.of);
        // The node has the ticket.
        let node = Arc::downgrade(self);
        let done = move |found: Option<Option<StoredEntry>>| {
            // Dropped, the ticket says that the marker cannot be read.
            if let (Some(node), Some(found)) = (node.upgrade(), found) {
                node.looked(asked, found);
            }
        };
        self.tables.look(token, Ticket::new(done));
        self.tell(JournalEvent::Look { table, token, key });
    }

    /// The bucket has this entry.
    fn looked(self: &Arc<NodeShared>, asked: NodesAnswered, found: Option<StoredEntry>) {
        let Some(epoch) = self.link.epoch() else { return };
        let sequence = found.as_ref().map_or(0, |stored| stored.sequence);
        let text = found.and_then(|stored| String::from_utf8(stored.entry.value?.into()).ok());
        let id: Option<MessageId> = text.and_then(|text| text.parse().ok());
        // A marker of another epoch means nothing: messages may have been lost.
        let old = id.filter(|id| id.epoch == epoch).map_or(0, |id| id.offset);
        let wanted = asked
            .mark
            .filter(|mark| mark.id.epoch == epoch && (mark.id.offset > old || mark.may_go_back));
        let old = MessageId { epoch, offset: old };
        match wanted {
            Some(mark) if id.is_none() && asked.of.reader().is_some() => {
                self.move_with_room(asked, (old, sequence), mark.id);
            }
            Some(mark) => self.move_to(asked, (old, sequence), mark.id),
            None => self.answer_with(asked, old),
        }
    }

    /// Moves the first marker of a user in a channel, if the user may have another one.
    fn move_with_room(
        self: &Arc<NodeShared>,
        asked: NodesAnswered,
        before: (MessageId, u64),
        id: MessageId,
    ) {
        let (table, user) = (asked.table, asked.of.reader().unwrap_or_default());
        let (node, keys) = (Arc::downgrade(self), keys_of(MarkersOf::User(user)));
        let done = move |count: Option<Option<u64>>| {
            let Some(node) = node.upgrade() else { return };
            match count.flatten() {
                // Nothing was moved yet.
                None => asked.ticket.answer(Err(away())),
                Some(count) if count >= MARKED_CHANNELS_MAX as u64 => {
                    asked.ticket.answer(Err(too_many_markers()));
                }
                Some(_) => node.move_to(asked, before, id),
            }
        };
        self.of_keys((table, keys), false, Ticket::new(done));
    }

    /// Answers with a marker, and the number of messages after it.
    fn answer_with(self: &Arc<NodeShared>, asked: NodesAnswered, id: MessageId) {
        let (log, now_ms) = (asked.of.log().clone(), asked.now_ms);
        self.read_after(now_ms, log, id, FoundElsewhere::none(&asked.of), move |found| {
            asked.ticket.answer(Ok(marker(id, &found, false)));
        });
    }

    /// Moves the marker, if the log has the message or a later one.
    fn move_to(
        self: &Arc<NodeShared>,
        asked: NodesAnswered,
        (old, sequence): (MessageId, u64),
        id: MessageId,
    ) {
        let node = Arc::clone(self);
        let (log, now_ms) = (asked.of.log().clone(), asked.now_ms);
        let before = MessageId { offset: id.offset.saturating_sub(1), ..id };
        self.read_after(now_ms, log, before, FoundElsewhere::none(&asked.of), move |found| {
            // Older ones come instead of what is after a position that the stream has not reached.
            let is_there = found.messages.iter().any(|(offset, _)| *offset >= id.offset);
            if !is_there && id.offset > 0 {
                return node.answer_with(asked, old);
            }
            node.write(asked, sequence, marker(id, &found, id != old), id);
        });
    }

    fn write(
        self: &Arc<NodeShared>,
        asked: NodesAnswered,
        replaces: u64,
        marker: ReadMarker,
        id: MessageId,
    ) {
        let (table, token) = (asked.table, self.token());
        let key = key_of(&asked.of).into();
        // One that goes back to the beginning says no more than none.
        let value = (id.offset > 0).then(|| id.to_string().into_bytes().into());
        let entry = TableEntry { key, value };
        let node = Arc::downgrade(self);
        let done = move |outcome: Option<Changed>| {
            let error = match outcome {
                Some(Changed::Stored) => return asked.ticket.answer(Ok(marker)),
                Some(Changed::Conflict { .. }) if asked.attempts < ATTEMPTS_MAX => {
                    let Some(node) = node.upgrade() else { return };
                    return node.look(NodesAnswered { attempts: asked.attempts + 1, ..asked });
                }
                Some(Changed::Conflict { .. } | Changed::Busy) => ErrorResponse::new(
                    ErrorCode::Busy,
                    "too many changes wait for NATS, so the marker is not moved; try again later",
                ),
                Some(Changed::Away) => away(),
                Some(Changed::Refused(reason)) => {
                    tracing::error!("NATS does not store a read marker: {reason}");
                    let message = "NATS does not store the marker, and the log says why";
                    ErrorResponse::new(ErrorCode::NotStored, message)
                }
                Some(Changed::Unknown) | None => unknown(),
            };
            asked.ticket.answer(Err(error));
        };
        self.tables.begin(token, Ticket::new(done));
        self.tell(JournalEvent::Change { table, token, entry, replaces: Some(replaces) });
    }

    /// Reads which messages a log has after an id, and calls `done` with them, unless they
    /// cannot be read. Those beyond what counts are left out.
    fn read_after(
        self: &Arc<NodeShared>,
        now_ms: u64,
        log: ChannelName,
        after: MessageId,
        mut found: FoundElsewhere,
        done: impl FnOnce(FoundElsewhere) + Send + 'static,
    ) {
        let limit = found.unread_max as usize + 1;
        let reading = Reading::Page(HistoryQuery::After(after), limit);
        let (node, of) = (Arc::clone(self), log.clone());
        let take = move |fetched: Option<Fetched>| {
            // Readable until it is dropped.
            let Some(_held) = fetched else { return };
            let open = node.parts.find(&of, reading);
            let Some(Part::Page(page)) = open.as_ref().and_then(|open| open.part()) else { return };
            let of_page = page.messages.iter();
            let of_page = of_page.map(|it| (it.id.offset, !it.is_notice()));
            found.messages.extend(of_page);
            match page.messages.last() {
                Some(last) if page.has_more && found.messages.len() < limit => {
                    node.read_after(now_ms, of, last.id, found, done);
                }
                _ => done(found),
            }
        };
        let mut take = Some(take);
        let mut issue = || {
            let take = take.take();
            Ticket::new(move |fetched| {
                if let Some(take) = take {
                    take(fetched);
                }
            })
        };
        let limits = Limits::of_lag(self.memory.rule(&log));
        let answer = self.fetch(now_ms, &log, reading, limits, Later::new(&mut issue));
        if let (Answer::Now(fetched), Some(take)) = (answer, take) {
            take(Some(fetched));
        }
    }
}

fn marker(id: MessageId, found: &FoundElsewhere, has_moved: bool) -> ReadMarker {
    let (read, unread) = ((id.offset > 0).then_some(id), found.after(id.offset));
    ReadMarker { read, unread, has_moved }
}
