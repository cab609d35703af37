//! Reads what a subscription starts with in a log with a state: of each key the newest message, and
//! messages without keys as others get them.
//!
//! All is read downwards, from the newest message on, so that the first message of a key is its
//! newest. A long log takes several turns: what has come meanwhile is read at the end, and with it
//! all that was superseded under way. Nobody gets it before the newest message that was read is
//! acknowledged, and all of it with that.

use std::collections::HashSet;
use std::sync::Arc;

use throng_core::parts::{Limits, Start};
use throng_core::{Content, EntryCount, MessageId, StartAt};

use super::expired_runs::{END, ON};
use super::read::LogReader;
use crate::logs::{LogBounds, StateRow};
use crate::storage::{KeyOrder, StorageError};

/// Messages that one turn reads, at most: some ten milliseconds of work.
const READ_PER_TURN: usize = if cfg!(test) { 5 } else { 8_192 };

/// Times that a reading begins anew, at most, because much has changed meanwhile.
const ATTEMPTS_MAX: u32 = 8;

/// Where a reading ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Down {
    /// With the message after this offset.
    To(u64),
    /// With the first message beyond this stamp.
    ToStamp(u64),
    /// With the first message of this time or later.
    ToTime(u64),
    /// With this many messages that can be read and are no notices.
    Last(usize),
    /// With the first message of the state.
    ToBase,
}

/// A reading that is under way.
#[derive(Debug)]
pub(super) struct StateReading {
    start: StartAt,
    down: Down,
    /// The number of commits that were made again when it began.
    retries: u64,
    /// The newest message when it began; once it was read.
    head: Option<u64>,
    /// The messages before this offset are yet to be read.
    before: u64,
    /// The oldest message that was read, and its predecessor.
    cursor: Option<u64>,
    seen: HashSet<Box<str>>,
    /// The newest first.
    messages: Vec<Arc<Content>>,
    plain: EntryCount,
    plain_bytes: usize,
    /// True if messages without keys lack, as they are beyond the limits.
    lacks_plain: bool,
    /// True if the channel has ended: with a message up to this offset, or after it.
    is_ended: bool,
    since: u64,
    turns: u32,
    attempts: u32,
    /// What was read, until it is acknowledged.
    read: Option<Start>,
}

impl StateReading {
    fn begin(reader: &LogReader<'_>, start: StartAt, down: Down, attempts: u32) -> StateReading {
        StateReading {
            start,
            down,
            retries: reader.logs.retries(),
            head: None,
            before: u64::MAX,
            cursor: None,
            seen: HashSet::new(),
            messages: Vec::new(),
            plain: EntryCount::default(),
            plain_bytes: 0,
            lacks_plain: false,
            is_ended: false,
            since: 0,
            turns: 0,
            attempts,
            read: None,
        }
    }
}

/// The outcome of a turn.
pub(super) enum StateTurn {
    Read(Start),
    /// There is more to read.
    Again,
    /// What was read is not acknowledged yet.
    Later,
    /// It changes faster than it can be read.
    Never,
}

/// How much of a state has to be read.
pub(super) enum StateToRead {
    /// None: the log has none, or nothing of it is wanted.
    None,
    All(StateRow),
    /// A commit that ends the state is not acknowledged yet.
    Later,
}

impl LogReader<'_> {
    /// How much of a state has to be read for a subscription that starts there.
    pub(super) fn state_to_read(&self, start: StartAt) -> Result<StateToRead, StorageError> {
        if matches!(start, StartAt::Live | StartAt::Last(0)) {
            return Ok(StateToRead::None);
        }
        let row = if self.logs.bounds(self.name)?.has_keys {
            self.logs.state_row(self.name)?
        } else {
            None
        };
        Ok(match row {
            Some(row) => StateToRead::All(row),
            None if !self.logs.ends_state(self.name) => StateToRead::None,
            None => StateToRead::Later,
        })
    }

    /// Has a turn at reading a start.
    pub(super) fn read_state(
        &self,
        start: StartAt,
        limits: Limits,
        reading: &mut Option<StateReading>,
    ) -> Result<StateTurn, StorageError> {
        let mut own = match reading.take() {
            Some(own) => own,
            None => StateReading::begin(self, start, self.down(start)?, 0),
        };
        if own.attempts > ATTEMPTS_MAX {
            return Ok(StateTurn::Never);
        }
        if own.read.is_none() && self.read_down(&mut own, limits)? {
            own = self.end_state(own, limits)?;
        }
        let mut turn = StateTurn::Again;
        if let Some(read) = own.read.take() {
            if !self.logs.is_acknowledged(self.name, read.head.offset) {
                own.read = Some(read);
                turn = StateTurn::Later;
            } else if self.logs.retries() == own.retries {
                return Ok(StateTurn::Read(read));
            } else {
                own = StateReading::begin(self, start, self.down(start)?, own.attempts + 1);
            }
        }
        *reading = Some(own);
        Ok(turn)
    }

    fn down(&self, start: StartAt) -> Result<Down, StorageError> {
        let LogBounds { head, lost, lost_offset: floor, .. } = self.logs.bounds(self.name)?;
        Ok(match start {
            StartAt::After(id)
                if id.epoch == head.epoch && (floor..=head.offset).contains(&id.offset) =>
            {
                Down::To(id.offset)
            }
            StartAt::Since(position) if self.is_known && position.stamp >= lost => {
                Down::ToStamp(position.stamp.0)
            }
            StartAt::From(time_ms) => Down::ToTime(time_ms),
            StartAt::Last(count) => Down::Last(count),
            StartAt::After(_) | StartAt::Since(_) | StartAt::State | StartAt::Live => Down::ToBase,
        })
    }

    /// Reads on. Returns whether all is read.
    fn read_down(&self, own: &mut StateReading, limits: Limits) -> Result<bool, StorageError> {
        let LogBounds { head, base, has_ended, .. } = self.logs.bounds(self.name)?;
        let after = if let Down::To(offset) = own.down { offset.max(base) } else { base };
        if own.head.is_none() {
            (own.head, own.since) = (Some(head.offset), head.offset);
            own.is_ended = has_ended;
        }
        own.turns += 1;
        let before = own.before;
        let (mut count, mut is_over) = (0, true);
        let mut each = |content: Content| {
            if is_beyond(own, &content) {
                return END;
            }
            if count == READ_PER_TURN {
                is_over = false;
                return END;
            }
            count += 1;
            self.take_newest(own, content, limits);
            ON
        };
        self.logs.scan(self.name, (after, before), KeyOrder::Down, &mut each)?;
        Ok(is_over)
    }

    /// Takes the next message down, unless a newer one has superseded it.
    fn take_newest(&self, own: &mut StateReading, content: Content, limits: Limits) {
        let is_first = own.cursor.is_none();
        own.is_ended |= content.id.offset > own.since && content.is_end();
        if is_first {
            own.head = own.head.max(Some(content.id.offset));
        }
        own.before = content.id.offset;
        own.cursor = Some(content.previous);
        let is_expired = content.is_expired(self.now_ms);
        if let Down::Last(left) = &mut own.down {
            *left -= usize::from(!is_expired && !content.is_notice());
        }
        let is_wanted = match content.key() {
            None => !is_expired,
            Some(key) => {
                let is_newest = own.seen.insert(key.into());
                let is_shown = own.start != StartAt::State || !content.removes_key();
                is_newest && is_shown && !is_expired
            }
        };
        // The newest one is always there.
        if !is_wanted && !is_first {
            return;
        }
        let content = self.readable(content);
        if content.key().is_none() && !is_first {
            let (mut plain, bytes) = (own.plain, own.plain_bytes + content.weight_bytes());
            plain.add(content.is_blank());
            if plain.exceeds(limits.messages) || bytes > limits.bytes {
                own.lacks_plain = true;
                return;
            }
            (own.plain, own.plain_bytes) = (plain, bytes);
        }
        own.messages.push(Arc::new(content));
    }

    /// Puts together what was read, with what has come meanwhile; or begins anew, if it lacks
    /// something that a client that resumes would miss.
    fn end_state(
        &self,
        mut own: StateReading,
        limits: Limits,
    ) -> Result<StateReading, StorageError> {
        let mut head = own.head.unwrap_or(0);
        let mut late = StateReading::begin(self, own.start, Down::To(head), own.attempts);
        late.since = head;
        if own.turns > 1 {
            let mut each = |content: Content| {
                self.take_newest(&mut late, content, limits);
                ON
            };
            self.logs.scan(self.name, (head, u64::MAX), KeyOrder::Down, &mut each)?;
            own.lacks_plain |= late.lacks_plain;
            own.is_ended |= late.is_ended;
            head = head.max(late.head.unwrap_or(0));
        }
        let LogBounds { lost_offset: floor, base, lost, .. } = self.logs.bounds(self.name)?;
        let is_whole = match own.down {
            Down::To(offset) => offset >= floor && !own.lacks_plain,
            Down::ToStamp(stamp) => stamp >= lost.0 && !own.lacks_plain,
            _ => true,
        };
        if !is_whole {
            // Its client gets the whole state.
            return Ok(StateReading::begin(self, own.start, Down::ToBase, own.attempts + 1));
        }
        let is_superseded = |content: &Arc<Content>| {
            content.key().is_some_and(|key| late.seen.contains(key)) || content.id.offset <= base
        };
        let before = own.messages.into_iter().filter(|content| !is_superseded(content));
        let mut messages: Vec<_> = late.messages.into_iter().chain(before).collect();
        messages.reverse();
        let is_recovered = match own.start {
            StartAt::After(_) | StartAt::Since(_) => {
                Some(matches!(own.down, Down::To(_) | Down::ToStamp(_)))
            }
            _ => None,
        };
        let cursor = match own.down {
            Down::To(offset) => offset,
            _ => own.cursor.unwrap_or(head),
        };
        let head = MessageId { epoch: self.logs.epoch(), offset: head };
        own.messages = Vec::new();
        let is_ended = own.is_ended;
        own.read = Some(Start { head, cursor, is_recovered, is_sparse: true, is_ended, messages });
        Ok(own)
    }
}

/// True if a reading ends before this message.
fn is_beyond(own: &StateReading, content: &Content) -> bool {
    match own.down {
        Down::To(offset) => content.id.offset <= offset,
        Down::ToStamp(stamp) => content.stamp.0 <= stamp,
        Down::ToTime(time_ms) => content.time_ms < time_ms,
        Down::Last(left) => left == 0,
        Down::ToBase => false,
    }
}
