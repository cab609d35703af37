//! What an engine promises.
//!
//! The engine owns the logs; the rest of the server does not know which one it runs on.

use std::sync::Arc;

use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::id::{ChannelId, LocalId, MessageId, Position, WorkerId};
use crate::message::{Body, ConnectionName, Message};
use crate::name::ChannelName;
use crate::presence::{PresenceBusy, PresenceCache, PresenceDone};
use crate::rules::RuleId;
use crate::worker_queue::{FollowsQuery, Notification};

/// Something to publish.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Where.
    pub channel: ChannelName,
    /// What.
    pub body: Body,
    /// Its content type, unless it is the usual one of the body's kind.
    pub content_type: Option<Box<str>>,
    /// The same key on the same channel within [`IDEMPOTENCY_MS`] publishes nothing.
    pub idempotency_key: Option<Box<str>>,
    /// The connection that does not get it.
    pub excluded: Option<ConnectionName>,
}

/// For how long an idempotency key is remembered, in milliseconds, unless a million others came
/// after it.
pub const IDEMPOTENCY_MS: u64 = 5 * 60 * 1000;

/// What became of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The message's id.
    pub id: MessageId,
    /// Subscriptions that it is on its way to.
    pub subscribers: u64,
    /// Whether its idempotency key was known: nothing was published, `id` is the first one's.
    pub is_duplicate: bool,
}

/// Why nothing was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A worker that follows the channel does not keep up.
    #[error("delivery is behind, the message was not accepted; try again later")]
    Busy,
}

impl From<PublishError> for ErrorResponse {
    fn from(error: PublishError) -> ErrorResponse {
        let code = match error {
            PublishError::Busy => ErrorCode::Busy,
        };
        ErrorResponse::new(code, error.to_string())
    }
}

/// Where a subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// With the next message.
    Live,
    /// With the last so many messages.
    Last(usize),
    /// With what came after this message.
    After(MessageId),
}

impl StartAt {
    /// Where each subscription that `request` asks for starts, in the order of its targets.
    pub fn of_request(request: &Request) -> Result<Vec<StartAt>, ErrorResponse> {
        let channels = request.targets.len();
        let Some(since) = &request.since else {
            let start =
                request.history.map_or(StartAt::Live, |count| StartAt::Last(count as usize));
            return Ok(vec![start; channels]);
        };
        let Position(ids) = since.parse()?;
        if ids.len() != channels {
            let message = format!(
                "{} ids were given for {channels} channels; give one each, joined by commas",
                ids.len()
            );
            return Err(ErrorResponse::new(ErrorCode::BadId, message));
        }
        Ok(ids.into_iter().map(StartAt::After).collect())
    }
}

/// A worker's request to follow a channel for one more subscription.
#[derive(Debug, Clone)]
pub struct Follow<'a> {
    /// Which channel.
    pub channel: &'a ChannelName,
    /// Who.
    pub worker: WorkerId,
    /// Where the worker will keep the channel, if it does not follow it yet.
    pub local_if_new: LocalId,
    /// Where the subscription starts.
    pub start: StartAt,
}

/// The engine's answer to [`Follow`].
#[derive(Debug)]
pub struct Followed {
    /// The channel.
    pub channel: ChannelId,
    /// Where the worker keeps it: `local_if_new`, or where it was kept already.
    pub local: LocalId,
    /// The settings that hold for the channel.
    pub rule: RuleId,
    /// The newest message's id.
    pub head: MessageId,
    /// The subscription's cursor: the id after which it starts.
    pub cursor: MessageId,
    /// With [`StartAt::After`], whether everything after that id is there.
    pub is_recovered: Option<bool>,
    /// Whether each offset of the channel is its predecessor's plus one, so that the difference of
    /// two offsets is a number of messages.
    pub are_offsets_consecutive: bool,
    /// The messages between cursor and head.
    pub backlog: Vec<Arc<Message>>,
}

/// Which part of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryQuery {
    /// The newest.
    Newest,
    /// The newest before this id.
    Before(MessageId),
    /// The oldest after this id.
    After(MessageId),
}

/// A page of history.
#[derive(Debug)]
pub struct History {
    /// The newest message's id.
    pub head: MessageId,
    /// Oldest first.
    pub messages: Vec<Arc<Message>>,
    /// Whether there are further messages in the direction asked.
    pub has_more: bool,
    /// With [`HistoryQuery::After`], whether everything after that id is there.
    pub is_recovered: Option<bool>,
}

/// Who follows a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audience {
    /// Subscriptions in all.
    pub subscribers: u64,
    /// The workers that have some, and where they keep the channel.
    pub workers: Vec<(WorkerId, LocalId, ChannelId)>,
}

/// Figures about the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineMetrics {
    /// Channels and users known.
    pub channels: u64,
    /// Messages kept.
    pub messages: u64,
    /// Bytes kept.
    pub bytes: u64,
    /// Messages accepted since the start.
    pub published: u64,
    /// Publications refused because delivery was behind.
    pub busy: u64,
    /// Repeated idempotency keys.
    pub duplicates: u64,
    /// Messages dropped before their time because all logs together were over their limit.
    pub evicted: u64,
}

/// The owner of the logs. `now_ms` is milliseconds since 1970 and never goes back.
pub trait Engine: Send + Sync {
    /// Appends to a log and posts the message to each worker that follows it.
    fn publish(&self, now_ms: u64, publication: Publication) -> Result<Published, PublishError>;

    /// One more subscription of a worker. Atomic against publishing: each message is either in the
    /// backlog or before the cursor, or comes by notifications, which may repeat part of the
    /// backlog.
    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed;

    /// One subscription less.
    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId);

    /// A page of at most `limit` messages.
    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History;

    /// Who follows the channel.
    fn audience(&self, channel: &ChannelName) -> Audience;

    /// The name of a channel that is followed.
    fn name(&self, channel: ChannelId) -> Option<ChannelName>;

    /// Gives the names of those of these channels that are followed to `each`, in any order. Sorts
    /// `channels`: what they are kept under is locked once for all of them, not for each.
    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName));

    /// Hands notifications to a worker, outside any channel's order.
    fn post(&self, worker: WorkerId, notification: Notification);

    /// Housekeeping: forgets what is too old, a part of it at each call. Wants to be called about
    /// ten times a second.
    fn tick(&self, now_ms: u64);

    /// Bytes of all logs together; cheap, unlike [`Engine::metrics`].
    fn log_bytes(&self) -> u64;

    /// Figures about the logs.
    fn metrics(&self) -> EngineMetrics;

    /// What shares answers about presence.
    fn presence_cache(&self) -> &Arc<PresenceCache>;

    /// Asks who is in a channel; `done` gets the answer, perhaps at once, perhaps on a worker's
    /// thread, and is dropped if the question is not taken.
    fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        users_max: usize,
        done: PresenceDone,
    ) -> Result<(), PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let cache = self.presence_cache();
        let query = cache.ask(now_ms, channel, connections, workers.len(), users_max, done)?;
        let Some(query) = query else { return Ok(()) };
        for (worker, local, channel) in workers {
            self.post(worker, Notification::Presence { local, channel, query: Arc::clone(&query) });
        }
        Ok(())
    }

    /// Asks whether a connection follows a channel; `done` gets the answer as with
    /// [`Engine::presence`], and is dropped if the connection's worker has ended.
    fn follows(
        &self,
        channel: &ChannelName,
        connection: ConnectionName,
        done: Box<dyn FnOnce(bool) + Send>,
    ) {
        let followers = self.audience(channel).workers;
        match followers.into_iter().find(|(worker, ..)| *worker == connection.worker()) {
            None => done(false),
            Some((worker, _, channel)) => {
                let query = FollowsQuery(done);
                self.post(worker, Notification::Follows { channel, connection, query });
            }
        }
    }
}
