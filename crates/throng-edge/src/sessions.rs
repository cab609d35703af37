//! Sessions: the upper one of a worker's three objects. It reads requests, finds out who asks and
//! whether they may, and lets them wait for answers.
//!
//! It stands on [`Delivery`], which it calls as its own, and knows nothing of how bytes leave.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `turn` | a turn, after which the connections are freed that it has condemned |
//! | `notifications` | acts on what the engine tells |
//! | `accept`, `limit` | takes a connection in; whose it is; keeps clients to their limits |
//! | `receive` | reads, and passes the input to the handler of the connection's state |
//! | `writable` | goes on with a connection whose socket takes more |
//! | `frames`, `command` | WebSocket frames; the commands in them, whatever the dialect |
//! | `subscribe`, `poll` | parks a connection: follows its channels, answers the request |
//! | `admission` | tells clients moments when they come faster than they are served |
//! | `identify`, `shown`, `client`, `refresh` | who a client is, and its newer token |
//! | `ask`, `fetch`, `questions`, `resume` | what waits for an answer, and goes on with it |
//! | `kept`, `kept_change` | what the server keeps for users, and changes of that |
//! | `presence`, `presence_scan`, `presence_events` | who is in a channel |
//! | `recheck`, `expiry` | ends what is allowed no longer, and acts on what is due |
//! | `close`, `error_response`, `evict` | final responses |
//! | `relieve`, `relief` | gives up memory when the server is short of it |
//! | `shutdown`, `pace` | how far the end of the worker has come |
//! | `events`, `log` | tells the application and the operator |
//! | `freeze`, `thaw` | connections and what they share as bytes, and back |
//!
//! Where a method would have to call itself, through several others, it defers work until the next
//! slice: a request that was pipelined behind a long poll is read again after the answer.

mod accept;
mod admission;
mod ask;
mod client;
mod close;
mod command;
mod error_response;
mod events;
mod evict;
mod expiry;
mod fetch;
mod frames;
mod freeze;
mod identify;
mod kept;
mod kept_change;
mod limit;
mod log;
mod notifications;
mod pace;
mod poll;
mod presence;
mod presence_events;
mod presence_scan;
mod questions;
mod receive;
mod recheck;
mod refresh;
mod relief;
mod relieve;
mod resume;
mod shown;
mod shutdown;
mod subscribe;
#[cfg(test)]
mod tests;
mod thaw;
mod turn;
mod writable;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use throng_access::{AccessControl, Verifier};
use throng_core::events::EventSink;
use throng_core::{Engine, MemoryPressure, QueueWatch};

use crate::compression::Compression;
use crate::connection::PendingClose;
use crate::delivery::Delivery;
use crate::net::Net;
use crate::settings::Settings;
use kept_change::RunningKeptChange;
use presence_scan::PresenceScan;
use questions::Questions;
use relief::Relief;
use shutdown::Shutdown;
pub(crate) use shutdown::{DrainInputs, DrainStep, Polls};
pub(crate) use thaw::granted;

/// The clients of a worker: who they are, what they ask, and what they wait for.
pub struct Sessions<N: Net> {
    /// The subscriptions and what stands below them.
    delivery: Delivery<N>,
    settings: Arc<Settings>,
    /// Answers what clients read and publish.
    engine: Arc<dyn Engine>,
    /// Asked before a client subscribes, publishes or reads.
    access: Arc<AccessControl>,
    /// Verifies tokens; `None` if the server has no keys for tokens.
    verifier: Option<Verifier>,
    /// Hears of connections that begin and end.
    events: Option<Arc<dyn EventSink>>,
    /// Inflates what clients send.
    compression: Arc<Compression>,
    /// The memory pressure, and this worker's response to it.
    relief: Relief,
    /// Close frames that wait for their answers.
    closes: Vec<PendingClose>,
    /// Presence queries under way.
    presence_scans: VecDeque<PresenceScan>,
    /// Changes of kept channels, in their order.
    kept_changes: VecDeque<RunningKeptChange>,
    /// How far the end of the worker has come.
    shutdown: Shutdown,
    /// How long the queues of new connections are: of plain ones, and of those with TLS.
    crowds: [QueueWatch; 2],
    /// Numbers the questions whose answers may come later.
    questions: Questions,
}

impl<N: Net> Sessions<N> {
    /// No clients.
    pub(crate) fn new(
        mut delivery: Delivery<N>,
        settings: Arc<Settings>,
        engine: Arc<dyn Engine>,
        access: Arc<AccessControl>,
        events: Option<Arc<dyn EventSink>>,
        compression: Arc<Compression>,
        pressure: Arc<MemoryPressure>,
    ) -> Sessions<N> {
        if access.passed.users {
            delivery.connections_mut().keep_all_names();
        }
        Sessions {
            delivery,
            settings,
            engine,
            verifier: access.tokens.as_ref().map(|tokens| tokens.verifier()),
            access,
            events,
            compression,
            relief: Relief::new(pressure),
            closes: Vec::new(),
            presence_scans: VecDeque::new(),
            kept_changes: VecDeque::new(),
            shutdown: Shutdown::default(),
            crowds: [QueueWatch::default(); 2],
            questions: Questions::default(),
        }
    }

    pub(crate) fn into_delivery(self) -> Delivery<N> {
        self.delivery
    }

    /// True if clients need tokens or keys.
    pub(crate) fn has_keys(&self) -> bool {
        self.access.has_keys()
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    pub(crate) fn shutdown_mut(&mut self) -> &mut Shutdown {
        &mut self.shutdown
    }

    /// True if presence queries or changes of kept channels wait for their turn.
    pub(crate) fn has_queries(&self) -> bool {
        !self.presence_scans.is_empty() || !self.kept_changes.is_empty()
    }

    /// True if a slice has something to do at once. Close frames are answered only while
    /// notifications are taken.
    pub(crate) fn has_deferred_work(&mut self) -> bool {
        self.deferred().has_work()
            || self.has_queries()
            || self.shutdown.has_work()
            || (!self.closes.is_empty() && self.takes_notifications())
    }
}

/// Sessions do all that their delivery does.
impl<N: Net> Deref for Sessions<N> {
    type Target = Delivery<N>;

    fn deref(&self) -> &Delivery<N> {
        &self.delivery
    }
}

impl<N: Net> DerefMut for Sessions<N> {
    fn deref_mut(&mut self) -> &mut Delivery<N> {
        &mut self.delivery
    }
}
