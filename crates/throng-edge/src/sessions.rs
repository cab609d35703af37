//! Sessions: the upper one of a worker's three objects. It reads requests, finds out who asks and
//! whether they may, and lets them wait for answers.
//!
//! It stands on [`Delivery`], which it calls as its own, and knows nothing of how bytes leave.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `notifications` | acts on what the engine tells |
//! | `accept`, `limit` | takes a connection in; whose it is; keeps clients to their limits |
//! | `receive` | reads, and passes the input to the handler of the connection's state; writes on |
//! | `frames`, `command` | WebSocket frames; the commands in them, whatever the dialect |
//! | `bookmarks` | where users go on after a connection has died |
//! | `call` | a command of a client, while it is executed |
//! | `join` | begins one more subscription of a connection with commands |
//! | `many` | commands about many channels, in parts |
//! | `subscribe`, `poll` | parks a connection: follows its channels, answers the request |
//! | `storm` | tells clients moments when they come faster than they are served |
//! | `identify`, `shown`, `client` | who a client is |
//! | `sign_in` | who it is on a connection that stands, and its newer token |
//! | `app`, `client_events` | clients of applications, and what these may publish |
//! | `ask`, `fetch`, `questions`, `resume` | what waits for an answer, and goes on with it |
//! | `kept`, `kept_change` | what the server keeps for users, and changes of that |
//! | `members` | clients as members of the channels that they follow |
//! | `watchlists` | clients that are told which users are online |
//! | `presence`, `presence_scan`, `presence_events` | who is in a channel |
//! | `expiry` | ends what is allowed no longer, and acts on what is due |
//! | `close`, `error_response` | final responses |
//! | `relieve`, `relief` | gives up memory when there is too little |
//! | `shutdown`, `pace` | how far the end of the worker has come |
//! | `log` | tells the application and the operator |
//! | `freeze`, `thaw` | connections and what they share as bytes, and back |
//!
//! A **turn** is the time in which the worker acts on one connection, or on a few whose writes it
//! makes together. Whoever calls something in a turn may find the connection condemned afterwards,
//! but it is still there, and calls about it do nothing. Loops over connections give each a turn of
//! its own, and hold no id from one to the next. At its end, what was condemned is freed.
//!
//! Where a method would have to call itself, through several others, it defers work until the next
//! slice: a request that was pipelined behind a long poll is read again after the answer.

mod accept;
mod app;
mod ask;
mod bookmarks;
mod call;
mod client;
mod client_events;
mod close;
mod command;
mod end;
mod error_response;
mod expiry;
mod fetch;
mod frames;
mod freeze;
mod identify;
mod join;
mod kept;
mod kept_change;
mod limit;
mod log;
mod many;
mod members;
mod notifications;
mod pace;
mod poll;
mod presence;
mod presence_events;
mod presence_scan;
mod questions;
mod receive;
mod relief;
mod relieve;
mod resume;
mod shown;
mod shutdown;
mod sign_in;
mod storm;
mod subscribe;
#[cfg(test)]
mod tests;
mod thaw;
mod watchlists;

use std::collections::VecDeque;
use std::sync::Arc;

use throng_access::{AccessControl, Verifier};
use throng_core::events::EventSink;
use throng_core::{Channels, QueueWatch};

use crate::compression::Compression;
use crate::connection::{KeptNames, PendingClose};
use crate::delivery::Delivery;
use crate::net::Net;
use crate::settings::Settings;
use crate::setup::Setup;
use client_events::ClientEventRate;
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
    engine: Arc<Channels>,
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
    /// What clients of applications have published lately.
    client_events: ClientEventRate,
    /// Numbers the questions whose answers may come later.
    questions: Questions,
}

impl<N: Net> Sessions<N> {
    /// No clients.
    pub(crate) fn new(setup: &Setup, mut delivery: Delivery<N>) -> Sessions<N> {
        let access = Arc::clone(&setup.access);
        if access.passed.users || setup.engine.memory().rules().have_any_members() {
            delivery.connections_mut().keep_names(KeptNames::All);
        } else if setup.engine.memory().rules().show_senders() {
            delivery.connections_mut().keep_names(KeptNames::Publishers);
        }
        Sessions {
            delivery,
            settings: Arc::clone(&setup.settings),
            engine: Arc::clone(&setup.engine),
            verifier: access.tokens.as_ref().map(|tokens| tokens.verifier()),
            access,
            events: setup.events.clone(),
            compression: Arc::clone(&setup.compression),
            relief: Relief::new(Arc::clone(&setup.pressure)),
            closes: Vec::new(),
            presence_scans: VecDeque::new(),
            kept_changes: VecDeque::new(),
            shutdown: Shutdown::default(),
            crowds: [QueueWatch::default(); 2],
            client_events: ClientEventRate::default(),
            questions: Questions::default(),
        }
    }

    /// Acts on connections, then frees those that were condemned meanwhile.
    pub(crate) fn turn<R>(&mut self, act: impl FnOnce(&mut Sessions<N>) -> R) -> R {
        self.connections_mut().begin_turn();
        let result = act(self);
        self.connections_mut().end_turn();
        while let Some((id, reason)) = self.connections_mut().next_condemned() {
            self.free(id, reason);
        }
        self.settle_receipts();
        self.tell_ended();
        result
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
    pub(crate) fn has_deferred_work(&self) -> bool {
        self.deferred_reads() + self.deferred_deliveries() > 0
            || self.has_queries()
            || self.shutdown.has_work()
            || (!self.closes.is_empty() && self.takes_notifications())
    }
}

stands_on!(Sessions, delivery: Delivery);
