//! Logs, cursors, channels and users. No I/O, no threads of its own, and the clock is passed in.
//!
//! # One idea
//!
//! A channel is a log, a subscriber is a cursor, delivery is moving cursors forward. The **engine**
//! owns the logs of the whole server. Each worker keeps a [`SubscriptionTable`]: its subscriptions,
//! and for every channel that they follow a replay buffer of that part of the log which some of
//! them still lack. What the engine has to tell a worker travels through that worker's
//! [`WorkerQueue`].
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`id`] | message ids, and positions in several channels at once |
//! | [`name`] | channel and user names |
//! | [`message`] | a message, shared by everyone who is still to get it |
//! | [`rules`] | retention and patience, per channel pattern |
//! | [`log`] | the retained messages of one channel |
//! | [`engine`] | what an engine promises; [`memory`] is the default one |
//! | [`worker_queue`] | from engine and control plane to a worker |
//! | [`subscriptions`] | subscriptions, cursors and sweeps of one worker |
//! | [`presence`] | who is in a channel |
//! | [`access`] | the one place that decides who may do what |
//! | [`counters`] | what each worker counts |
//! | [`histogram`] | times, counted by length |
//! | [`slab`] | storage with stable indices |
//! | [`retry`] | moments to come back at |
//! | `ages` | who keeps the oldest message |
//! | [`clock`] | the time that a running server passes in |
//!
//! # Invariants
//!
//! * Within a channel offsets grow, and every message names its predecessor's offset.
//! * Notification about one channel reaches a worker in the order of offsets: the engine posts it
//!   under the same lock that appends to the log.
//! * Following a channel and reading its backlog happen under that lock too, so that a subscriber
//!   gets each message either as backlog or by notifications; what comes both ways is recognised by
//!   its offset.

pub mod access;
mod ages;
pub mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod counters;
pub mod engine;
pub mod histogram;
pub mod id;
pub mod log;
pub mod memory;
pub mod message;
pub mod name;
pub mod presence;
pub mod retry;
pub mod rules;
pub mod slab;
pub mod subscriptions;
pub mod worker_queue;

pub use access::{Access, Action, Allow, Asker, ClientsRead, Decision, Listener};
pub use counters::{Counter, Counters, Parked};
pub use engine::{
    Audience, Engine, EngineMetrics, Follow, Followed, History, HistoryQuery, Publication,
    PublishError, Published, StartAt,
};
pub use histogram::{Histogram, Snapshot};
pub use id::{ChannelId, Epoch, LocalId, MessageId, Position, WorkerId};
pub use memory::MemoryEngine;
pub use message::{Body, BodyError, ConnectionName, Content, InFlight, Message};
pub use name::{ChannelName, Kind};
pub use presence::{Presence, PresenceBusy, PresenceCache, PresenceDone, PresenceQuery};
pub use rules::{LagPolicy, Retention, Rule, Rules};
pub use subscriptions::{SubscriptionId, SubscriptionTable, Waiting};
pub use worker_queue::{FollowsQuery, Notification, QueueLimits, WorkerQueue};
