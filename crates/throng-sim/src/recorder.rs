//! A record of all calls of the channels, in order.
//!
//! The world replays the record into its model after each call into a worker. So the model knows
//! between which publications each subscription began, which clients cannot know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::conformance::{Coming, Made, Observer, TestJournal};
use throng_core::frozen::ThawError;
use throng_core::{
    Answer, ChannelName, Channels, Fetched, HistoryQuery, Kind, Later, MemoryEngine, MemoryThaw,
    MessageId, Outcome, Publication, Published, Reading, Rules, SegmentSink, SharedBytes, StartAt,
    WorkerId, WorkerQueue,
};

use crate::fetches::Fetches;
use crate::heard::Heard;
use crate::model;
use crate::post::Post;
use crate::stamp::Stamp;

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
    pub(crate) head: MessageId,
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

/// A call that is being made.
enum Under {
    Publication { publication: Publication, followers: Vec<WorkerId>, has_capacity: bool },
    Volatile { subscribers: u64, taking: Vec<WorkerId>, full: Vec<WorkerId>, bytes: usize },
}

/// Records what is asked of the channels under test, and decides when logs can be read.
pub(crate) struct Recorder {
    parts: Parts,
    stamp: Arc<Stamp>,
    post: Mutex<Post>,
    fetches: Fetches,
    /// When the last message was published, if each message must have a distinct time.
    last_ms: Option<AtomicU64>,
    under_way: Mutex<Option<Under>>,
    records: Mutex<Vec<Record>>,
    /// The journals below the channels.
    journals: Mutex<Vec<Arc<TestJournal>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Nothing is recorded yet. The channels, with these parts, post to `post`. With
    /// `has_distinct_times` no two messages have the same time, so that their order of age does not
    /// depend on their shards.
    pub(crate) fn new(
        parts: Parts,
        stamp: &Arc<Stamp>,
        post: Post,
        fetches: Fetches,
        has_distinct_times: bool,
    ) -> Recorder {
        Recorder {
            parts,
            stamp: Arc::clone(stamp),
            post: Mutex::new(post),
            fetches,
            last_ms: has_distinct_times.then(AtomicU64::default),
            under_way: Mutex::default(),
            records: Mutex::default(),
            journals: Mutex::default(),
        }
    }

    /// The channels of a memory over these journals, which tell it of all calls.
    pub(crate) fn channels(
        self: &Arc<Self>,
        memory: Arc<MemoryEngine>,
        journals: Vec<Arc<TestJournal>>,
    ) -> Channels {
        lock(&self.journals).clone_from(&journals);
        let journals = journals.into_iter().map(|journal| journal as _).collect();
        Channels::new(memory, journals).with_observer(Arc::clone(self) as _)
    }

    /// The calls recorded since the last `take`.
    pub(crate) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *lock(&self.records))
    }

    /// The workers' fetches, done and open.
    pub(crate) fn fetches(&self) -> &Fetches {
        &self.fetches
    }

    /// The events of connections and channels.
    pub(crate) fn heard(&self) -> &Heard {
        &self.parts.heard
    }

    /// Channels that are thawed from the bytes of these. Journals keep their logs.
    pub(crate) fn freeze_and_thaw(
        self: &Arc<Self>,
        channels: &Channels,
    ) -> Result<Channels, ThawError> {
        let Parts { rules, queues, max_logs_bytes, heard } = &self.parts;
        let mut thaw = MemoryThaw::new(Arc::clone(rules), queues.clone(), *max_logs_bytes);
        // The others have all messages in the records.
        if !channels.metrics().published.is_multiple_of(4) {
            channels.seal(&mut Segments { thaw: &mut thaw, bytes: Vec::new() })?;
        }
        channels.freeze(|record| thaw.record(&record))?;
        let memory = Arc::new(thaw.finish()?.with_events(Some(Arc::clone(heard) as _)));
        let taken_over =
            |journal: &Arc<TestJournal>| Arc::new(journal.taken_over(Arc::clone(&memory)));
        let journals = lock(&self.journals).iter().map(taken_over).collect();
        Ok(self.channels(Arc::clone(&memory), journals))
    }

    fn record(&self, record: Record) {
        lock(&self.records).push(record);
    }

    fn published(&self, now_ms: u64, result: Outcome) {
        let Some(Under::Publication { publication, followers, has_capacity }) =
            lock(&self.under_way).take()
        else {
            panic!("a publication was made that was not coming");
        };
        let number = match result {
            Ok(Published { is_duplicate: false, .. }) => {
                let bytes = model::weight_bytes(&publication);
                followers.iter().for_each(|worker| lock(&self.post).add(*worker, bytes));
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
    }

    /// A volatile message was posted to so many subscriptions. Of the notice of a marker, the
    /// weight is known now.
    fn posted(&self, posted: u64, notice_bytes: usize) {
        let Some(Under::Volatile { subscribers, taking, full, bytes }) =
            lock(&self.under_way).take()
        else {
            panic!("a volatile message was posted that was not coming");
        };
        let bytes = bytes + notice_bytes;
        let is_right = match (taking.is_empty(), full.is_empty()) {
            (_, true) => posted == subscribers,
            (true, false) => posted == 0,
            (false, false) => posted < subscribers,
        };
        assert!(is_right, "{posted} of {subscribers} get it, with {full:?} full");
        taking.into_iter().for_each(|worker| lock(&self.post).add(worker, bytes));
    }
}

/// A volatile message for a channel is coming.
fn volatile(memory: &MemoryEngine, post: &Post, channel: &ChannelName, bytes: usize) -> Under {
    let audience = memory.audience(channel);
    let workers = audience.workers.into_iter().map(|(worker, ..)| worker);
    let has_room = |worker: &WorkerId| post.has_capacity_for_volatile(*worker);
    let (taking, full) = workers.partition(has_room);
    Under::Volatile { subscribers: audience.subscribers, taking, full, bytes }
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

impl Observer for Recorder {
    fn before(&self, now_ms: u64, memory: &MemoryEngine, call: Coming<'_>) -> u64 {
        let mut post = lock(&self.post);
        post.look();
        let under_way = match call {
            Coming::Other => return now_ms,
            Coming::Publication(publication) => {
                let followers = memory.audience(&publication.channel).workers;
                let followers: Vec<_> = followers.into_iter().map(|(worker, ..)| worker).collect();
                let has_capacity = followers.iter().all(|worker| post.has_capacity(*worker));
                Under::Publication { publication: publication.clone(), followers, has_capacity }
            }
            Coming::Volatile(publication) => {
                let bytes = model::volatile_bytes(publication);
                volatile(memory, &post, &publication.channel, bytes)
            }
            Coming::Marker(inbox) => volatile(memory, &post, inbox, 0),
        };
        let last_ms = self.last_ms.as_ref().filter(|_| matches!(call, Coming::Publication(_)));
        *lock(&self.under_way) = Some(under_way);
        last_ms.map_or(now_ms, |last_ms| {
            let now_ms = now_ms.max(last_ms.load(Ordering::Relaxed) + 1);
            last_ms.store(now_ms, Ordering::Relaxed);
            now_ms
        })
    }

    fn after(&self, call: Made<'_>) {
        let client = self.stamp.touched();
        match call {
            Made::Published(now_ms, Answer::Now(outcome)) => self.published(now_ms, *outcome),
            Made::Published(..) => panic!("these logs answer at once"),
            Made::PostedVolatile(posted) => self.posted(posted, 0),
            Made::Marked(_, Some((posted, bytes))) => self.posted(posted, bytes),
            Made::Marked(marker, None) => {
                let Some(Under::Volatile { subscribers, .. }) = lock(&self.under_way).take() else {
                    panic!("a marker was moved that was not coming");
                };
                assert!(!marker.has_moved || subscribers == 0, "{marker:?} is told to nobody");
            }
            Made::Followed(now_ms, follow, followed) => {
                // The server has its internal logs in memory.
                if follow.channel.kind() != Kind::Internal {
                    self.fetches.expect_readable(follow.channel, Reading::Start(follow.start));
                }
                self.record(Record::Followed(FollowCall {
                    now_ms,
                    channel: follow.channel.clone(),
                    start: follow.start,
                    cursor: followed.cursor,
                    head: followed.head,
                    is_recovered: followed.is_recovered,
                    backlog: followed.backlog.iter().map(|message| message.id).collect(),
                    client,
                }));
            }
            Made::Unfollowed(channel) => self.record(Record::Unfollowed { channel }),
            Made::Paged(now_ms, channel, (query, limit), history) => {
                self.fetches.expect_readable(channel, Reading::Page(query, limit));
                self.record(Record::Paged(HistoryCall {
                    now_ms,
                    channel: channel.clone(),
                    query,
                    limit,
                    ids: history.messages.iter().map(|message| message.id).collect(),
                    has_more: history.has_more,
                    is_recovered: history.is_recovered,
                    client,
                }));
            }
        }
    }

    fn fetch(
        &self,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        self.fetches.fetch(channel, reading, later)
    }
}
