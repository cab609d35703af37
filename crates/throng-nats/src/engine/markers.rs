//! How far users have read their inboxes: an entry for each user, which nodes read when somebody
//! asks.
//!
//! The key of an entry is the name of the user, encoded; its value is the id of the last message
//! read. The messages after it are counted in the stream, unless this node has them in memory.
//!
//! # Invariants
//!
//! * An entry is written only if it replaces the one that was read. So of two devices that read on
//!   at the same time, on two nodes, neither takes the marker back.
//! * A marker moves only to a message that can be read, or before one.

use std::sync::Arc;

use throng_core::parts::{Limits, Part};
use throng_core::{
    Answer, ChannelName, Fetched, HistoryQuery, Later, Mark, Marked, MessageId, ReadMarker,
    Reading, Ticket, UNREAD_MAX, key_text,
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
    inbox: ChannelName,
    mark: Option<Mark>,
    now_ms: u64,
    attempts: u32,
    ticket: Ticket<Marked>,
}

/// The messages of an inbox after an id.
#[derive(Default)]
struct FoundElsewhere {
    /// The offset of each, and whether it may be unread: a notice of erasure is not.
    messages: Vec<(u64, bool)>,
}

impl FoundElsewhere {
    fn after(&self, offset: u64) -> u64 {
        let newer = self.messages.iter().filter(|(of, may_be)| *of > offset && *may_be);
        (newer.count() as u64).min(UNREAD_MAX)
    }
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
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let Some(table) = self.markers.filter(|_| self.link.is_open()) else {
            return if mark.is_some() { Err(away()).into() } else { unanswered(later) };
        };
        let (ticket, answer) = later.ticket();
        self.look(NodesAnswered { table, inbox: inbox.clone(), mark, now_ms, attempts: 0, ticket });
        answer
    }

    /// Reads the marker.
    fn look(self: &Arc<NodeShared>, asked: NodesAnswered) {
        let (table, token) = (asked.table, self.token());
        let key = key_text::encode(asked.inbox.name());
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
            Some(mark) => self.move_to(asked, (old, sequence), mark.id),
            None => self.answer_with(asked, old),
        }
    }

    /// Answers with a marker, and the number of messages after it.
    fn answer_with(self: &Arc<NodeShared>, asked: NodesAnswered, id: MessageId) {
        let (inbox, now_ms) = (asked.inbox.clone(), asked.now_ms);
        self.read_after(now_ms, inbox, id, FoundElsewhere::default(), move |found| {
            asked.ticket.answer(Ok(marker(id, &found, false)));
        });
    }

    /// Moves the marker, if the inbox has the message or a later one.
    fn move_to(
        self: &Arc<NodeShared>,
        asked: NodesAnswered,
        (old, sequence): (MessageId, u64),
        id: MessageId,
    ) {
        let node = Arc::clone(self);
        let (inbox, now_ms) = (asked.inbox.clone(), asked.now_ms);
        let before = MessageId { offset: id.offset.saturating_sub(1), ..id };
        self.read_after(now_ms, inbox, before, FoundElsewhere::default(), move |found| {
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
        let key = key_text::encode(asked.inbox.name()).into();
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
                Some(Changed::Unknown) | None => ErrorResponse::new(
                    ErrorCode::OutcomeUnknown,
                    "NATS did not answer in time: it is not known whether the marker is moved; \
                     repeat it",
                ),
            };
            asked.ticket.answer(Err(error));
        };
        self.tables.begin(token, Ticket::new(done));
        self.tell(JournalEvent::Change { table, token, entry, replaces: Some(replaces) });
    }

    /// Reads which messages an inbox has after an id, and calls `done` with them, unless they
    /// cannot be read. Those beyond what counts are left out.
    fn read_after(
        self: &Arc<NodeShared>,
        now_ms: u64,
        inbox: ChannelName,
        after: MessageId,
        mut found: FoundElsewhere,
        done: impl FnOnce(FoundElsewhere) + Send + 'static,
    ) {
        let limit = UNREAD_MAX as usize + 1;
        let reading = Reading::Page(HistoryQuery::After(after), limit);
        let (node, of) = (Arc::clone(self), inbox.clone());
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
        let limits = Limits::of_lag(self.memory.rule(&inbox));
        let answer = self.fetch(now_ms, &inbox, reading, limits, Later::new(&mut issue));
        if let (Answer::Now(fetched), Some(take)) = (answer, take) {
            take(Some(fetched));
        }
    }
}

fn marker(id: MessageId, found: &FoundElsewhere, has_moved: bool) -> ReadMarker {
    let (read, unread) = ((id.offset > 0).then_some(id), found.after(id.offset));
    ReadMarker { read, unread, has_moved }
}
