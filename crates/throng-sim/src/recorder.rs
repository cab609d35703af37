//! The real engine, and a record of everything that is asked of it, in order.
//!
//! The world replays the record into its model after each call into a worker: so the model knows
//! the moment of each subscription between publications, which no client could tell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_core::engine::EngineMetrics;
use throng_core::{
    Audience, ChannelId, ChannelName, Engine, Follow, Followed, History, HistoryQuery,
    MemoryEngine, MessageId, Notification, PresenceCache, Publication, PublishError, Published,
    StartAt, WorkerId,
};

use crate::model;
use crate::post::Post;
use crate::stamp::Stamp;

/// Something asked of the engine, and its answer.
#[derive(Debug)]
pub enum Record {
    /// A message was published or refused.
    Published {
        /// The time of the call.
        now_ms: u64,
        /// Its number among those accepted, if it was.
        number: u64,
        /// The message to publish.
        publication: Publication,
        /// Whether each worker that was to deliver it had room for it.
        has_room: bool,
        /// The engine's answer.
        result: Result<Published, PublishError>,
        /// The client for whom a worker asked.
        client: Option<usize>,
    },
    /// One more subscription.
    Followed {
        /// The time of the call.
        now_ms: u64,
        /// The channel that is followed.
        channel: ChannelName,
        /// Where it is to start.
        start: StartAt,
        /// Where it starts.
        cursor: MessageId,
        /// Whether it is whole.
        is_recovered: Option<bool>,
        /// The ids of its backlog.
        backlog: Vec<MessageId>,
        /// The client for whom a worker asked.
        client: Option<usize>,
    },
    /// One subscription less.
    Unfollowed {
        /// Of which channel; `None` if the engine does not know it.
        channel: Option<ChannelName>,
    },
    /// A page of history.
    Paged {
        /// The time of the call.
        now_ms: u64,
        /// Of which channel.
        channel: ChannelName,
        /// The part of the log.
        query: HistoryQuery,
        /// At most so many.
        limit: usize,
        /// The ids of its messages.
        ids: Vec<MessageId>,
        /// Whether there are more.
        has_more: bool,
        /// Whether it is whole.
        is_recovered: Option<bool>,
        /// The client for whom a worker asked.
        client: Option<usize>,
    },
}

/// The engine under test, with its record.
#[derive(Debug)]
pub struct Recorder {
    engine: MemoryEngine,
    stamp: Arc<Stamp>,
    post: Mutex<Post>,
    /// When the last message was published, if each is to have a time of its own.
    last_ms: Option<AtomicU64>,
    records: Mutex<Vec<Record>>,
}

impl Recorder {
    /// Records what is asked of `engine`, which posts to `post`. With `tells_apart` no two messages
    /// have the same time: which of them is older must not depend on where the engine keeps them.
    pub fn new(
        engine: MemoryEngine,
        stamp: &Arc<Stamp>,
        post: Post,
        tells_apart: bool,
    ) -> Recorder {
        Recorder {
            engine,
            stamp: Arc::clone(stamp),
            post: Mutex::new(post),
            last_ms: tells_apart.then(AtomicU64::default),
            records: Mutex::default(),
        }
    }

    /// What has been asked since the last call.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

impl Engine for Recorder {
    fn publish(&self, now_ms: u64, publication: Publication) -> Result<Published, PublishError> {
        let now_ms = self.last_ms.as_ref().map_or(now_ms, |last_ms| {
            let now_ms = now_ms.max(last_ms.load(Ordering::Relaxed) + 1);
            last_ms.store(now_ms, Ordering::Relaxed);
            now_ms
        });
        let followers = self.engine.audience(&publication.channel).workers;
        let mut post = self.post.lock().unwrap_or_else(PoisonError::into_inner);
        post.look();
        let has_room = followers.iter().all(|(worker, ..)| post.has_room(*worker));
        let result = self.engine.publish(now_ms, publication.clone());
        let number = match result {
            Ok(Published { is_duplicate: false, .. }) => {
                let bytes = model::weight_bytes(&publication);
                followers.iter().for_each(|(worker, ..)| post.add(*worker, bytes));
                self.stamp.count_published()
            }
            _ => 0,
        };
        let client = self.stamp.touched();
        self.record(Record::Published { now_ms, number, publication, has_room, result, client });
        result
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let (channel, start) = (follow.channel.clone(), follow.start);
        let followed = self.engine.follow(now_ms, follow);
        self.record(Record::Followed {
            now_ms,
            channel,
            start,
            cursor: followed.cursor,
            is_recovered: followed.is_recovered,
            backlog: followed.backlog.iter().map(|message| message.id).collect(),
            client: self.stamp.touched(),
        });
        followed
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.record(Record::Unfollowed { channel: self.engine.name(channel) });
        self.engine.unfollow(now_ms, channel, worker);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let history = self.engine.history(now_ms, channel, query, limit);
        self.record(Record::Paged {
            now_ms,
            channel: channel.clone(),
            query,
            limit,
            ids: history.messages.iter().map(|message| message.id).collect(),
            has_more: history.has_more,
            is_recovered: history.is_recovered,
            client: self.stamp.touched(),
        });
        history
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        self.engine.audience(channel)
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        self.engine.name(channel)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        self.engine.names(channels, each);
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        self.engine.presence_cache()
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        self.post.lock().unwrap_or_else(PoisonError::into_inner).look();
        self.engine.post(worker, notification);
    }

    fn tick(&self, now_ms: u64) {
        self.engine.tick(now_ms);
    }

    fn log_bytes(&self) -> u64 {
        self.engine.log_bytes()
    }

    fn metrics(&self) -> EngineMetrics {
        self.engine.metrics()
    }
}
