//! The load generator: opens, holds, publishes to and measures connections of any push server.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`plan`], [`template`], [`assertions`] | what a run does, and what must hold at its end |
//! | [`cli`] | the command line of `throng-flood` |
//! | [`run`] | a run, from the plan to the report |
//! | [`runner`] | runs the phases of a plan, and samples what happens |
//! | [`clients`] | the load: connections on threads with private descriptor tables |
//! | [`publish`] | the schedule of messages, and the handle to those who send them |
//! | [`streams`] | counters that publishers and clients share |
//! | [`protocol`] | decoders for what servers send, without I/O |
//! | `tls` | TLS of clients and publishers, without I/O |
//! | [`marker`] | the mark in each payload |
//! | [`audit`] | whether every client got every message |
//! | [`counts`], [`failure`] | what threads count, and why clients fail |
//! | `sums`, `buckets` | measurements that add up; histograms in messages |
//! | [`machine`] | what a run costs the whole machine |
//! | [`report`] | the report of a run |
//! | [`agents`] | clients on several machines, and the coordinator that commands them |
//! | [`redact`] | what reports must not contain |
//! | `random` | random numbers by position |
//!
//! # Invariants
//!
//! * No runtime on the load path: plain threads, one epoll each.
//! * Nothing that a server sends makes a thread panic or grow without bound.
//! * A delivery's latency counts from the intended time of its publish.
//! * A failure has a reason and is counted.

mod agents;
mod assertions;
mod audit;
mod buckets;
pub mod cli;
mod clients;
mod counts;
mod failure;
mod machine;
mod marker;
pub mod plan;
mod protocol;
mod publish;
mod random;
mod redact;
pub mod report;
mod run;
mod runner;
mod streams;
mod sums;
mod template;
mod tls;
mod tokens;

pub use clients::{ClientCommand, ClientPool, ClientSet, Graph, PublishDeliveries};
pub use counts::ClientCounts;
pub use machine::environment;
pub use marker::{Mark, now_ns};
pub use protocol::http::ResponseHead;
pub use run::run;
pub use runner::Observer;
pub use streams::StreamCounters;
pub use tokens::hs256_token;
