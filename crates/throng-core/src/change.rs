//! Changes of one log beyond another message at its end: several messages at once under a
//! condition, its record, and erasure.
//!
//! All of a [`LogChange`] is made or nothing, in one step for everybody who reads the log.
//!
//! **A record** is a small block of facts about a log: that it was created, of which type it is,
//! when it ends, how far its producers are. Journals keep it unread. It is written with the
//! messages that belong to it, and has a version: a writer names the version that it has read, and
//! changes that one or none.
//!
//! **The end** of a channel is a fact in its record, and a notice in its log that comes with it.
//! From then on the log takes notices of erasure alone, until the channel is opened again. The
//! notice of an end that is over tells readers nothing.
//!
//! **Erasure** takes messages out of a log for good. Their offsets stay given, so that none names
//! two messages, and readers pass over a single erased message as over one that has expired. Where
//! a whole history is erased, the log is as if its retention had dropped everything: clients that
//! resume from before are told of the gap.

use std::sync::Arc;

use throng_wire::{ErrorCode, ErrorResponse};

use crate::attributes::{Attribute, Attributes, Erasure, MalformedAttributes};
use crate::holder::RoomHolder;
use crate::id::MessageId;
use crate::message::{Body, Message};
use crate::name::ChannelName;
use crate::publication::{Publication, PublishError};

/// The maximum number of messages of a change. The servers of NATS take 1,000 in one step, and a
/// record and a condition may be one each.
pub(crate) const CHANGE_MESSAGES_MAX: usize = 998;

/// The maximum size of a record in bytes. Every reader of a log may get it.
pub const RECORD_BYTES_MAX: usize = 4 << 10;

/// The number of a log's record: it changes with each one that is written, and is never 0.
pub type RecordVersion = u64;

/// The facts about a log that are kept beside its messages: a block of numbered values, of which a
/// program keeps those that it does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord(Attributes);

impl LogRecord {
    /// The record with these numbers and values, in ascending order of the numbers.
    ///
    /// # Errors
    ///
    /// There are none, they are in another order, or larger than [`RECORD_BYTES_MAX`].
    pub fn of(values: &[(u16, &[u8])]) -> Result<LogRecord, MalformedAttributes> {
        LogRecord::read(Attributes::of(values)?.block())
    }

    /// Reads the block of a record.
    ///
    /// # Errors
    ///
    /// It is none, or beyond the limit.
    pub fn read(block: &[u8]) -> Result<LogRecord, MalformedAttributes> {
        if block.len() > RECORD_BYTES_MAX {
            return Err(MalformedAttributes);
        }
        Attributes::read(block).map(LogRecord)
    }

    /// The block.
    pub fn block(&self) -> &[u8] {
        self.0.block()
    }

    /// One of its values.
    pub(crate) fn get(&self, attribute: Attribute) -> Option<&[u8]> {
        self.0.get(attribute)
    }

    /// True if it says that the channel has ended.
    pub fn is_of_end(&self) -> bool {
        self.0.get(Attribute::End).is_some()
    }

    /// A record with this value, beside those of `record`.
    pub(crate) fn setting(
        record: Option<&LogRecord>,
        attribute: Attribute,
        value: &[u8],
    ) -> LogRecord {
        let with_others = record.and_then(|record| record.0.with(attribute, Some(value)));
        // One that is full keeps nothing else: it would keep the channel from ending.
        let record = with_others.map(LogRecord).filter(|it| it.block().len() <= RECORD_BYTES_MAX);
        record.unwrap_or_else(|| {
            let alone = Attributes::of(&[(attribute as u16, value)]);
            LogRecord(alone.expect("one short value is within the limits"))
        })
    }

    /// The same of one that is opened again; `None` if nothing else is in it.
    fn opened(&self) -> Option<LogRecord> {
        self.0.with(Attribute::End, None).map(LogRecord)
    }
}

/// The record of a log, with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRecord {
    pub version: RecordVersion,
    pub record: LogRecord,
}

/// The state that a log must have for a change to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    /// The head of the log, as [`LogState::head`] has it.
    pub head: Option<MessageId>,
    /// The version of the log's record; 0 if it must have none.
    pub record: Option<RecordVersion>,
    /// A key of the log's state.
    pub key: Option<KeyCondition>,
}

/// The value that a key must have for a change to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCondition {
    pub key: Box<str>,
    /// The message that set it; `None` if it must have no value.
    pub newest: Option<MessageId>,
}

impl Condition {
    /// True if a log in this state may be changed, as far as that does not depend on a key.
    pub fn holds(&self, state: &LogState) -> bool {
        self.head.is_none_or(|head| head == state.head)
            && self.record.is_none_or(|wanted| wanted == state.record_version())
    }
}

/// The part of a change that concerns the log's record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RecordChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is replaced, or written for the first time.
    Write(LogRecord),
    /// It is removed.
    Remove,
}

/// A change of one log.
#[derive(Debug, Clone)]
pub struct LogChange {
    /// The channel of the log.
    pub channel: ChannelName,
    pub condition: Condition,
    /// The messages to append, in this order, all of that channel: at most
    /// [`CHANGE_MESSAGES_MAX`], without idempotency keys and receipts.
    pub messages: Vec<Publication>,
    pub record: RecordChange,
    /// The publisher to which a creation is charged.
    pub holder: RoomHolder,
}

impl LogChange {
    /// True if it is about keys of the log's state.
    pub fn has_keys(&self) -> bool {
        self.condition.key.is_some() || self.messages.iter().any(|it| it.key().is_some())
    }

    /// A change that appends these messages without a condition.
    pub fn append(channel: ChannelName, messages: Vec<Publication>) -> LogChange {
        LogChange {
            channel,
            condition: Condition::default(),
            messages,
            record: RecordChange::default(),
            holder: RoomHolder::NOBODY,
        }
    }

    /// The change that ends a channel whose log is in this state, with a last message if there is
    /// one.
    pub fn end(channel: ChannelName, last: Option<Publication>, before: &LogState) -> LogChange {
        let notice = Publication::new(channel.clone(), Body::Text("".into()));
        let notice = Publication { attributes: Some(Attributes::of_end()), ..notice };
        let record = before.record.as_ref().map(|known| &known.record);
        LogChange {
            condition: Condition { record: Some(before.record_version()), ..Condition::default() },
            record: RecordChange::Write(LogRecord::setting(record, Attribute::End, b"")),
            ..LogChange::append(channel, last.into_iter().chain([notice]).collect())
        }
    }

    /// The change that opens a channel again whose log is in this state. `None` if it has not
    /// ended.
    pub fn open(channel: ChannelName, before: &LogState) -> Option<LogChange> {
        let known = before.record.as_ref().filter(|known| known.record.is_of_end())?;
        let condition = Condition { record: Some(known.version), ..Condition::default() };
        let record = known.record.opened().map_or(RecordChange::Remove, RecordChange::Write);
        Some(LogChange { condition, record, ..LogChange::append(channel, Vec::new()) })
    }

    /// True if the channel has ended afterwards.
    pub(crate) fn is_of_end(&self) -> bool {
        matches!(&self.record, RecordChange::Write(record) if record.is_of_end())
    }

    /// True if it has messages that a channel takes only before its end.
    pub fn is_refused_by_end(&self) -> bool {
        self.messages.iter().any(Publication::is_refused_by_end)
    }

    /// The change that tells everybody who reads a log which of its messages are erased. Workers
    /// drop the bodies of these as soon as they get it.
    pub fn notice(channel: ChannelName, erasure: Erasure) -> LogChange {
        let attributes = Some(Attributes::of_erasure(erasure));
        let publication = Publication::new(channel.clone(), Body::Text("".into()));
        LogChange::append(channel, vec![Publication { attributes, ..publication }])
    }
}

/// Leaves placeholders of the messages of which a later one among them says that they are erased: a
/// part of a log may have been read before that.
pub(crate) fn leave_out_erased(messages: &mut [Arc<Message>]) {
    for at in 0..messages.len() {
        let Some(Erasure { first, last }) = messages[at].erases() else { continue };
        let from = messages.partition_point(|message| message.id.offset < first);
        let to = messages.partition_point(|message| message.id.offset <= last).min(at);
        for message in messages.get_mut(from..to).into_iter().flatten() {
            if !message.is_without_body() {
                *message = Arc::new(Message::from(Arc::new(message.without_body())));
            }
        }
    }
}

/// Leaves placeholders of notices that a channel has ended which has been opened again.
pub(crate) fn leave_out_ends(messages: &mut [Arc<Message>]) {
    for message in messages.iter_mut().filter(|message| message.is_end()) {
        *message = Arc::new(Message::from(Arc::new(message.without_body())));
    }
}

/// A log after a change, or when it was asked for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogState {
    /// The id of the newest message, or of the last one that there was.
    pub head: MessageId,
    pub record: Option<KnownRecord>,
}

impl LogState {
    /// The version of the record; 0 without one.
    pub fn record_version(&self) -> RecordVersion {
        self.record.as_ref().map_or(0, |known| known.version)
    }

    /// True if the channel has ended.
    pub fn is_ended(&self) -> bool {
        self.record.as_ref().is_some_and(|known| known.record.is_of_end())
    }
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The ids of the messages that were appended, in their order.
    pub ids: Vec<MessageId>,
    /// The version of the record afterwards; 0 if there is none.
    pub record: RecordVersion,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The condition does not hold: the log is in this state.
    #[error("the log has changed meanwhile")]
    Conflict(LogState),
    /// The condition on a key does not hold: this message is the key's newest, or the key has no
    /// value.
    #[error("the key has changed meanwhile")]
    KeyConflict(Option<MessageId>),
    /// The journal cannot make such changes; the reason is a sentence.
    #[error("{0}")]
    Unsupported(&'static str),
    /// As with any other publication.
    #[error(transparent)]
    Refused(#[from] PublishError),
}

impl From<ChangeError> for ErrorResponse {
    fn from(error: ChangeError) -> ErrorResponse {
        match error {
            ChangeError::Conflict(_) => ErrorResponse::new(ErrorCode::Conflict, error.to_string()),
            ChangeError::KeyConflict(None) => {
                ErrorResponse::new(ErrorCode::Conflict, "the key has no value")
            }
            ChangeError::KeyConflict(Some(id)) => {
                let message = format!("the key has another value, that of message {id}");
                ErrorResponse::new(ErrorCode::Conflict, message)
            }
            ChangeError::Unsupported(why) => ErrorResponse::new(ErrorCode::BadRequest, why),
            ChangeError::Refused(error) => error.into(),
        }
    }
}

/// The outcome of a change.
pub type ChangeOutcome = Result<Changed, ChangeError>;

/// The messages of a log to erase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erase {
    /// One of them.
    Message(MessageId),
    /// All that there are now.
    History,
    /// All that there are now, and the record: the log begins anew after its last offset.
    Log,
}

/// The result of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erased {
    /// The number of messages that could be read until then, without notices; `None` if the journal
    /// does not count them.
    pub messages: Option<u64>,
}

/// The outcome of an erasure. A message that is not there is no error: none is erased.
pub type EraseOutcome = Result<Erased, ChangeError>;
