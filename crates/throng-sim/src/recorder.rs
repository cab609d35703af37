//! The real engine, with a record of all calls in order.
//!
//! The world replays the record into its model after each call into a worker. So the model knows
//! between which publications each subscription began, which clients cannot know.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use throng_core::engine::EngineMetrics;
use throng_core::frozen::ThawError;
use throng_core::{
    Answer, Audience, ChannelId, ChannelName, Engine, Fetched, Follow, Followed, History,
    HistoryQuery, Kind, Later, ListPlace, ListStep, Mark, Marked, MemoryEngine, MemoryThaw,
    MessageId, Notification, Outcome, PresenceCache, Publication, PublishError, Published, Reading,
    Rules, SegmentSink, SharedBytes, StartAt, VolatilePublication, Watermark, WorkerId,
    WorkerQueue,
};

use crate::fetches::Fetches;
use crate::heard::Heard;
use crate::model;
use crate::post::Post;
use crate::stamp::Stamp;
use crate::stream_ids::StreamIds;

/// A call of the engine, and its result.
#[derive(Debug)]
pub(crate) enum Record {
    /// A message was published or refused.
    Published {
        now_ms: u64,
        /// Its number among the accepted messages; 0 if it was not accepted.
        number: u64,
        publication: Publication,
        /// True if the queue of each worker that follows the channel had capacity.
        has_capacity: bool,
        result: Outcome,
        /// The client on whose behalf a worker called.
        client: Option<usize>,
    },
    Followed(FollowCall),
    Unfollowed {
        /// The channel; `None` if the engine does not know it.
        channel: Option<ChannelName>,
    },
    /// A page of history was read.
    Paged(HistoryCall),
}

#[derive(Debug)]
pub(crate) struct FollowCall {
    pub(crate) now_ms: u64,
    pub(crate) channel: ChannelName,
    pub(crate) start: StartAt,
    pub(crate) cursor: MessageId,
    pub(crate) is_recovered: Option<bool>,
    pub(crate) backlog: Vec<MessageId>,
    /// The client on whose behalf a worker called.
    pub(crate) client: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct HistoryCall {
    pub(crate) now_ms: u64,
    pub(crate) channel: ChannelName,
    pub(crate) query: HistoryQuery,
    pub(crate) limit: usize,
    pub(crate) ids: Vec<MessageId>,
    pub(crate) has_more: bool,
    /// Whether the page is recovered.
    pub(crate) is_recovered: Option<bool>,
    /// The client on whose behalf a worker called.
    pub(crate) client: Option<usize>,
}

/// An engine that a world tests.
pub(crate) enum Tested {
    /// The engine itself, which can be frozen.
    Memory(Box<MemoryEngine>),
    /// The engine with other ids, which are not part of frozen state.
    Streams(StreamIds),
}

impl Deref for Tested {
    type Target = dyn Engine;

    fn deref(&self) -> &Self::Target {
        match self {
            Tested::Memory(engine) => &**engine,
            Tested::Streams(engine) => engine,
        }
    }
}

/// The parts of an engine, new or thawed.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Rules per channel.
    pub(crate) rules: Arc<Rules>,
    pub(crate) queues: Vec<Arc<WorkerQueue>>,
    /// The limit of all logs together.
    pub(crate) max_logs_bytes: usize,
    /// Hears of channels.
    pub(crate) heard: Arc<Heard>,
}

/// The engine under test, with its record.
pub(crate) struct Recorder {
    engine: RwLock<Tested>,
    parts: Parts,
    /// Of all engines that the recorder has had.
    presence: Arc<PresenceCache>,
    stamp: Arc<Stamp>,
    post: Mutex<Post>,
    fetches: Fetches,
    /// When the last message was published, if each message must have a distinct time.
    last_ms: Option<AtomicU64>,
    records: Mutex<Vec<Record>>,
}

impl Recorder {
    /// Records the calls of `engine`, which posts to `post`. With `has_distinct_times` no two
    /// messages have the same time, so that their order of age does not depend on their shards.
    pub(crate) fn new(
        engine: Tested,
        parts: Parts,
        stamp: &Arc<Stamp>,
        post: Post,
        fetches: Fetches,
        has_distinct_times: bool,
    ) -> Recorder {
        Recorder {
            presence: Arc::clone(engine.presence_cache()),
            engine: RwLock::new(engine),
            parts,
            stamp: Arc::clone(stamp),
            post: Mutex::new(post),
            fetches,
            last_ms: has_distinct_times.then(AtomicU64::default),
            records: Mutex::default(),
        }
    }

    /// The calls recorded since the last `take`.
    pub(crate) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The workers' fetches, done and open.
    pub(crate) fn fetches(&self) -> &Fetches {
        &self.fetches
    }

    /// The events of connections and channels.
    pub(crate) fn heard(&self) -> &Heard {
        &self.parts.heard
    }

    /// True if the engine can be frozen.
    pub(crate) fn can_freeze(&self) -> bool {
        matches!(*self.engine(), Tested::Memory(_))
    }

    /// Goes on with an engine that is thawed from the bytes of this one, if it
    /// [can be frozen](Recorder::can_freeze).
    pub(crate) fn freeze_and_thaw(&self) -> Result<(), ThawError> {
        let Parts { rules, queues, max_logs_bytes, heard } = &self.parts;
        let mut thaw = MemoryThaw::new(Arc::clone(rules), queues.clone(), *max_logs_bytes);
        match &*self.engine() {
            Tested::Memory(engine) => {
                // The others have all messages in the records.
                if engine.metrics().published % 4 != 0 {
                    engine.seal(&mut Segments { thaw: &mut thaw, bytes: Vec::new() })?;
                }
                engine.freeze(|record| thaw.record(&record))?;
            }
            Tested::Streams(_) => return Ok(()),
        }
        let engine = thaw.finish()?.with_events(Some(Arc::clone(heard) as _));
        let thawed = Tested::Memory(Box::new(engine));
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = thawed;
        Ok(())
    }

    fn engine(&self) -> RwLockReadGuard<'_, Tested> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

/// The segments of an engine, on their way to another one.
struct Segments<'t> {
    thaw: &'t mut MemoryThaw,
    bytes: Vec<u8>,
}

impl SegmentSink for Segments<'_> {
    type Error = ThawError;

    fn append(&mut self, bytes: &[u8]) -> Result<(), ThawError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn seal(&mut self) -> Result<SharedBytes, ThawError> {
        let bytes = std::mem::take(&mut self.bytes);
        self.thaw.segment(Box::new(bytes.clone()))?;
        Ok(Box::new(bytes))
    }

    fn freed(&mut self, _: usize) {}
}

impl Engine for Recorder {
    fn watermark(&self) -> Watermark {
        self.engine().watermark()
    }

    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        let now_ms = self.last_ms.as_ref().map_or(now_ms, |last_ms| {
            let now_ms = now_ms.max(last_ms.load(Ordering::Relaxed) + 1);
            last_ms.store(now_ms, Ordering::Relaxed);
            now_ms
        });
        let followers = self.engine().audience(&publication.channel).workers;
        let mut post = self.post.lock().unwrap_or_else(PoisonError::into_inner);
        post.look();
        let has_capacity = followers.iter().all(|(worker, ..)| post.has_capacity(*worker));
        let answer = self.engine().publish(now_ms, publication.clone(), later);
        let result = answer.now().expect("the wrapped engine is a memory");
        let number = match result {
            Ok(Published { is_duplicate: false, .. }) => {
                let bytes = model::weight_bytes(&publication);
                followers.iter().for_each(|(worker, ..)| post.add(*worker, bytes));
                self.stamp.count_published()
            }
            _ => 0,
        };
        let client = self.stamp.touched();
        self.record(Record::Published {
            now_ms,
            number,
            publication,
            has_capacity,
            result,
            client,
        });
        result.into()
    }

    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        let Audience { subscribers, workers } = self.engine().audience(&publication.channel);
        let mut post = self.post.lock().unwrap_or_else(PoisonError::into_inner);
        post.look();
        let has_room = |worker: &WorkerId| post.has_capacity_for_volatile(*worker);
        let (taking, full): (Vec<WorkerId>, Vec<WorkerId>) =
            workers.into_iter().map(|(worker, ..)| worker).partition(has_room);
        let bytes = model::volatile_bytes(&publication);
        let posted = self.engine().publish_volatile(now_ms, publication)?;
        let is_right = match (taking.is_empty(), full.is_empty()) {
            (_, true) => posted == subscribers,
            (true, false) => posted == 0,
            (false, false) => posted < subscribers,
        };
        assert!(is_right, "{posted} of {subscribers} get it, with {full:?} full");
        taking.into_iter().for_each(|worker| post.add(worker, bytes));
        Ok(posted)
    }

    fn fetch(
        &self,
        _: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        self.fetches.fetch(channel, reading, later)
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        self.fetches.expect_readable(follow.channel, Reading::Start(follow.start));
        let (channel, start) = (follow.channel.clone(), follow.start);
        let followed = self.engine().follow(now_ms, follow);
        self.record(Record::Followed(FollowCall {
            now_ms,
            channel,
            start,
            cursor: followed.cursor,
            is_recovered: followed.is_recovered,
            backlog: followed.backlog.iter().map(|message| message.id).collect(),
            client: self.stamp.touched(),
        }));
        followed
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.record(Record::Unfollowed { channel: self.engine().name(channel) });
        self.engine().unfollow(now_ms, channel, worker);
    }

    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32) {
        self.engine().set_subscribers(now_ms, channel, worker, subscribers);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        self.fetches.expect_readable(channel, Reading::Page(query, limit));
        let history = self.engine().history(now_ms, channel, query, limit);
        self.record(Record::Paged(HistoryCall {
            now_ms,
            channel: channel.clone(),
            query,
            limit,
            ids: history.messages.iter().map(|message| message.id).collect(),
            has_more: history.has_more,
            is_recovered: history.is_recovered,
            client: self.stamp.touched(),
        }));
        history
    }

    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        self.engine().list(now_ms, kind, after)
    }

    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        self.engine().read_marker(now_ms, inbox, mark, later)
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        self.engine().audience(channel)
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        self.engine().name(channel)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        self.engine().names(channels, each);
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        &self.presence
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        self.post.lock().unwrap_or_else(PoisonError::into_inner).look();
        self.engine().post(worker, notification);
    }

    fn tick(&self, now_ms: u64) {
        self.presence.expire(now_ms);
        self.engine().tick(now_ms);
    }

    fn log_bytes(&self) -> u64 {
        self.engine().log_bytes()
    }

    fn metrics(&self) -> EngineMetrics {
        self.engine().metrics()
    }
}
