//! Publications and their outcomes.

use std::sync::Arc;

use throng_wire::{ErrorCode, ErrorResponse};

use crate::attributes::{Attributes, Extras};
use crate::connection_name::ConnectionName;
use crate::holder::RoomHolder;
use crate::id::{Epoch, MessageId};
use crate::idempotency_key::IdempotencyKey;
use crate::message::{Body, Content, OVERHEAD_BYTES};
use crate::name::ChannelName;
use crate::read_marker::{MarkerKey, Mover, ReadMarker, UnreadNotice};
use crate::receipt::Receipt;

/// A message that a client publishes.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The channel or user that it is published to.
    pub channel: ChannelName,
    pub body: Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<Box<str>>,
    /// A second publication with the same key, which has its publisher, and the same channel within
    /// [`IDEMPOTENCY_MS`] publishes nothing.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The connection that does not get the message, usually the sender's own.
    pub excluded: Option<ConnectionName>,
    pub attributes: Option<Attributes>,
    /// For how long the message is worth anything, in milliseconds; `None` if it does not expire.
    pub expires_in_ms: Option<u64>,
    /// Counts what becomes of the message, if its publisher wants to know. It does not begin if
    /// nothing is published.
    pub receipt: Option<Arc<Receipt>>,
    /// True if its channel has to be created before, as the channel's rule says. A journal learns
    /// it so.
    pub needs_creation: bool,
    /// The publisher to which a value is charged.
    pub holder: RoomHolder,
}

impl Publication {
    /// The key of the channel's state that the message sets or removes.
    pub fn key(&self) -> Option<&str> {
        self.attributes.as_ref()?.key()
    }

    /// True if the message removes its key.
    pub fn removes_key(&self) -> bool {
        self.attributes.as_ref().is_some_and(Attributes::removes_key)
    }

    /// The message with which the server removes a key.
    pub fn tombstone(channel: ChannelName, key: &str) -> Publication {
        let attributes = Attributes::tombstone(key);
        Publication { attributes, ..Publication::new(channel, Body::Json("null".into())) }
    }

    /// The publication that repeats a message at `now_ms`.
    pub fn again(content: &Content, now_ms: u64) -> Publication {
        let expires_ms = content.expires_ms.map(|at_ms| at_ms.get());
        Publication {
            content_type: content.content_type.clone(),
            excluded: content.extras.excluded(),
            attributes: content.extras.attributes().cloned(),
            expires_in_ms: expires_ms.map(|at_ms| at_ms.saturating_sub(now_ms)),
            ..Publication::new(content.channel.clone(), content.body.clone())
        }
    }

    /// True if it is a notice, or removes a key: nothing that a publisher says.
    pub(crate) fn is_of_server(&self) -> bool {
        self.attributes
            .as_ref()
            .is_some_and(|attributes| attributes.erasure().is_some() || attributes.is_of_server())
    }

    /// True unless it is a notice of erasure: a channel takes others only before its end.
    pub fn is_refused_by_end(&self) -> bool {
        self.attributes.as_ref().is_none_or(|attributes| attributes.erasure().is_none())
    }

    /// Gives it another content.
    pub fn replace(&mut self, Replacement { body, content_type }: Replacement) {
        (self.body, self.content_type) = (body, content_type);
    }

    /// The weight of the message, as [`Content::weight_bytes`] counts it.
    pub fn weight_bytes(&self) -> usize {
        let attributes = self.attributes.as_ref().map_or(0, Attributes::weight_bytes);
        let content_type = self.content_type.as_deref().map_or(0, str::len);
        let texts = self.body.bytes().len() + self.channel.key().len() + content_type;
        texts + attributes + OVERHEAD_BYTES
    }

    /// A publication with nothing but a body of the usual content type.
    pub fn new(channel: ChannelName, body: Body) -> Publication {
        Publication {
            channel,
            body,
            content_type: None,
            idempotency_key: None,
            excluded: None,
            attributes: None,
            expires_in_ms: None,
            receipt: None,
            needs_creation: false,
            holder: RoomHolder::NOBODY,
        }
    }
}

/// The content of a message in place of its publisher's, by the one who decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub body: Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<Box<str>>,
}

/// A message for those that follow its channel now, and keep up: it has no id, is in no log, and is
/// not kept for anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolatilePublication {
    /// The channel or user that it is published to.
    pub channel: ChannelName,
    pub body: Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<Box<str>>,
    /// The connection that does not get the message, usually the sender's own.
    pub excluded: Option<ConnectionName>,
    pub attributes: Option<Attributes>,
}

impl VolatilePublication {
    /// A volatile message with nothing but a body of the usual content type.
    pub fn new(channel: ChannelName, body: Body) -> VolatilePublication {
        let (content_type, excluded, attributes) = (None, None, None);
        VolatilePublication { channel, body, content_type, excluded, attributes }
    }

    /// Tells the followers of a user's inbox of a new marker, but for the one that has moved it.
    pub(crate) fn unread(of: &MarkerKey, marker: &ReadMarker, mover: Option<Mover>) -> Self {
        VolatilePublication {
            excluded: mover.map(|mover| mover.connection),
            attributes: Some(Attributes::of_unread(of, marker)),
            ..VolatilePublication::new(of.told(), Body::Text("".into()))
        }
    }

    /// The new place of a read marker, if it is a notice of that, of which nodes of earlier
    /// versions do not know.
    pub fn notice(&self) -> Option<UnreadNotice<'_>> {
        self.attributes.as_ref()?.unread()
    }

    /// The message, which has no place among others.
    pub(crate) fn content(self, epoch: Epoch, time_ms: u64) -> Content {
        let VolatilePublication { channel, body, content_type, excluded, attributes } = self;
        let extras = Extras::new(excluded, attributes);
        let content = Content::new(MessageId { epoch, offset: 0 }, 0, time_ms, channel, body);
        Content { content_type, extras, ..content }
    }
}

/// How long an idempotency key is remembered, unless keys of the same publisher displace it.
pub const IDEMPOTENCY_MS: u64 = 5 * 60 * 1000;

/// The result of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    pub id: MessageId,
    /// The number of subscriptions that the message is delivered to.
    pub subscribers: u64,
    /// True if the idempotency key was known: nothing was published, and `id` is the id of the
    /// first publication.
    pub is_duplicate: bool,
}

/// The outcome of a publication.
pub type Outcome = Result<Published, PublishError>;

/// Why a publication was refused, or what else became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The queue of a worker that follows the channel is full.
    #[error("delivery lags, so the message was not accepted; try again later")]
    Busy,
    /// The journal that keeps the channel cannot be written or reached. Nothing was published.
    #[error("the channel's journal is away, so the message was not accepted; try again later")]
    Away,
    /// The journal has no space left. Nothing was published.
    #[error("the data directory is full, so the message was not accepted; free space on its disk")]
    DiskFull,
    /// The data directory takes more than it may. Nothing was published.
    #[error(
        "the data directory is beyond `data-max-bytes`, so the message was not accepted; raise \
         that limit, or let channels keep less"
    )]
    OverLimit,
    /// The journal accepts no message of this size. Nothing was published.
    #[error("the message is larger than the channel's journal accepts: see max_payload of NATS")]
    TooLarge,
    /// The servers of the journal store no more for this installation. Nothing was published.
    #[error(
        "a limit of storage in NATS is reached, so the message was not accepted; raise that of the \
         account or of the servers"
    )]
    OverQuota,
    /// The journal has refused the message, for a reason that will not pass. Nothing was published.
    #[error("the channel's journal refuses the message; the server's log says why")]
    Refused,
    /// The channel has as many keys, or as many bytes of them, as its rule allows. Nothing was
    /// published.
    #[error(
        "the channel's state is full, so the key was not accepted; remove keys, or raise `keys` \
         and `key-bytes` of its rule"
    )]
    StateFull,
    /// The keys of all channels take as many bytes as they may. Nothing was published.
    #[error(
        "the states and creations of all channels take as much as they may, so this was not \
         accepted: half of `history.total-bytes`, or on disk of `data-max-bytes`"
    )]
    AllStatesFull,
    /// The publisher holds as many bytes of those as it leaves to others. Nothing was published.
    #[error(
        "the publisher's states and creations take as much room as is left for all others, so this \
         was not accepted: remove some, or raise `history.total-bytes`, or on disk \
         `data-max-bytes`"
    )]
    StatesOverShare,
    /// The channel keeps no state. Nothing was published.
    #[error(
        "the channel keeps no state: `history.keys`, or `keys` of its rule, is 0, or several nodes \
         share it and its rule has no `keys`"
    )]
    NoState,
    /// The channel has ended. Nothing was published.
    #[error("the channel has ended: it takes no more messages")]
    Ended,
    /// Nobody has created the channel, which its rule requires. Nothing was published.
    #[error("nobody has created the channel, which its rule requires")]
    NotCreated,
    /// The channel was created for messages of another content type. Nothing was published.
    #[error("the channel takes messages of its own content type only: see its creation")]
    OtherType,
    /// A message removes a key that the channel does not have. Nothing was published.
    #[error("the channel has no such key")]
    NoKey,
    /// The journal has not answered, in time or at all. The message may be published already, or
    /// still be.
    #[error("it is not known whether this is published; repeat it with its idempotency key")]
    Unknown,
    /// The channel has given out its last offset. Only a frozen state that was made up gets there.
    #[error("the channel has no id left for another message; restart the server")]
    NoOffset,
}

impl PublishError {
    /// True if the state, or all states, have no room.
    pub fn is_of_full_state(&self) -> bool {
        let errors =
            [PublishError::StateFull, PublishError::AllStatesFull, PublishError::StatesOverShare];
        errors.contains(self)
    }
}

impl From<PublishError> for ErrorResponse {
    fn from(error: PublishError) -> ErrorResponse {
        let code = match error {
            PublishError::Busy | PublishError::NoOffset => ErrorCode::Busy,
            PublishError::Away => ErrorCode::Unavailable,
            PublishError::DiskFull
            | PublishError::OverLimit
            | PublishError::OverQuota
            | PublishError::StateFull
            | PublishError::AllStatesFull
            | PublishError::StatesOverShare
            | PublishError::Refused => ErrorCode::NotStored,
            PublishError::NoState => ErrorCode::BadRequest,
            PublishError::NoKey => ErrorCode::NotFound,
            PublishError::Ended => ErrorCode::Closed,
            PublishError::NotCreated => ErrorCode::NotCreated,
            PublishError::OtherType => ErrorCode::OtherType,
            PublishError::TooLarge => ErrorCode::TooLarge,
            PublishError::Unknown => ErrorCode::OutcomeUnknown,
        };
        ErrorResponse::new(code, error.to_string())
    }
}
