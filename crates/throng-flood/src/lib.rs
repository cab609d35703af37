//! The load generator: opens, holds, publishes to and measures connections of any push server.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`], [`template`], [`assertions`] | what a run does, and what must hold at its end |
//! | [`cli`] | `throng flood` |
//! | [`listener`] | which processes listen on a port |
//! | [`clients`] | the load: clients on threads with private descriptor tables |
//! | [`protocol`] | what servers send, decoded without I/O |
//! | [`marker`] | the mark in each payload |
//! | [`audit`] | whether every client got every message |
//! | [`tally`] | what a thread counts |
//! | [`publish`], [`conductor`], [`run`] | the open-loop publisher, and a run from plan to report |
//! | [`machine`] | what it costs, and what the machine allows |
//! | [`refusal`] | what a server says when it refuses |
//! | [`report`] | what is shown |
//! | [`agents`] | clients on several machines, which meet at a NATS server |
//!
//! # Invariants
//!
//! * No runtime on the load path: plain threads, one epoll each. Agents speak to each other from
//!   one thread of their own.
//! * Nothing that a server sends makes a thread panic or grow without bound.
//! * A delivery's latency counts from the intended time of its publish.
//! * A failure has a reason and is counted.

pub mod agents;
pub mod assertions;
pub mod audit;
pub mod cli;
pub mod clients;
pub mod conductor;
pub mod listener;
pub mod machine;
pub mod marker;
pub mod plan;
pub mod protocol;
pub mod publish;
pub mod redact;
pub mod refusal;
pub mod report;
pub mod run;
pub mod tally;
pub mod template;
