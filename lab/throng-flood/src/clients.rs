//! The load: clients on threads with private descriptor tables, and the handle to all of them.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `pool` | [`ClientSet`], and [`ClientPool`]: the threads of subscribers, or of publishers |
//! | `thread_handle` | starts a thread, and sends it commands |
//! | `thread` | a client thread: commands, timers and events |
//! | `share` | the part of a run's clients that a pool has, and [`ClientCommand`] |
//! | `shared` | what all threads share: settings, and the accumulator of what they measure |
//! | `client` | an idle client, at most 64 bytes |
//! | `opening`, `connect` | ramps, storms and churn: which clients are open, and when |
//! | `handshake` | from the start of a connect to the response head |
//! | `receive` | received messages, pings and closes |
//! | `publisher`, `outbox` | connections that publish, and their messages |
//! | `activity` | pings of clients whose server demands them |
//! | `inflated` | compressed messages, inflated once for all who get the same |
//! | `follow`, `graph` | the streams that a client follows, and their audit |
//! | `reader` | the ages of the messages of a client with several channels |
//! | `start` | where the audit of a client starts if the publisher is on another machine |
//! | `deliveries` | latencies by message |
//! | `request` | the requests and hello messages of clients |
//! | `resume` | the message ids that clients resume after |
//! | `sources` | local addresses and ports |
//! | `network` | connections: sockets, or a [tunnel](throng_tunnel) |
//! | `sockets` | connections over kernel sockets |
//! | `packets` | packets from a tunnel |
//! | `error` | why a pool cannot start |
//!
//! # Invariants
//!
//! * A descriptor never leaves the thread that opened it.
//! * Client `i` always belongs to thread `i % threads`.
//! * Between two messages a client has nothing but its slab entry.

mod activity;
mod client;
mod compact;
mod connect;
mod deliveries;
mod error;
mod follow;
mod graph;
mod handshake;
mod inflated;
mod network;
mod opening;
mod outbox;
mod packets;
mod pool;
mod publisher;
mod reader;
mod receive;
mod request;
mod resume;
mod share;
mod shared;
mod sockets;
mod sources;
mod start;
mod thread;
mod thread_handle;

pub use deliveries::PublishDeliveries;
pub(crate) use error::ClientPoolError;
pub use graph::Graph;
pub use pool::{ClientPool, ClientSet};
pub use share::ClientCommand;
pub(crate) use share::ClientShare;

#[cfg(test)]
mod tests;
