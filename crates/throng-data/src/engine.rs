//! The engine of a server with durable channels.
//!
//! The logs of durable channels are on the disk. Their followers, their heads while they are
//! followed, and everything about other channels are the memory engine's. So a durable channel that
//! nobody follows takes no memory.
//!
//! # Invariants
//!
//! * A message is delivered, and its publisher answered, when it is as safe as the journal's `sync`
//!   promises; on the thread `journal-answers`, in the order of offsets.
//! * Nobody waits for the disk: parts of logs are read by other threads ([`Engine::fetch`]), and
//!   wait in memory for the subscription or page that they are for ([`throng_core::parts`]).
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `shared` | what all threads share: the memory engine, the logs, the open parts |
//! | `delivery` | what the journal's thread needs of the server |
//! | `expired_runs` | runs of expired messages, which pages pass over |
//! | `read` | what a subscription starts with, and pages |
//! | `readers` | the threads that read |
//! | `markers` | how far users have read durable inboxes |
//! | `list` | the durable channels, for lists |

mod delivery;
mod expired_runs;
mod list;
mod markers;
mod read;
mod readers;
mod shared;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use throng_core::parts::{Limits, Page, Part};
use throng_core::{
    Answer, AskerId, Audience, Backlog, ChannelId, ChannelName, Engine, EngineMetrics, Fetched,
    Follow, Followed, History, HistoryQuery, Kind, Later, ListPlace, ListStep, LocalId, Mark,
    Marked, MemoryEngine, Message, MessageId, Notification, Outcome, PresenceCache, Publication,
    PublishError, Reading, Rule, Ticket, VolatilePublication, Watermark, WorkerId,
};

use crate::journal::{DiskJournal, WhenDone};
pub use delivery::AnswerDelivery;
use markers::Markers;
use read::PAGE_BYTES_MAX;
use readers::{ReadTurn, Readers};
use shared::EngineShared;

/// See the module.
pub struct DurableEngine {
    shared: Arc<EngineShared>,
    journal: Arc<DiskJournal>,
    readers: Readers,
    markers: Arc<Markers>,
}

/// Reads of logs for clients, and refused ones since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFigures {
    /// Bytes that were read and wait for the subscription or page that they are for.
    pub held_bytes: u64,
    /// The limit of that.
    pub held_bytes_max: u64,
    /// Readings that wait for a thread.
    pub waiting: u64,
    /// Readings that were refused as others held the memory.
    pub refused_memory: u64,
    /// Readings that were refused as too many waited.
    pub refused_busy: u64,
    /// Readings that got less than they asked for, as the client held its share of the memory.
    pub shortened: u64,
}

impl DurableEngine {
    /// The engine over what `delivery` has. `journal` writes its logs, and delivers to it.
    ///
    /// # Errors
    ///
    /// An error of the system, if a thread cannot be started.
    pub fn start(
        delivery: &AnswerDelivery,
        journal: Arc<DiskJournal>,
    ) -> io::Result<DurableEngine> {
        let shared = delivery.shared();
        let markers = Arc::new(Markers::new(Arc::clone(&shared.logs), Arc::clone(&journal)));
        Ok(DurableEngine { shared, journal, readers: Readers::start()?, markers })
    }

    /// Reads for clients.
    pub fn read_figures(&self) -> ReadFigures {
        let (parts, readers) = (self.shared.parts.metrics(), self.readers.metrics());
        ReadFigures {
            held_bytes: parts.bytes,
            held_bytes_max: parts.max_bytes,
            waiting: readers.waiting,
            refused_memory: parts.refused,
            refused_busy: readers.refused,
            shortened: parts.shortened,
        }
    }

    fn memory(&self) -> &MemoryEngine {
        &self.shared.memory
    }
}

fn limits(rule: &Rule) -> Limits {
    Limits { messages: rule.max_lag_messages, bytes: rule.max_lag_bytes }
}

impl Engine for DurableEngine {
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        let Some(rule) = self.shared.durable(&publication.channel) else {
            return self.memory().publish(now_ms, publication).into();
        };
        if let Err(busy) = self.memory().check_room(&publication.channel) {
            return Err(busy).into();
        }
        let retention = rule.retention;
        let shared = Arc::clone(&self.shared);
        let mut answer = None;
        let done = || -> WhenDone {
            let (ticket, later): (Ticket<Outcome>, _) = later.ticket();
            answer = Some(later);
            Box::new(move |result| ticket.answer(shared.outcome(result)))
        };
        match (self.journal.publish(publication, retention, done), answer) {
            (Ok(()), Some(later)) => later,
            (Err(refused), _) => Err(refused.into()).into(),
            (Ok(()), None) => Err(PublishError::Unknown).into(),
        }
    }

    /// The disk does not hear of it, whatever the channel.
    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        Ok(self.memory().publish_volatile(now_ms, publication))
    }

    fn watermark(&self) -> Watermark {
        self.memory().watermark()
    }

    fn fetches(&self) -> bool {
        true
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let Some(rule) = self.shared.durable(channel) else {
            return self.memory().fetch(now_ms, channel, reading, later);
        };
        // Before anything is read: see `throng_core::parts`.
        let (parts, asker, limits) = (&self.shared.parts, later.asker(), limits(rule));
        if let Reading::Start(start) = reading {
            let held = parts.open(channel, reading, limits, asker);
            if let Some(part) = self.shared.start_now(channel, start) {
                held.fill(part);
                return Fetched::held_by(held).into();
            }
        }
        let wanted = match reading {
            Reading::Start(_) | Reading::Page(HistoryQuery::FirstOfLast(_), _) => limits,
            Reading::Page(..) => Limits { bytes: PAGE_BYTES_MAX, ..limits },
        };
        let (ticket, answer) = later.ticket();
        if let Some(held) = parts.ask(channel, reading, wanted, asker, ticket) {
            let shared = Arc::clone(&self.shared);
            self.readers.submit(asker, channel, move || shared.turn(now_ms, &held, wanted));
        }
        answer
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let Some(rule) = self.shared.durable(follow.channel) else {
            return self.memory().follow(now_ms, follow);
        };
        let reading = Reading::Start(follow.start);
        let parts = &self.shared.parts;
        let found = parts.find(follow.channel, reading);
        // Parts that were not fetched are read here, and hold up the thread.
        let open = || parts.open(follow.channel, reading, limits(rule), AskerId::SERVER);
        let held = found.is_none().then(open);
        let part = match (found, &held) {
            (None, Some(held)) => {
                let part = self.shared.start_now(follow.channel, follow.start);
                let part =
                    part.map_or_else(|| self.shared.read(now_ms, held), |part| Ok(Some(part)));
                part.ok().flatten().map(|part| Arc::clone(held.fill(part)))
            }
            (found, _) => found,
        };
        let epoch = self.shared.logs.epoch();
        self.memory().follow_elsewhere(now_ms, &follow, || {
            match part.as_ref().map(|open| (open, open.part())) {
                Some((open, Some(Part::Start(start)))) => open.backlog(start, true),
                // The disk cannot be read: messages that come show the hole before them.
                _ => Backlog {
                    head: MessageId { epoch, offset: 0 },
                    cursor: 0,
                    are_offsets_consecutive: true,
                    is_recovered: Some(false),
                    messages: Vec::new(),
                },
            }
        })
    }

    fn look_ahead(
        &self,
        channels: &[ChannelName],
        worker: WorkerId,
        each: &mut dyn FnMut(LocalId),
    ) {
        self.memory().look_ahead(channels, worker, each);
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.memory().unfollow(now_ms, channel, worker);
    }

    fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        self.memory().unfollow_all(now_ms, channels, worker);
    }

    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32) {
        self.memory().set_subscribers(now_ms, channel, worker, subscribers);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let Some(rule) = self.shared.durable(channel) else {
            return self.memory().history(now_ms, channel, query, limit);
        };
        let reading = Reading::Page(query, limit);
        let open = self.shared.parts.find(channel, reading);
        let page = match open.as_ref().and_then(|open| open.part()) {
            Some(Part::Page(page)) => Some(page.clone()),
            // Parts that were not fetched are read here, and hold up the thread.
            _ => {
                let limits = Limits { bytes: PAGE_BYTES_MAX, ..limits(rule) };
                let page = self.shared.reader(now_ms, channel, reading).page(query, limit, limits);
                page.ok().flatten()
            }
        };
        let Page { head, messages, has_more, is_recovered } = page.unwrap_or_else(|| {
            let head = MessageId { epoch: self.shared.logs.epoch(), offset: 0 };
            Page { head, messages: Vec::new(), has_more: false, is_recovered: Some(false) }
        });
        let messages = messages.into_iter().map(|content| Arc::new(Message::from(content)));
        History { head, messages: messages.collect(), has_more, is_recovered }
    }

    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        if self.shared.durable(inbox).is_none() {
            return Ok(self.memory().read_marker(now_ms, inbox, mark)).into();
        }
        let asker = later.asker();
        let (ticket, answer) = later.ticket();
        let (markers, of) = (Arc::clone(&self.markers), inbox.clone());
        let mut ticket = Some(ticket);
        self.readers.submit(asker, inbox, move || {
            // The client may have gone.
            let is_wanted = |ticket: &Ticket<_>| mark.is_some() || ticket.is_wanted();
            if let Some(ticket) = ticket.take().filter(is_wanted) {
                markers.read_marker(now_ms, &of, mark, ticket);
            }
            ReadTurn::Done
        });
        answer
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        self.memory().audience(channel)
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        self.memory().name(channel)
    }

    fn is_named(&self, channel: ChannelId, name: &ChannelName) -> bool {
        self.memory().is_named(channel, name)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        self.memory().names(channels, each);
    }

    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        list::step(&self.shared, now_ms, kind, after)
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        self.memory().post(worker, notification);
    }

    fn is_at_rest(&self) -> bool {
        // In this order: what is read may be written.
        self.readers.are_idle() && self.journal.is_idle()
    }

    fn tick(&self, now_ms: u64) {
        self.memory().tick(now_ms);
    }

    fn set_memory_short(&self, is_short: bool) {
        self.memory().set_memory_short(is_short);
    }

    fn log_bytes(&self) -> u64 {
        self.memory().log_bytes()
    }

    fn held_shortly(&self) -> u64 {
        self.journal.messages()
    }

    fn metrics(&self) -> EngineMetrics {
        self.memory().metrics()
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        self.memory().presence_cache()
    }
}
