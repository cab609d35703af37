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
//! | `drain` | asks clients to leave, at a pace, or closes their connections |
//! | `freeze`, `thaw` | the worker as bytes, and back |
//!
//! # Invariants
//!
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.

mod drain;
mod freeze;
mod notifications;
mod scan;
mod thaw;
mod tick;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;

use throng_core::{Notification, WorkerQueue};

use crate::delivery::Delivery;
use crate::net::Net;
use crate::sessions::Sessions;
use crate::settings::Settings;
pub use crate::setup::Setup;
use crate::sockets::Sockets;
pub use crate::sockets::{Now, TICKS_PER_S};
use scan::running::RunningScan;
pub use thaw::WorkerThaw;
pub(crate) use thaw::connection_token;

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
        let sockets = Sockets::new(&setup, net);
        let sessions = Sessions::new(&setup, Delivery::new(&setup, sockets));
        let Setup { settings, queue, .. } = setup;
        Worker { sessions, settings, queue, scans: VecDeque::new(), notifications: Vec::new() }
    }

    /// Sets the time of the events that follow. It never goes back.
    pub fn set_now(&mut self, now: Now) {
        self.sessions.set_time(now);
    }
}

stands_on!(Worker, sessions: Sessions);
