//! The logs of channels as streams of NATS JetStream, for several nodes.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`protocol`] | the protocol of NATS, bytes in and operations out |
//! | [`subject`] | how a channel is named in subjects |
//! | `names` | the names of many channels, small |
//! | [`api`] | the requests and answers of JetStream |
//! | [`journal`] | the journal of one stream: what happened goes in, what is to be done comes out |
//! | [`client`] | the connection that does it |
//! | [`permissions`] | what a node has to be allowed |
//! | [`engine`] | the engine of a node, over all of these |
//!
//! # Why a client of its own
//!
//! * A subscription of the `async-nats` library takes 4.9 KB in the node, since each has a queue.
//!   Here all subscriptions of a connection come in one order, and one takes what the journal
//!   knows of a channel.
//! * That one order is what the journal reasons with: answers, messages and the loss of the
//!   connection cannot overtake each other on their way through queues and tasks, and none is
//!   dropped. Who does not keep up is disconnected by the server, which is a loss that is known.
//! * So there is one thing to simulate, with all that it does on the wire.
//!
//! The library's other parts are not needed here: consumers, queue groups, services, object stores.
//!
//! # Invariants
//!
//! * [`protocol`], [`subject`], [`api`] and [`journal`] do no I/O and have no clock.
//! * A stream is created if it is missing, and never changed.
//! * Whatever a server or another publisher sends, nothing panics, and what is kept is bounded.

#![forbid(unsafe_code)]

pub mod api;
pub mod client;
pub mod engine;
pub mod journal;
#[cfg(test)]
mod kept;
mod names;
pub mod permissions;
pub mod protocol;
pub mod subject;
