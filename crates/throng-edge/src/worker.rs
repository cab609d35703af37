//! A worker: its connections and everything that happens to them.
//!
//! It is a state machine without clock or sockets of its own: the event loop, or the simulation,
//! passes it events and the time, and it acts through [`Net`].
//!
//! # Layout
//!
//! Three objects have what a worker is, each with private fields, each on the one below, which it
//! calls as its own (`Deref`). None can name the one above. What a call means above is recorded
//! below, and taken there at the end of the turn.
//!
//! | object | what it owns | knows nothing of |
//! |---|---|---|
//! | [`Sessions`] | requests, identity, commands, what waits for an answer | how bytes leave |
//! | [`Delivery`] | subscriptions, cursors, fan-outs, heartbeats | access |
//! | [`Sockets`] | connections, buffers, what is still to be written, closing | who the peer is |
//!
//! The worker on top connects them:
//!
//! | module | what it does |
//! |---|---|
//! | `turn` | one slice of the worker's own work, in order |
//! | `notifications` | takes notifications of the engine and the control plane |
//! | `tick` | the timer scan: passes all connections, and does what is due |
//! | `scan` | lists, closes or asks again about the connections of a user, a token or a channel |
//! | `leave` | asks clients to leave, at a pace, while the others are served |
//! | `drain` | tells clients when to come back, and closes their connections |
//! | `freeze`, `thaw` | the worker as bytes, and back |
//!
//! # Invariants
//!
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.

mod drain;
mod freeze;
mod leave;
mod notifications;
mod scan;
mod thaw;
mod tick;
mod turn;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use throng_access::AccessControl;
use throng_core::events::EventSink;
use throng_core::{Engine, MemoryPressure, Notification, Rules, WorkerId, WorkerQueue};

use crate::compression::Compression;
use crate::delivery::Delivery;
use crate::metrics::Metrics;
use crate::net::Net;
use crate::sessions::Sessions;
use crate::settings::Settings;
use crate::sockets::Sockets;
pub use crate::sockets::{Now, TICKS_PER_S};
use scan::running::RunningScan;
pub use thaw::WorkerThaw;
pub(crate) use thaw::connection_token;

/// The parameters of a new worker.
#[derive(Clone)]
pub struct Setup {
    /// The generation before the first connection's. A random number, so that the name of a
    /// connection from before a restart names none afterwards.
    pub generation: u32,
    pub id: WorkerId,
    /// Settings of the data plane, shared by all workers.
    pub settings: Arc<Settings>,
    /// The logs, shared by both planes.
    pub engine: Arc<dyn Engine>,
    /// Decides who may do what, for both planes.
    pub access: Arc<AccessControl>,
    pub rules: Arc<Rules>,
    pub compression: Arc<Compression>,
    /// Hears of connections that begin and end, if the application wants to know.
    pub events: Option<Arc<dyn EventSink>>,
    /// Notifications of the engine and the control plane for this worker.
    pub queue: Arc<WorkerQueue>,
    pub pressure: Arc<MemoryPressure>,
    /// All workers' metrics: a full worker looks for one that is not.
    pub metrics: Metrics,
}

/// A worker: it connects its three objects.
pub struct Worker<N: Net> {
    sessions: Sessions<N>,
    settings: Arc<Settings>,
    /// Notifications from the engine and the control plane.
    queue: Arc<WorkerQueue>,
    /// Scans of all connections. They go on one after the other: each is over in less than a
    /// second.
    scans: VecDeque<RunningScan>,
    /// Reused: what is taken from the queue.
    notifications: Vec<Notification>,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let Setup { generation, id, settings, engine, access, rules, .. } = setup;
        let Setup { compression, events, queue, pressure, metrics, .. } = setup;
        let own = (id, engine.node(), generation);
        let clients = Arc::clone(&access.clients);
        let sockets = Sockets::new(net, own, Arc::clone(&settings), clients, metrics);
        let delivery = Delivery::new(
            sockets,
            Arc::clone(&settings),
            Arc::clone(&engine),
            rules,
            Arc::clone(&compression),
            Arc::clone(&queue),
        );
        let own = Arc::clone(&settings);
        let sessions = Sessions::new(delivery, own, engine, access, events, compression, pressure);
        Worker { sessions, settings, queue, scans: VecDeque::new(), notifications: Vec::new() }
    }

    /// Sets the time of the events that follow. It never goes back.
    pub fn set_now(&mut self, now: Now) {
        self.sessions.set_time(now);
    }
}

/// A worker does all that its sessions do.
impl<N: Net> Deref for Worker<N> {
    type Target = Sessions<N>;

    fn deref(&self) -> &Sessions<N> {
        &self.sessions
    }
}

impl<N: Net> DerefMut for Worker<N> {
    fn deref_mut(&mut self) -> &mut Sessions<N> {
        &mut self.sessions
    }
}
