//! An engine whose journal answers publications when a test says so: late, out of order between
//! channels, with failures, or never.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::delegate::Delegate;
use crate::engine::Engine;
use crate::later::{Answer, Later, Ticket};
use crate::memory::MemoryEngine;
use crate::name::{ChannelName, Kind};
use crate::publication::{Outcome, Publication, PublishError};

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

impl Delegate for Arc<LateJournal> {
    fn behind(&self) -> &dyn Engine {
        &*self.engine
    }

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
}
