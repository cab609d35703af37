//! An engine whose journal answers publications when a test says so: late, out of order between
//! channels, with failures, or never.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{Audience, Engine, EngineMetrics, Follow, Followed, History};
use crate::id::{ChannelId, WorkerId};
use crate::later::{Answer, Later, Ticket};
use crate::listing::{ListPlace, ListStep};
use crate::memory::MemoryEngine;
use crate::name::{ChannelName, Kind};
use crate::presence::PresenceCache;
use crate::publication::{Outcome, Publication, PublishError};
use crate::read_marker::{Mark, ReadMarker};
use crate::reading::HistoryQuery;
use crate::stamp::Watermark;
use crate::worker_queue::Notification;

/// What becomes of a publication that waits.
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
#[derive(Debug)]
struct Open {
    now_ms: u64,
    publication: Publication,
    ticket: Ticket<Outcome>,
}

/// Messages are published, and delivered, when their publications are settled: those to one channel
/// in the order of the calls.
#[derive(Debug)]
pub struct LateJournal {
    engine: Arc<MemoryEngine>,
    open: Mutex<VecDeque<Open>>,
}

impl LateJournal {
    /// A journal on top of `engine`, in which nothing waits.
    pub fn new(engine: Arc<MemoryEngine>) -> LateJournal {
        LateJournal { engine, open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The publications that wait, oldest first.
    pub fn open(&self) -> Vec<Publication> {
        self.lock().iter().map(|open| open.publication.clone()).collect()
    }

    /// Settles the oldest publication to a channel. Returns what became of it; `None` if none
    /// waits.
    pub fn settle(&self, channel: &ChannelName, fate: Fate) -> Option<Outcome> {
        let mut all = self.lock();
        let at = all.iter().position(|open| open.publication.channel == *channel)?;
        let Open { now_ms, publication, ticket } = all.remove(at)?;
        drop(all);
        let outcome = match fate {
            Fate::Published | Fate::PublishedInSilence => self.engine.publish(now_ms, publication),
            Fate::Refused(error) => Err(error),
        };
        if fate != Fate::PublishedInSilence {
            ticket.answer(outcome);
        }
        Some(outcome)
    }
}

impl Engine for Arc<LateJournal> {
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        if publication.channel.kind() == Kind::Internal {
            return self.engine.publish(now_ms, publication).into();
        }
        let (ticket, answer) = later.ticket();
        self.lock().push_back(Open { now_ms, publication, ticket });
        answer
    }

    fn watermark(&self) -> Watermark {
        self.engine.watermark()
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        self.engine.follow(now_ms, follow)
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.engine.unfollow(now_ms, channel, worker);
    }

    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32) {
        self.engine.set_subscribers(now_ms, channel, worker, subscribers);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        self.engine.history(now_ms, channel, query, limit)
    }

    fn read_marker(&self, now_ms: u64, inbox: &ChannelName, mark: Option<Mark>) -> ReadMarker {
        self.engine.read_marker(now_ms, inbox, mark)
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

    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        self.engine.list(now_ms, kind, after)
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
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

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        self.engine.presence_cache()
    }
}
