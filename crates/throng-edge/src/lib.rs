//! The data plane: workers that park connections and deliver to them.
//!
//! Worker threads share nothing but queues and metrics: each has its own event loop, its own
//! table of connections, its own subscriptions and its own descriptor table. There is no `async`.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | the settings of the data plane |
//! | [`limits`] | limits on connections, memory and time, which are no settings |
//! | `setup` | the parameters of a worker |
//! | [`start`] | starts the workers; handoffs to and from the control plane |
//! | [`event_loop`] | the thread of a worker: its sleep, fan-out permits, steering of connections |
//! | `sockets` | a worker's connections, and what is read from them and written to them |
//! | `delivery` | their subscriptions, and the messages that they lack |
//! | `sessions` | their clients: who asks, whether they may, what waits |
//! | [`worker`] | the state machine of a worker, which connects these three |
//! | [`connection`] | a connection, what it owns, and the table of all |
//! | `close_counters` | counters of the reasons for which connections close |
//! | [`compression`] | compresses messages once for all, and inflates what clients send |
//! | [`net`] | a worker's interface to the kernel and to other threads |
//! | `counters` | the counters of a worker |
//! | [`metrics`] | the load and the counters of all workers |
//! | `tls` | TLS below the workers |
//! | `sys` | system calls, and all `unsafe` |
//!
//! # Invariants
//!
//! * A parked connection of one channel costs 32 bytes here and 24 in the subscription table; it
//!   owns no buffer and no timer.
//! * A descriptor belongs to one table: sockets cross threads only through `sys::handoff`.
//! * No loop over connections or subscribers runs unbounded.

/// An object of a worker stands on the one below, which it has in a private field, and calls it as
/// its own: a call reads the same wherever its method is, and a method moves down without a change
/// where it is called. The one below has no way to name the one above.
macro_rules! stands_on {
    ($upper:ident, $field:ident: $lower:ident) => {
        impl<N: Net> std::ops::Deref for $upper<N> {
            type Target = $lower<N>;

            fn deref(&self) -> &$lower<N> {
                &self.$field
            }
        }

        impl<N: Net> std::ops::DerefMut for $upper<N> {
            fn deref_mut(&mut self) -> &mut $lower<N> {
                &mut self.$field
            }
        }
    };
}

mod close_counters;
pub mod compression;
pub mod connection;
mod counters;
mod delivery;
pub mod event_loop;
pub mod limits;
pub mod metrics;
pub mod net;
mod sessions;
pub mod settings;
mod setup;
mod sockets;
pub mod start;
mod sys;
pub mod tls;
pub mod worker;

pub use counters::{Counter, Counters, Parked};
pub use limits::Limits;
pub use metrics::{Metrics, WorkerMetrics};
pub use settings::{HEAD_BYTES_MAX, Settings, TlsSettings};
pub use start::{
    Arrivals, ControlHandoffs, Edge, EdgeContext, EdgePlan, Handoff, PassedPorts, SendMethod,
    StartError, WorkerBusyError, WorkerHandoffs, listen_alone,
};
pub use sys::process::release_unused_memory;
pub use sys::sealed::{SealedMemory, SealedWriter};
pub use throng_dialect::LateIdentity;
pub use tls::TlsConnection;
