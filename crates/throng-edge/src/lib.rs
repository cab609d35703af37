//! The data plane: workers that park connections and deliver to them.
//!
//! Worker threads share nothing but queues and metrics: each has its own event loop, its own
//! slab of connections, its own subscriptions and its own descriptor table. There is no `async`
//! here.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | what the data plane can be told |
//! | [`limits`] | how much it takes on |
//! | [`start`] | from settings to running workers, and the ways to and from the control plane |
//! | [`event_loop`] | the thread of a worker: its sleep, fan-out permits, steering of connections |
//! | [`worker`] | what happens to connections, as a state machine |
//! | [`connection`] | what a connection costs and owns |
//! | `outbound` | bytes that wait for a socket |
//! | [`encoding`] | how a message looks on a connection |
//! | [`net`] | what a worker needs of the world |
//! | [`metrics`] | what workers tell about themselves |
//! | `sys` | the kernel's side; all `unsafe` |
//!
//! # Invariants
//!
//! * A parked connection of one channel costs 32 bytes here and 24 in the subscription table; it
//!   owns no buffer and no timer.
//! * A descriptor belongs to one table: sockets cross threads only through `sys::handoff`.
//! * No loop over connections or subscribers runs unbounded.

mod close_reason;
pub mod connection;
pub mod encoding;
pub mod event_loop;
pub mod limits;
pub mod metrics;
pub mod net;
pub mod settings;
pub mod start;
mod sys;
pub mod worker;

pub use limits::Limits;
pub use metrics::{Metrics, WorkerMetrics};
pub use settings::{HEAD_BYTES_MAX, Settings};
pub use start::{
    ControlHandoffs, Edge, Handoff, Plan, SendMethod, StartError, WorkerBusyError, WorkerHandoffs,
    listen_admin,
};
pub use sys::process::release_unused_memory;
