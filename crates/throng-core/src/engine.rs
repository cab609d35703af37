//! The interface of an engine, which owns the logs. The rest of the server does not know which
//! engine it runs on.

use std::sync::Arc;

use crate::connection_name::{ConnectionName, NodeTag};
use crate::connection_scan::{ScanAction, ScanTarget, Scanned, WantedTags};
use crate::id::{ChannelId, LocalId, MessageId, WorkerId};
use crate::later::{Answer, Later, Ticket};
use crate::listing::{ListPlace, ListStep};
use crate::message::Message;
use crate::name::{ChannelName, Kind};
use crate::presence::{Presence, PresenceBusy, PresenceCache, PresenceQuery};
use crate::publication::{Outcome, Publication, PublishError, VolatilePublication};
use crate::read_marker::{Mark, Marked, ReadMarker};
use crate::reading::{Fetched, HistoryQuery, Reading, StartAt};
use crate::rules::RuleId;
use crate::stamp::Watermark;
use crate::worker_queue::Notification;

/// A worker's request to follow a channel for one more subscription.
#[derive(Debug, Clone)]
pub struct Follow<'a> {
    pub channel: &'a ChannelName,
    pub worker: WorkerId,
    /// The worker's id for the channel, unless it follows the channel already.
    pub local_if_new: LocalId,
    pub start: StartAt,
}

/// The engine's answer to [`Follow`].
#[derive(Debug)]
pub struct Followed {
    /// The engine's id for the channel. The worker ends the subscription with it.
    pub channel: ChannelId,
    /// The worker's id for the channel: [`Follow::local_if_new`], or the one of its first
    /// subscription.
    pub local: LocalId,
    /// The channel's rule, with the lag limit that the worker applies.
    pub rule: RuleId,
    /// The id of the newest message. The channel keeps its epoch while it is followed.
    pub head: MessageId,
    /// The subscription's cursor: it gets the messages after this id.
    pub cursor: MessageId,
    /// With [`StartAt::After`] and [`StartAt::Since`], whether all messages after that position are
    /// in `backlog`.
    pub is_recovered: Option<bool>,
    /// True if each offset of the channel is its predecessor's plus one, so that the difference of
    /// two offsets is a number of messages.
    pub are_offsets_consecutive: bool,
    /// The messages after the cursor up to the head, oldest first.
    pub backlog: Vec<Arc<Message>>,
}

impl Followed {
    /// The answer on a channel whose subscribers get the newest message alone: a client that
    /// resumes gets no more than that one, and has recovered if it has it. `resumes_here` is the
    /// position from which it resumes, if this log gave it out; its cursor stays there, so that the
    /// table counts the messages that are skipped.
    pub(crate) fn keep_latest(&mut self, resumes_here: Option<MessageId>) {
        // It does not resume: it gets as much history as it asks for.
        let Some(is_recovered) = self.is_recovered else { return };
        self.backlog.drain(..self.backlog.len().saturating_sub(1));
        let Some(position) = resumes_here else { return };
        let newest = self.backlog.last().map_or(position.offset, |newest| newest.id.offset);
        self.is_recovered = Some(is_recovered || newest >= self.head.offset);
        if !is_recovered {
            self.cursor = position;
        }
    }
}

/// A page of history.
#[derive(Debug)]
pub struct History {
    /// The id of the channel's newest message.
    pub head: MessageId,
    /// The messages of the page, oldest first.
    pub messages: Vec<Arc<Message>>,
    /// True if the next page in the direction of the query has messages.
    pub has_more: bool,
    /// With [`HistoryQuery::After`] and [`HistoryQuery::Since`], whether the log still has all
    /// messages after that position.
    pub is_recovered: Option<bool>,
}

/// The followers of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audience {
    pub subscribers: u64,
    /// The workers that have subscriptions, with their ids for the channel.
    pub workers: Vec<(WorkerId, LocalId, ChannelId)>,
}

/// The combined answers of the other processes that serve the same channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNodes<T> {
    pub found: T,
    /// True if none of their answers is missing.
    pub is_complete: bool,
}

/// There are no others.
impl<T: Default> Default for OtherNodes<T> {
    fn default() -> OtherNodes<T> {
        OtherNodes { found: T::default(), is_complete: true }
    }
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineMetrics {
    /// Channels and users that have messages or followers.
    pub channels: u64,
    /// Messages in all logs.
    pub messages: u64,
    /// Bytes in all logs.
    pub bytes: u64,
    /// Messages accepted since the start, without volatile ones.
    pub published: u64,
    /// Volatile messages published since the start.
    pub volatile: u64,
    /// Publications refused since the start because a worker's queue was full, or because no
    /// offset was left.
    pub busy: u64,
    /// Publications with a known idempotency key since the start.
    pub duplicates: u64,
    /// Messages dropped since the start because all logs together exceeded their limit.
    pub evicted: u64,
    /// Messages in logs that have expired since the start.
    pub expired: u64,
    /// Idempotency keys that are remembered in memory.
    pub keys: u64,
    /// Keys among them forgotten early since the start, because there were too many.
    pub keys_displaced: u64,
}

/// The owner of the logs.
///
/// * `now_ms` is milliseconds since 1970, and never goes back.
/// * Offsets grow within a channel and may skip numbers. Each message carries its predecessor's, so
///   that a hole shows. A channel keeps its epoch while it is followed.
/// * Each engine passes the tests of the module `conformance`.
pub trait Engine: Send + Sync {
    /// Appends a message to its channel's log and notifies the workers that follow the channel: all
    /// of them, in the order of offsets, or none if the publication is refused.
    ///
    /// Answers when the message is where the channel's journal keeps it: at once if that is this
    /// process's memory, later if it is a disk or another machine. An asker's publications to a
    /// channel get their offsets in the order of the calls, also while earlier ones are not
    /// answered. Nothing that was accepted depends on the asker: it may be gone when the answer
    /// comes.
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome>;

    /// Publishes to an internal log. Each engine keeps those in memory and answers at once.
    fn publish_internal(&self, now_ms: u64, publication: Publication) -> Outcome {
        debug_assert_eq!(publication.channel.kind(), Kind::Internal);
        let mut issue = || Ticket::new(drop);
        let answer = self.publish(now_ms, publication, Later::new(&mut issue));
        answer.now().unwrap_or(Err(PublishError::Unknown))
    }

    /// Posts a volatile message to the workers that follow its channel, in the order of the calls
    /// and of its other messages. It is in no log, so nothing that the engine keeps changes, and no
    /// disk and no journal hears of it. Workers whose queues fill do not get it, and count that.
    ///
    /// Returns the number of subscriptions that it is posted for.
    ///
    /// # Errors
    ///
    /// Why it was not posted at all.
    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError>;

    /// True if other processes serve the same channels. Then [`Engine::watermark`] may be behind
    /// what others have published, and is no place for a subscription to begin.
    fn is_shared(&self) -> bool {
        false
    }

    /// The tag that all connection names of this process share, and no other process that serves
    /// the same channels. It never changes: peers remember names.
    fn node(&self) -> NodeTag {
        NodeTag::ALONE
    }

    /// True if what is posted to workers is settled at once. If not, workers are told
    /// ([`Notification::Settled`]) when it is.
    fn is_settling(&self) -> bool {
        true
    }

    /// The position of a client that has all messages which are settled: each of them is in its
    /// channel's log, and in the queues of the workers that follow the channel.
    fn watermark(&self) -> Watermark;

    /// True if parts of some logs have to be [fetched](Engine::fetch). If not, callers skip the
    /// question for each channel.
    fn fetches(&self) -> bool {
        false
    }

    /// Makes a part of a channel's log readable at once, for [`Engine::follow`] or
    /// [`Engine::history`]. Answers later if the part has to be fetched from elsewhere. It stays
    /// readable until what is returned is dropped.
    ///
    /// An engine that keeps all logs in memory need not implement it.
    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let _ = (now_ms, channel, reading, later);
        Fetched::in_memory().into()
    }

    /// Adds a subscription of a worker. Its start is [fetched](Engine::fetch) before, so that
    /// following and reading the backlog is one step: each message is before the cursor, in the
    /// backlog, or comes as a notification. A notification may repeat a part of the backlog.
    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed;

    /// Says that a worker is about to [`follow`](Engine::follow) these channels, at most
    /// [`AHEAD`](crate::AHEAD) of them: an engine may load what that needs, all at the same time.
    /// Passes the worker's ids of those that it follows already, as far as they are easily found.
    fn look_ahead(
        &self,
        channels: &[ChannelName],
        worker: WorkerId,
        each: &mut dyn FnMut(LocalId),
    ) {
        let _ = (channels, worker, each);
    }

    /// Removes a subscription of a worker.
    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId);

    /// Removes a subscription of a worker from each of these channels, in this order.
    fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        for &channel in channels {
            self.unfollow(now_ms, channel, worker);
        }
    }

    /// Corrects the number of a worker's subscriptions of a channel: connections may have been lost
    /// while it was frozen. Does nothing if the worker does not follow the channel.
    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32);

    /// A page of a channel's history, of at most `limit` messages. It is [fetched](Engine::fetch)
    /// before.
    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History;

    /// How far a user has read the inbox, after `mark` if that is given. Markers go forward only,
    /// unless the mark says otherwise. Answers when the marker is where the inbox's journal keeps
    /// it, or that the journal does not take it; not at all if it cannot be read.
    ///
    /// An engine that keeps no markers need not implement it.
    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let _ = (now_ms, inbox, mark, later);
        Ok(ReadMarker::default()).into()
    }

    /// The followers of a channel.
    fn audience(&self, channel: &ChannelName) -> Audience;

    /// The name of a channel; `None` if it was forgotten.
    fn name(&self, channel: ChannelId) -> Option<ChannelName>;

    /// True if this is still the name of a channel: another one may have got its id.
    fn is_named(&self, channel: ChannelId, name: &ChannelName) -> bool {
        self.name(channel).as_ref() == Some(name)
    }

    /// Calls `each` with the names of these channels, in any order and without forgotten ones.
    /// Sorts `channels`, so that each lock is taken once and not for every channel.
    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName));

    /// A step through all channels or users that have messages or subscribers: those at the next
    /// places after `after`, or at the first ones.
    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep;

    /// Hands notifications to a worker, outside any channel's order.
    fn post(&self, worker: WorkerId, notification: Notification);

    /// True if every request has been answered. Only meaningful once no more requests are made.
    /// Always true for engines that answer at once.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// Expires messages and keys of a part of the channels. Call about ten times a second.
    fn tick(&self, now_ms: u64);

    /// Says whether the server is short of memory. While it is, each tick drops some of the oldest
    /// messages early, if the engine keeps them in memory.
    fn set_memory_short(&self, is_short: bool) {
        let _ = is_short;
    }

    /// Bytes in all logs. Cheaper than [`Engine::metrics`].
    fn log_bytes(&self) -> u64;

    /// How many things were held for a short time so far, whose memory is free now: parts of logs
    /// that were fetched, messages that waited to be written to files.
    fn held_shortly(&self) -> u64 {
        0
    }

    /// Counters of the engine.
    fn metrics(&self) -> EngineMetrics;

    /// The answers to presence queries that clients share.
    fn presence_cache(&self) -> &Arc<PresenceCache>;

    /// Queries who is in a channel. Answers later if workers have to be asked, on the thread of one
    /// of them.
    fn presence(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let followers = (connections, workers.len());
        let cache = self.presence_cache();
        let (answer, query) = cache.ask(now_ms, channel, followers, max_users, later)?;
        post_presence(self, workers, query);
        Ok(answer)
    }

    /// How many subscriptions a channel has in other processes that serve it.
    fn subscribers_elsewhere(
        &self,
        channel: &ChannelName,
        later: Later<'_, OtherNodes<u64>>,
    ) -> Answer<OtherNodes<u64>> {
        let _ = (channel, later);
        OtherNodes::default().into()
    }

    /// Has other processes that serve the same channels pass their connections. Only what users and
    /// channels and names are about concerns them.
    fn scan_elsewhere(
        &self,
        target: &ScanTarget,
        action: &ScanAction,
        later: Later<'_, OtherNodes<Scanned>>,
    ) -> Answer<OtherNodes<Scanned>> {
        let _ = (target, action, later);
        OtherNodes::default().into()
    }

    /// Like [`Engine::presence`], but never answers from a scan that began earlier. Callers limit
    /// how often.
    fn presence_anew(
        &self,
        channel: &ChannelName,
        max_users: usize,
        later: Later<'_, Presence>,
    ) -> Result<Answer<Presence>, PresenceBusy> {
        let Audience { subscribers, workers } = self.audience(channel);
        let connections = usize::try_from(subscribers).unwrap_or(usize::MAX);
        let followers = (connections, workers.len());
        let (answer, query) =
            self.presence_cache().ask_anew(channel, followers, max_users, later)?;
        post_presence(self, workers, query);
        Ok(answer)
    }

    /// Queries whether a connection follows a channel, and its session has the wanted tags. Answers
    /// later if the connection's worker has to be asked.
    fn follows(
        &self,
        channel: &ChannelName,
        (connection, wanted): (ConnectionName, WantedTags),
        later: Later<'_, bool>,
    ) -> Answer<bool> {
        let followers = self.audience(channel).workers;
        match followers.into_iter().find(|(worker, ..)| *worker == connection.worker()) {
            None => false.into(),
            Some((worker, _, id)) => {
                let (ticket, answer): (Ticket<bool>, _) = later.ticket();
                let (name, channel) = (channel.clone(), id);
                let question = Notification::Follows { name, channel, connection, wanted, ticket };
                self.post(worker, question);
                answer
            }
        }
    }
}

/// Sends a presence query to the workers that follow its channel. Without one, the answer to
/// another query serves this one, too.
fn post_presence(
    engine: &(impl Engine + ?Sized),
    workers: Vec<(WorkerId, LocalId, ChannelId)>,
    query: Option<Arc<PresenceQuery>>,
) {
    let Some(query) = query else { return };
    for (worker, local, channel) in workers {
        engine.post(worker, Notification::Presence { local, channel, query: Arc::clone(&query) });
    }
}
