//! A journal for tests, which does what it is told, when it is told.
//!
//! It keeps its logs in a `MemoryEngine` of its own, which no worker follows. Unless a test says
//! otherwise, it answers at once, with the ids of that engine.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::attributes::Extras;
use crate::change::{
    ChangeError, ChangeOutcome, Changed, Erase, EraseOutcome, LogChange, LogState,
};
use crate::engine::{EngineMetrics, Follow, Followed, History};
use crate::id::{Epoch, LocalId, MessageId, WorkerId};
use crate::journal::{Journal, JournalIds};
use crate::later::{Answer, AskerId, Later, Ticket};
use crate::listing::{ListPart, ListPlace, ListQuery, ListStep};
use crate::memory::MemoryEngine;
use crate::message::{Content, Message};
use crate::name::{ChannelName, Kind};
use crate::parts::{HeldPart, Limits, Page, Part, Parts, Start};
use crate::publication::{Outcome, Publication, PublishError, Published};
use crate::read_marker::{ErasedMarkers, Mark, Marked, MarkerKey, MarkersOf};
use crate::reading::{Fetched, HistoryQuery, Reading, StartAt};
use crate::rules::Retention;
use crate::stamp::Watermark;

/// The end of a publication that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is published, and its publisher told so.
    Published,
    /// It is published, and the answer is lost.
    PublishedInSilence,
    /// It is not published, for this reason.
    Refused(PublishError),
}

/// A publication without an answer.
struct Open {
    now_ms: u64,
    publication: Publication,
    ticket: Ticket<Outcome>,
}

/// A question about a log without an answer.
pub enum OpenReading {
    /// A part of a log is to be fetched.
    Fetch(ChannelName, Reading, Ticket<Fetched>),
    /// A marker was looked up, and this is to be answered.
    Marker(Marked, Ticket<Marked>),
}

/// Which answers come later.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lateness {
    /// Publications wait for [`TestJournal::settle`].
    pub of_publications: bool,
    /// Readings wait for a test that takes them by [`TestJournal::take_readings`]. Nothing can be
    /// read that was not fetched.
    pub of_readings: bool,
}

/// Translates ids of a test's journal into ids of the engine that keeps its logs, and back.
pub trait JournalNumbers: Send + Sync {
    /// The epoch of a channel.
    fn epoch(&self, channel: &ChannelName) -> Epoch;

    /// True if each offset of a channel is its predecessor's plus one.
    fn are_consecutive(&self) -> bool {
        false
    }

    /// A new message has this offset in the memory.
    fn accept(&self, channel: &ChannelName, inner: u64);

    /// The id of the last message up to an offset of the memory.
    fn outer(&self, channel: &ChannelName, inner: u64) -> MessageId;

    /// The id in the memory of the last message up to this one.
    fn inner(&self, channel: &ChannelName, id: MessageId) -> MessageId;
}

/// See the module.
pub struct TestJournal {
    memory: Arc<MemoryEngine>,
    store: Arc<MemoryEngine>,
    /// Held while a message is stored and delivered, and while a log is read.
    turn: Mutex<()>,
    parts: Arc<Parts>,
    lateness: Lateness,
    numbers: Option<Arc<dyn JournalNumbers>>,
    open: Mutex<VecDeque<Open>>,
    readings: Mutex<Vec<OpenReading>>,
    refuses_markers: Mutex<Option<throng_wire::ErrorResponse>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestJournal {
    /// A journal that delivers to `memory`, whose rules hold for its logs. All of them together
    /// keep `max_bytes` at most.
    pub fn new(memory: Arc<MemoryEngine>, max_bytes: usize) -> TestJournal {
        let epoch = memory.watermark().epoch;
        TestJournal::with_epoch(epoch, memory, max_bytes)
    }

    /// The same, whose ids and positions have this epoch.
    pub fn with_epoch(epoch: Epoch, memory: Arc<MemoryEngine>, max_bytes: usize) -> TestJournal {
        let rules = Arc::new(memory.rules().without_journal());
        let store = MemoryEngine::new(epoch, rules, Vec::new(), max_bytes);
        TestJournal {
            memory,
            store: Arc::new(store.with_hash_seed(epoch.number())),
            turn: Mutex::default(),
            parts: Arc::default(),
            lateness: Lateness::default(),
            numbers: None,
            open: Mutex::default(),
            readings: Mutex::default(),
            refuses_markers: Mutex::default(),
        }
    }

    /// The same journal, some of whose answers come later.
    #[must_use]
    pub fn with_lateness(mut self, lateness: Lateness) -> TestJournal {
        self.lateness = lateness;
        self
    }

    /// The same journal, with other ids.
    #[must_use]
    pub fn with_numbers(mut self, numbers: Arc<dyn JournalNumbers>) -> TestJournal {
        self.numbers = Some(numbers);
        self
    }

    /// The journal of a process that takes over, with the same logs: it delivers to that process's
    /// memory, and nothing is under way.
    pub fn taken_over(&self, memory: Arc<MemoryEngine>) -> TestJournal {
        TestJournal {
            memory,
            store: Arc::clone(&self.store),
            turn: Mutex::default(),
            parts: Arc::default(),
            lateness: self.lateness,
            numbers: self.numbers.clone(),
            open: Mutex::default(),
            readings: Mutex::default(),
            refuses_markers: Mutex::default(),
        }
    }

    /// The publications that wait, oldest first.
    pub fn open(&self) -> Vec<Publication> {
        lock(&self.open).iter().map(|open| open.publication.clone()).collect()
    }

    /// Settles the oldest publication to a channel. Returns what became of it; `None` if none
    /// waits.
    pub fn settle(&self, channel: &ChannelName, fate: Fate) -> Option<Outcome> {
        let mut all = lock(&self.open);
        let at = all.iter().position(|open| open.publication.channel == *channel)?;
        let Open { now_ms, publication, ticket } = all.remove(at)?;
        drop(all);
        let outcome = match fate {
            Fate::Published | Fate::PublishedInSilence => self.publish(now_ms, publication),
            Fate::Refused(error) => Err(error),
        };
        if fate != Fate::PublishedInSilence {
            ticket.answer(outcome);
        }
        Some(outcome)
    }

    /// The readings that wait, oldest first. A fetch is made by [`TestJournal::read`].
    pub fn take_readings(&self) -> Vec<OpenReading> {
        std::mem::take(&mut *lock(&self.readings))
    }

    /// The readings that wait, without taking them.
    pub fn readings(&self) -> MutexGuard<'_, Vec<OpenReading>> {
        lock(&self.readings)
    }

    /// Makes a part of a log readable until the result is dropped.
    pub fn read(&self, now_ms: u64, channel: &ChannelName, reading: Reading) -> HeldPart {
        let limits = Limits::of_lag(self.memory.rule(channel));
        let held = self.parts.open(channel, reading, limits, AskerId::SERVER);
        held.fill(match reading {
            Reading::Start(start) => Part::Start(self.start(now_ms, channel, start)),
            Reading::Page(query, limit) => Part::Page(self.page(now_ms, channel, query, limit)),
        });
        held
    }

    /// The number of parts that are kept readable.
    pub fn held(&self) -> usize {
        self.parts.len()
    }

    /// Refuses markers that are moved from now on, or takes them.
    pub fn refuse_markers(&self, refusal: Option<throng_wire::ErrorResponse>) {
        *lock(&self.refuses_markers) = refusal;
    }

    fn outer(&self, channel: &ChannelName, inner: MessageId) -> MessageId {
        self.numbers.as_ref().map_or(inner, |numbers| numbers.outer(channel, inner.offset))
    }

    fn inner(&self, channel: &ChannelName, id: MessageId) -> MessageId {
        self.numbers.as_ref().map_or(id, |numbers| numbers.inner(channel, id))
    }

    /// The same, of a position. A log that was forgotten while it was empty does not begin with the
    /// first offset: its head is the position before all of its messages.
    fn known(&self, now_ms: u64, channel: &ChannelName, id: MessageId) -> MessageId {
        let head = self.store.history(now_ms, channel, HistoryQuery::Newest, 0).head;
        if id == self.outer(channel, head) { head } else { self.inner(channel, id) }
    }

    fn outer_state(&self, channel: &ChannelName) -> LogState {
        let LogState { head, record } = self.store.state(channel);
        LogState { head: self.outer(channel, head), record }
    }

    /// The same message with its id in the journal.
    fn translate(&self, content: &Content) -> Arc<Content> {
        let channel = &content.channel;
        let previous = MessageId { offset: content.previous, ..content.id };
        Arc::new(Content {
            id: self.outer(channel, content.id),
            previous: self.outer(channel, previous).offset,
            channel: content.channel.clone(),
            body: content.body.clone(),
            content_type: content.content_type.clone(),
            extras: content.extras.clone(),
            ..*content
        })
    }

    /// Stores a message and delivers it.
    pub fn publish(&self, now_ms: u64, publication: Publication) -> Outcome {
        let _turn = lock(&self.turn);
        self.publish_in_turn(now_ms, publication)
    }

    fn publish_in_turn(&self, now_ms: u64, publication: Publication) -> Outcome {
        let (channel, receipt) = (publication.channel.clone(), publication.receipt.clone());
        let before = self.store.history(now_ms, &channel, HistoryQuery::Newest, 0).head;
        let alone = Publication { receipt: None, ..publication.clone() };
        let Published { id, is_duplicate, .. } = self.store.publish(now_ms, alone)?;
        if is_duplicate {
            self.memory.count_duplicate();
            return Ok(Published { id: self.outer(&channel, id), subscribers: 0, is_duplicate });
        }
        if let Some(numbers) = &self.numbers {
            numbers.accept(&channel, id.offset);
        }
        let kept = start_in(&self.store, now_ms, &channel, StartAt::Last(1)).messages.pop();
        let kept = kept.filter(|message| message.id == id && !message.is_expired(now_ms));
        let content = kept.unwrap_or_else(|| {
            // It has expired already, or is not kept.
            Arc::new(Content {
                id,
                stamp: self.store.watermark().stamp,
                previous: before.offset,
                time_ms: now_ms,
                channel: channel.clone(),
                body: publication.body,
                content_type: publication.content_type,
                extras: Extras::new(publication.excluded, publication.attributes),
                expires_ms: publication
                    .expires_in_ms
                    .and_then(|expires_in_ms| (now_ms + expires_in_ms).try_into().ok()),
            })
        });
        let content = self.translate(&content);
        let begin = || self.parts.append(&content);
        let subscribers = self.memory.deliver(&content, receipt.as_ref(), begin);
        Ok(Published { id: content.id, subscribers, is_duplicate })
    }

    fn start(&self, now_ms: u64, channel: &ChannelName, start: StartAt) -> Start {
        let _turn = lock(&self.turn);
        let wanted = match start {
            StartAt::After(id) => StartAt::After(self.known(now_ms, channel, id)),
            other => other,
        };
        let Start { head, cursor, is_recovered, is_sparse, is_ended, messages } =
            start_in(&self.store, now_ms, channel, wanted);
        let cursor = MessageId { offset: cursor, ..head };
        let cursor = match start {
            StartAt::After(id)
                if is_recovered == Some(true) || wanted == StartAt::After(cursor) =>
            {
                id.offset
            }
            _ => self.outer(channel, cursor).offset,
        };
        let messages = messages.iter().map(|message| self.translate(message)).collect();
        Start {
            head: self.outer(channel, head),
            cursor,
            is_recovered,
            is_sparse,
            is_ended,
            messages,
        }
    }

    fn page(&self, now_ms: u64, channel: &ChannelName, query: HistoryQuery, limit: usize) -> Page {
        let _turn = lock(&self.turn);
        let query = match query {
            HistoryQuery::After(id) => HistoryQuery::After(self.known(now_ms, channel, id)),
            HistoryQuery::Before(id) => {
                // The first message at `id` or after it: the one after the last message before it.
                let before = MessageId { offset: id.offset.saturating_sub(1), ..id };
                let inner = self.inner(channel, before);
                HistoryQuery::Before(MessageId { offset: inner.offset + 1, ..inner })
            }
            other => other,
        };
        let Page { head, messages, has_more, is_ended, is_recovered } =
            page_in(&self.store, now_ms, channel, (query, limit));
        let messages = messages.iter().map(|message| self.translate(message)).collect();
        Page { head: self.outer(channel, head), messages, has_more, is_ended, is_recovered }
    }
}

fn contents(messages: &[Arc<Message>]) -> Vec<Arc<Content>> {
    messages.iter().map(|message| message.content()).collect()
}

/// Where a subscription starts. `logs` have no followers of their own.
pub(crate) fn start_in(
    logs: &MemoryEngine,
    now_ms: u64,
    channel: &ChannelName,
    start: StartAt,
) -> Start {
    let (worker, local_if_new) = (WorkerId(0), LocalId(NonZeroU32::MIN));
    let followed = logs.follow(now_ms, Follow { channel, worker, local_if_new, start });
    logs.unfollow(now_ms, followed.channel, worker);
    let Followed { head, cursor, is_recovered, is_sparse, is_ended, backlog, .. } = followed;
    Start {
        head,
        cursor: cursor.offset,
        is_recovered,
        is_sparse,
        is_ended,
        messages: contents(&backlog),
    }
}

/// A page of logs.
pub(crate) fn page_in(
    logs: &MemoryEngine,
    now_ms: u64,
    channel: &ChannelName,
    (query, limit): (HistoryQuery, usize),
) -> Page {
    let History { head, messages, has_more, is_ended, is_recovered } =
        logs.history(now_ms, channel, query, limit);
    Page { head, messages: contents(&messages), has_more, is_ended, is_recovered }
}

impl Journal for TestJournal {
    fn append(
        &self,
        now_ms: u64,
        publication: Publication,
        _: Retention,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        if !self.lateness.of_publications {
            return self.publish(now_ms, publication).into();
        }
        let (ticket, answer) = later.ticket();
        lock(&self.open).push_back(Open { now_ms, publication, ticket });
        answer
    }

    fn change(
        &self,
        now_ms: u64,
        mut change: LogChange,
        _: Retention,
        _: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        let _turn = lock(&self.turn);
        let state = self.outer_state(&change.channel);
        if !change.condition.holds(&state) {
            return Err(ChangeError::Conflict(state)).into();
        }
        if let Err(refused) = change.admit(state.record.as_ref().map(|known| &known.record)) {
            return Err(refused.into()).into();
        }
        let creates = change.creates(&state);
        let of_record =
            |record| LogChange { record, ..LogChange::append(change.channel.clone(), vec![]) };
        let mut first = None;
        if creates {
            // Its messages come after it.
            match self.store.change(now_ms, of_record(change.record.clone())) {
                Ok(changed) => first = Some(changed),
                Err(error) => return Err(error).into(),
            }
        }
        let mut ids = Vec::new();
        for publication in change.messages {
            match self.publish_in_turn(now_ms, publication) {
                Ok(published) => ids.push(published.id),
                Err(error) => return Err(error.into()).into(),
            }
        }
        let of_record = of_record(change.record);
        let changed = first.map_or_else(|| self.store.change(now_ms, of_record), Ok);
        changed.map(|changed| Changed { ids, ..changed }).into()
    }

    fn state(
        &self,
        _: u64,
        channel: &ChannelName,
        _: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        Ok(self.outer_state(channel)).into()
    }

    fn erase(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        what: Erase,
        _: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        let _turn = lock(&self.turn);
        let what = match what {
            Erase::Message(id) => Erase::Message(self.inner(channel, id)),
            all => all,
        };
        Ok(self.store.erase(now_ms, channel, what)).into()
    }

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn ids(&self, channel: &ChannelName) -> JournalIds {
        match &self.numbers {
            Some(numbers) => {
                let (epoch, are_consecutive) = (numbers.epoch(channel), numbers.are_consecutive());
                JournalIds { epoch, are_consecutive }
            }
            None => JournalIds { epoch: self.store.watermark().epoch, are_consecutive: true },
        }
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        _: Limits,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        if !self.lateness.of_readings {
            return Fetched::held_by(self.read(now_ms, channel, reading)).into();
        }
        let (ticket, answer) = later.ticket();
        lock(&self.readings).push(OpenReading::Fetch(channel.clone(), reading, ticket));
        answer
    }

    fn read_now(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        _: Limits,
    ) -> Option<HeldPart> {
        assert!(!self.lateness.of_readings, "{reading:?} of {channel:?} was not fetched");
        Some(self.read(now_ms, channel, reading))
    }

    fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let refusal = lock(&self.refuses_markers).clone().filter(|_| mark.is_some());
        let marker = match refusal {
            Some(refusal) => Err(refusal),
            None => self.store.read_marker(now_ms, of, mark),
        };
        if !self.lateness.of_readings {
            return marker.into();
        }
        let (ticket, answer) = later.ticket();
        lock(&self.readings).push(OpenReading::Marker(marker, ticket));
        answer
    }

    fn erase_markers(
        &self,
        of: MarkersOf<'_>,
        _: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        Ok(self.store.erase_markers(of)).into()
    }

    fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        let mut part = self.store.list_part(now_ms, query);
        for listed in &mut part.channels {
            listed.head = self.outer(&listed.name, listed.head);
        }
        part
    }

    fn list(&self, kind: Kind, after: u64) -> ListStep {
        let after = after.checked_sub(1).map(ListPlace);
        let mut step = self.store.list(0, kind, after);
        for listed in &mut step.channels {
            listed.place = ListPlace(listed.place.0 + 1);
            listed.head = self.outer(&listed.name, listed.head);
            listed.subscribers = self.memory.audience(&listed.name).subscribers;
        }
        step.next = step.next.map(|ListPlace(place)| ListPlace(place + 1));
        step
    }

    fn has_order(&self) -> bool {
        true
    }

    fn watermark(&self) -> Option<Watermark> {
        Some(self.store.watermark())
    }

    fn is_at_rest(&self) -> bool {
        lock(&self.open).is_empty() && lock(&self.readings).is_empty()
    }

    fn tick(&self, now_ms: u64, _: bool) {
        self.store.tick(now_ms);
    }

    fn metrics(&self, of_others: EngineMetrics) -> EngineMetrics {
        let of_store = self.store.metrics();
        EngineMetrics {
            channels: of_others.channels.max(of_store.channels),
            messages: of_others.messages + of_store.messages,
            bytes: of_others.bytes + of_store.bytes,
            busy: of_others.busy + of_store.busy,
            evicted: of_others.evicted + of_store.evicted,
            keys: of_others.keys + of_store.keys,
            keys_displaced: of_others.keys_displaced + of_store.keys_displaced,
            ..of_others
        }
    }
}
