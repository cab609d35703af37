//! Requests about logs and states, and their outcomes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use throng_core::{
    ChannelName, KeyQuery, KnownRecord, LogRecord, Publication, PublishError, RecordChange,
    RecordVersion, Replacement, creation,
};

use crate::api::NatsLimit;
use crate::api::link::Link;
use crate::api::message::StoredMessage;

/// The outcome of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Stored {
        sequence: u64,
        /// True if its idempotency key was known, and the sequence is the first publication's.
        is_duplicate: bool,
    },
    /// It is not stored: too many are under way.
    Busy,
    /// It is not stored: the stream cannot be reached.
    Away,
    /// It may be stored, or not, or still be.
    Unknown,
    /// It is not stored: the channel has ended.
    Ended,
    /// It is not stored: the channel's state does not take it.
    State(PublishError),
    /// It is not stored: servers do not accept a message of this size.
    TooLarge {
        /// The largest that is accepted, with its headers: `max_payload` of the servers, or of the
        /// account.
        bytes_max: usize,
    },
    /// It is not stored, and would not be a moment later.
    Refused {
        reason: String,
        /// The limit that it exceeds, if it does.
        limit: Option<NatsLimit>,
    },
}

/// A request about the log of a channel.
#[derive(Debug)]
pub enum LogRequest {
    /// To append messages and write the record, all or nothing.
    Change(Box<LogEdit>),
    /// To read the head and the record.
    State,
    /// To erase the message with this sequence.
    EraseMessage(u64),
    /// To erase all messages that there are now.
    EraseHistory {
        /// True if the record is erased, too.
        with_record: bool,
        /// The last message to erase, if it was there before.
        up_to: Option<u64>,
    },
}

/// A change of a log: as [`throng_core::LogChange`], with sequences of the stream.
#[derive(Debug)]
pub struct LogEdit {
    /// The head, if it has to be this one.
    pub head: Option<u64>,
    /// The version of the record, if it has to be this one.
    pub record_version: Option<RecordVersion>,
    /// A key, and the message that has set it, if it has to be this one; `None`: it has no value.
    pub key: Option<(Box<str>, Option<u64>)>,
    pub messages: Vec<Publication>,
    pub record: RecordChange,
    /// As in [`PublishRequest::may_end`].
    pub may_end: bool,
}

impl LogEdit {
    /// The messages as a channel with this record takes them, before the change.
    ///
    /// # Errors
    ///
    /// Why it does not take one of them.
    pub(in crate::journal) fn admit(
        &self,
        record: Option<&LogRecord>,
    ) -> Result<Vec<Cow<'_, Publication>>, PublishError> {
        let is_created = record.is_some_and(LogRecord::is_of_creation);
        let record = match &self.record {
            RecordChange::Write(written) if !is_created => Some(written),
            _ => record,
        };
        let messages = self.messages.iter().map(|publication| {
            let admitted = creation::admit(record, publication.needs_creation, publication)?;
            Ok(admitted.map_or(Cow::Borrowed(publication), |replacement| {
                let Replacement { body, content_type } = replacement;
                Cow::Owned(Publication { body, content_type, ..publication.clone() })
            }))
        });
        messages.collect()
    }

    /// Why a channel with this record does not take it, if it does not.
    pub(in crate::journal) fn refused_after(
        &self,
        record: Option<&KnownRecord>,
    ) -> Option<Outcome> {
        let record = record.map(|known| &known.record);
        if record.is_some_and(LogRecord::is_of_end) && self.is_refused_by_end() {
            return Some(Outcome::Ended);
        }
        self.admit(record).err().map(Outcome::State)
    }

    /// The message in whose place it puts another one. Of a value the condition on its key decides
    /// whether it may.
    pub(in crate::journal) fn replaces(&self) -> Option<u64> {
        let of = |publication: &Publication| publication.attributes.as_ref()?.replaces();
        self.key.is_none().then(|| self.messages.iter().find_map(of)).flatten()
    }

    /// True if it creates a channel.
    pub(in crate::journal) fn is_of_creation(&self) -> bool {
        matches!(&self.record, RecordChange::Write(record) if record.is_of_creation())
    }

    /// True if it has messages that a channel takes only before its end.
    pub(in crate::journal) fn is_refused_by_end(&self) -> bool {
        self.messages.iter().any(Publication::is_refused_by_end)
    }
}

/// The log of a channel, with sequences of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFacts {
    pub head: u64,
    pub record: Option<KnownRecord>,
}

/// The outcome of a [`LogRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOutcome {
    Changed {
        /// The sequence of the first message. Those of the others follow without a hole.
        first: u64,
        /// The version of the record; 0 if there is none.
        record: RecordVersion,
    },
    /// The log was read.
    State(LogFacts),
    /// The condition does not hold, and nothing was changed.
    Conflict(LogFacts),
    /// The condition on a key does not hold: this message has set it, or it has no value.
    KeyConflict(Option<u64>),
    /// The messages are erased: so many, if they were counted.
    Erased(Option<u64>),
    /// The stream cannot do this; the reason is a sentence.
    Unsupported(&'static str),
    /// The outcome of a publication, none of [`Outcome::Stored`].
    Failed(Outcome),
}

/// A state to read.
#[derive(Debug)]
pub struct ReadState {
    /// Comes back with it.
    pub token: u64,
    pub channel: ChannelName,
    /// Only the keys of this page, if there is one.
    pub page: Option<KeyQuery>,
    /// The newest message of the log that is known to have come with the state.
    pub at_least: u64,
    /// True to learn what the stream has lost.
    pub wants_bounds: bool,
    /// True if only values that expire matter.
    pub is_of_expiring: bool,
}

/// The state of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateFacts {
    /// The newest message of the channel; 0 if it never kept a state.
    pub head: u64,
    /// The newest message without a key before that.
    pub plain: u64,
    /// Tombstones up to this message may be gone.
    pub floor: u64,
    /// The newest messages of keys, oldest first.
    pub messages: Vec<StoredMessage>,
    /// The key after which the next page goes on, if there may be one.
    pub next: Option<Box<str>>,
    /// The first and last sequence of the stream, if they were asked for.
    pub bounds: (u64, u64),
    /// All messages up to here were erased with their history.
    pub erased: u64,
    /// The links of messages that were erased one by one.
    pub links: BTreeMap<u64, Link>,
}

impl StateFacts {
    /// Whether a client with this position lacks nothing, if it gets the messages that were `read`
    /// of the log after it, and the newest of each key. `is_whole_log`: none between them is
    /// missing in the log.
    ///
    /// Nothing is counted. Either each message names the one before, down to the position; or all
    /// without a key are named and there, and the stream still has all tombstones that came since.
    pub fn is_whole(
        &self,
        position: u64,
        read: &[(u64, Option<Link>)],
        is_whole_log: bool,
    ) -> bool {
        let (first, last) = self.bounds;
        if position < self.erased || position > last {
            return false;
        }
        if is_whole_log || self.reaches(position, read, |link| link.before, self.head) {
            return true;
        }
        position >= self.floor
            && position.saturating_add(1) >= first
            && self.reaches(position, read, |link| link.plain, self.plain)
    }

    /// Whether each message that links name was read or erased, down to a position. `of` chooses
    /// one of a link; `head` is that of the next message.
    fn reaches(
        &self,
        position: u64,
        read: &[(u64, Option<Link>)],
        of: fn(&Link) -> u64,
        head: u64,
    ) -> bool {
        let is_known = |mut named: u64, known: u64| {
            while named > known {
                // Each link names an earlier message.
                match self.links.get(&named).map(of) {
                    Some(before) if before < named => named = before,
                    _ => return false,
                }
            }
            true
        };
        let mut known = position;
        for (sequence, link) in read {
            if !link.as_ref().is_some_and(|link| is_known(of(link), known)) {
                return false;
            }
            known = *sequence;
        }
        !read.is_empty() || is_known(head, position)
    }
}
