//! An engine with ids like NATS streams: its offsets skip, and its channels have different epochs.
//!
//! Each channel belongs to a stream. All channels of a stream share its epoch and its sequence
//! numbers, which are their offsets. The wrapped engine, whose offsets are consecutive, keeps the
//! logs and applies the rules; this one translates ids in both directions, also of messages in the
//! worker queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use throng_core::conformance::Delegate;
use throng_core::{
    Answer, ChannelName, Content, Engine, Epoch, Follow, Followed, History, HistoryQuery, InFlight,
    Kind, Later, ListPlace, ListStep, Mark, Marked, Message, MessageId, Notification, Outcome,
    Publication, Published, ReadMarker, StartAt, WorkerQueue,
};

use crate::random::Random;

const STREAMS: u64 = 3;

/// Steps of a sequence number around the limits of cursors of 32 bits.
const LEAPS: [u64; 6] = [1 << 29, (1 << 30) - 1, 1 << 30, 1 << 31, (1 << 32) - 1, 5 << 30];

/// The epoch of the wrapped engine, which no client sees.
pub(crate) const HIDDEN_EPOCH: Epoch = Epoch::numbered(0);

/// An offset beyond all heads of the wrapped engine.
const BEYOND: u64 = u64::MAX / 2;

/// The epoch of the stream that a channel belongs to.
pub(crate) fn epoch_of(channel: &ChannelName, first_epoch: u64) -> Epoch {
    Epoch::numbered(first_epoch + stream_of(channel))
}

fn stream_of(channel: &ChannelName) -> u64 {
    channel.name().len() as u64 % STREAMS
}

pub(crate) struct StreamIds {
    engine: Box<dyn Engine>,
    queues: Vec<Arc<WorkerQueue>>,
    first_epoch: u64,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// True if sequence numbers grow by more than cursors of 32 bits tell.
    leaps: bool,
    /// The last sequence number of each stream.
    sequences: [u64; STREAMS as usize],
    /// The messages of each channel since the beginning.
    channels: HashMap<ChannelName, Vec<Entry>>,
}

/// A message with both of its offsets.
struct Entry {
    inner: u64,
    outer: u64,
    /// The message with its outer id, while it is on its way.
    message: Weak<Message>,
}

impl StreamIds {
    /// Wraps `engine`, whose epoch is [`HIDDEN_EPOCH`] and which posts to `queues`. The streams
    /// have the epochs from `first_epoch` on; `random` determines their sequence numbers.
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        queues: Vec<Arc<WorkerQueue>>,
        first_epoch: u64,
        mut random: Random,
    ) -> StreamIds {
        let leaps = random.percent(40);
        let sequences = [0; STREAMS as usize];
        let state = Mutex::new(State { random, leaps, sequences, channels: HashMap::new() });
        StreamIds { engine, queues, first_epoch, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn epoch(&self, channel: &ChannelName) -> Epoch {
        epoch_of(channel, self.first_epoch)
    }

    /// The id of the last message up to an offset of the wrapped engine.
    fn outer(&self, channel: &ChannelName, inner: u64) -> MessageId {
        let state = self.lock();
        let entries = state.channels.get(channel).map_or(&[][..], Vec::as_slice);
        let at = entries.partition_point(|entry| entry.inner <= inner);
        let offset = at.checked_sub(1).map_or(0, |at| entries[at].outer);
        MessageId { epoch: self.epoch(channel), offset }
    }

    /// The wrapped engine's id for a client's position: the id of the last message up to `id`.
    fn inner(&self, channel: &ChannelName, id: MessageId) -> MessageId {
        if id.epoch != self.epoch(channel) {
            return MessageId { epoch: Epoch::numbered(1), ..id };
        }
        let state = self.lock();
        let entries = state.channels.get(channel).map_or(&[][..], Vec::as_slice);
        let at = entries.partition_point(|entry| entry.outer <= id.offset);
        let offset = match at.checked_sub(1) {
            _ if at == entries.len() && id.offset > entries.last().map_or(0, |last| last.outer) => {
                BEYOND
            }
            Some(at) => entries[at].inner,
            None => 0,
        };
        MessageId { epoch: HIDDEN_EPOCH, offset }
    }

    /// The same message with its outer id; `followers` is set if it is published now.
    fn translate(&self, message: &Message, followers: Option<usize>) -> Arc<Message> {
        let previous = self.outer(&message.channel, message.previous).offset;
        let id = self.outer(&message.channel, message.id.offset);
        let mut state = self.lock();
        let entries = state.channels.entry(message.channel.clone()).or_default();
        let at = entries.binary_search_by_key(&message.id.offset, |entry| entry.inner);
        let entry = &mut entries[at.expect("each message is published through `StreamIds`")];
        entry.message.upgrade().unwrap_or_else(|| {
            let content = Content {
                id,
                stamp: message.stamp,
                previous,
                time_ms: message.time_ms,
                channel: message.channel.clone(),
                body: message.body.clone(),
                content_type: message.content_type.clone(),
                excluded: message.excluded,
                expires_ms: message.expires_ms,
            };
            let message = Arc::new(match followers {
                Some(followers) => Message::tracked(Arc::new(content), InFlight::to(followers)),
                None => Message::from(Arc::new(content)),
            });
            entry.message = Arc::downgrade(&message);
            message
        })
    }
}

impl StreamIds {
    /// Adds the message that the wrapped engine accepted at an offset, if it is new. Returns its
    /// id.
    fn accept(&self, channel: &ChannelName, inner: u64, is_duplicate: bool) -> MessageId {
        if !is_duplicate {
            let mut state = self.lock();
            let State { random, leaps, sequences, channels } = &mut *state;
            let sequence = &mut sequences[stream_of(channel) as usize];
            *sequence += match random.below(100) {
                0..3 if *leaps => random.pick(&LEAPS),
                0..30 => random.between(2, 50) as u64,
                _ => 1,
            };
            let entry = Entry { inner, outer: *sequence, message: Weak::new() };
            channels.entry(channel.clone()).or_default().push(entry);
        }
        self.outer(channel, inner)
    }

    /// Translates the messages that the wrapped engine has just posted.
    fn translate_queues(&self) {
        let mut posted = Vec::new();
        for queue in &self.queues {
            let mut notifications = Vec::new();
            queue.take(&mut notifications);
            posted.push(notifications);
        }
        let is_new = |notification: &&Notification| {
            matches!(notification, Notification::Message { message, .. }
                if message.id.epoch == HIDDEN_EPOCH && !message.is_volatile())
        };
        let followers = posted.iter().flatten().filter(is_new).count();
        for (queue, notifications) in self.queues.iter().zip(posted) {
            for mut notification in notifications {
                if let Notification::Message { message, .. } = &mut notification
                    && message.id.epoch == HIDDEN_EPOCH
                    && !message.is_volatile()
                {
                    *message = self.translate(message, Some(followers));
                }
                queue.post(notification);
            }
        }
    }

    fn translate_all(&self, messages: &mut [Arc<Message>]) {
        for message in messages {
            *message = self.translate(message, None);
        }
    }
}

impl Delegate for StreamIds {
    fn behind(&self) -> &dyn Engine {
        &*self.engine
    }

    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        let channel = publication.channel.clone();
        let answer = self.engine.publish(now_ms, publication, later);
        let outcome = answer.now().expect("the wrapped engine is a memory");
        let translated = outcome.map(|published| {
            let id = self.accept(&channel, published.id.offset, published.is_duplicate);
            self.translate_queues();
            Published { id, ..published }
        });
        translated.into()
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let (channel, start) = (follow.channel, follow.start);
        let start_inner = match start {
            StartAt::After(id) => StartAt::After(self.inner(channel, id)),
            other => other,
        };
        let mut followed = self.engine.follow(now_ms, Follow { start: start_inner, ..follow });
        followed.head = self.outer(channel, followed.head.offset);
        followed.cursor = match start {
            StartAt::After(id) if StartAt::After(followed.cursor) == start_inner => id,
            _ => self.outer(channel, followed.cursor.offset),
        };
        followed.are_offsets_consecutive = false;
        self.translate_all(&mut followed.backlog);
        followed
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let query = match query {
            HistoryQuery::Newest => HistoryQuery::Newest,
            HistoryQuery::Since(position) => HistoryQuery::Since(position),
            HistoryQuery::FirstOfLast(count) => HistoryQuery::FirstOfLast(count),
            HistoryQuery::After(id) => HistoryQuery::After(self.inner(channel, id)),
            HistoryQuery::Before(id) => {
                // The first message at `id` or after it: the one after the last message before it.
                let before = MessageId { offset: id.offset.saturating_sub(1), ..id };
                let inner = self.inner(channel, before);
                HistoryQuery::Before(MessageId { offset: inner.offset + 1, ..inner })
            }
        };
        let mut history = self.engine.history(now_ms, channel, query, limit);
        history.head = self.outer(channel, history.head.offset);
        self.translate_all(&mut history.messages);
        history
    }

    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        let mut step = self.engine.list(now_ms, kind, after);
        for listed in &mut step.channels {
            listed.head = self.outer(&listed.name, listed.head.offset);
        }
        step
    }

    /// Markers are ids, and nobody marks what is read here.
    fn read_marker(
        &self,
        _: u64,
        _: &ChannelName,
        mark: Option<Mark>,
        _: Later<'_, Marked>,
    ) -> Answer<Marked> {
        debug_assert!(mark.is_none(), "its id would have to be translated");
        Ok(ReadMarker::default()).into()
    }
}
