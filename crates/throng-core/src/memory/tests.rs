//! Tests of the memory engine: each guarantee, against a model, and with threads.

mod capacity;
mod conformance;
mod events;
mod file_journal;
mod freeze;
mod guarantees;
mod listing;
mod members;
mod members_world;
mod model;
mod presence;
mod seal;
mod shared_members;
mod threads;
mod watchlists;

use super::*;
use crate::SharedBytes;
use crate::frozen::ThawError;
use crate::message::Body;
use crate::rules::{Retention, Rule};
use crate::stamp::{Stamp, Watermark};
use crate::{LocalId, MessageId, StartAt};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn local(number: u32) -> LocalId {
    LocalId(std::num::NonZeroU32::new(number).expect("counted from one"))
}

fn retention(max_messages: usize) -> Retention {
    Retention { max_messages, max_bytes: usize::MAX, max_age_ms: DAY_MS }
}

/// The size of a message towards the limits, in bytes.
fn weight_bytes(name: &ChannelName, text: &str) -> usize {
    name.key().len() + text.len() + crate::message::OVERHEAD_BYTES
}

/// An engine with its workers' queues.
struct Fixture {
    engine: MemoryEngine,
    queues: Vec<Arc<WorkerQueue>>,
    rules: Arc<Rules>,
    max_bytes: usize,
    /// The segments of the engine that was sealed last.
    segments: Mutex<Segments>,
}

/// Segments in memory that counts its readers.
#[derive(Debug, Default)]
struct Segments {
    next: Vec<u8>,
    all: Vec<Arc<Vec<u8>>>,
    freed: usize,
}

/// The bytes of one.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SegmentSink for Segments {
    type Error = ();

    fn append(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.next.extend_from_slice(bytes);
        Ok(())
    }

    fn seal(&mut self) -> Result<SharedBytes, ()> {
        let bytes = Arc::new(std::mem::take(&mut self.next));
        self.all.push(Arc::clone(&bytes));
        Ok(Box::new(Shared(bytes)))
    }

    fn freed(&mut self, bytes: usize) {
        self.freed += bytes;
    }
}

impl Fixture {
    fn new(retention: Retention, workers: usize, max_bytes: usize) -> Fixture {
        Fixture::with_rule(Rule { retention, ..Rule::default() }, workers, max_bytes)
    }

    fn with_rule(rule: Rule, workers: usize, max_bytes: usize) -> Fixture {
        let rules = Rules::new(Vec::new(), rule);
        let queues: Vec<_> = (0..workers).map(|_| Arc::new(WorkerQueue::new(|| {}))).collect();
        let epoch = Epoch::numbered(7);
        let rules = Arc::new(rules);
        let engine = MemoryEngine::new(epoch, Arc::clone(&rules), queues.clone(), max_bytes);
        Fixture { engine, queues, rules, max_bytes, segments: Mutex::default() }
    }

    /// An engine to put in the place of another.
    fn empty() -> MemoryEngine {
        MemoryEngine::new(Epoch::numbered(0), Arc::default(), Vec::new(), 0)
    }

    /// The records of the frozen engine.
    fn freeze(&self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let written: Result<(), ()> = self.engine.freeze(|record| {
            records.push(record);
            Ok(())
        });
        assert_eq!(written, Ok(()));
        records
    }

    /// A new engine for the same queues, from records.
    fn thaw(&self, records: &[Vec<u8>]) -> Result<MemoryEngine, ThawError> {
        let mut thaw =
            MemoryThaw::new(Arc::clone(&self.rules), self.queues.clone(), self.max_bytes);
        let segments = self.segments();
        segments
            .all
            .iter()
            .try_for_each(|bytes| thaw.segment(Box::new(Shared(Arc::clone(bytes)))))?;
        records.iter().try_for_each(|record| thaw.record(record))?;
        thaw.finish()
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().expect("nobody has panicked")
    }

    /// Writes messages to segments.
    fn seal(&self) {
        *self.segments() = Segments::default();
        let sealed = self.engine.seal(&mut *self.segments());
        assert_eq!(sealed, Ok(()));
        assert!(self.segments().next.is_empty(), "a segment has no end");
    }

    /// Goes on with an engine that is made from the bytes of this one.
    fn freeze_and_thaw(&mut self) {
        self.engine = self.thaw(&self.freeze()).expect("it was frozen just now");
    }

    fn publish(
        &self,
        now_ms: u64,
        name: &ChannelName,
        text: &str,
    ) -> crate::publication::Published {
        self.engine.publish(now_ms, publication(name, text)).expect("the queues have capacity")
    }

    fn follow(&self, now_ms: u64, name: &ChannelName, worker: u16, start: StartAt) -> Followed {
        let worker = WorkerId(worker);
        let local_if_new = local(u32::from(worker.0) + 1);
        self.engine.follow(now_ms, Follow { channel: name, worker, local_if_new, start })
    }

    /// Offsets and texts of the messages in a worker's notifications.
    fn notifications(&self, worker: usize) -> Vec<(u64, String)> {
        let mut notifications = Vec::new();
        self.queues[worker].take(&mut notifications);
        let message = |notification| match notification {
            Notification::Message { message, .. } => offset_and_text(&message),
            other => panic!("unexpected {other:?}"),
        };
        notifications.into_iter().map(message).collect()
    }

    /// Ticks every shard once.
    fn tick_all(&self, now_ms: u64) {
        (0..SHARDS).for_each(|_| self.engine.tick(now_ms));
    }
}

fn publication(name: &ChannelName, text: &str) -> Publication {
    Publication::new(name.clone(), Body::Text(text.into()))
}

fn offset_and_text(message: &crate::Message) -> (u64, String) {
    (message.id.offset, String::from_utf8_lossy(message.body.bytes()).into_owned())
}

fn offsets(messages: &[Arc<crate::Message>]) -> Vec<u64> {
    messages.iter().map(|message| message.id.offset).collect()
}
