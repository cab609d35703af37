//! A seeded simulation of core and worker on fake sockets.
//!
//! The real [`MemoryEngine`](throng_core::MemoryEngine) and one to three real
//! [`Worker`](throng_edge::worker::Worker)s run on sockets that block, accept partial writes and
//! reset. Clients of all transports decode the server's output on their own, and compare it with a
//! model of the contract. One seed determines every step, so that a failure replays.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`run`] | runs seeds, and reports the ones that fail |
//! | `world` | engine, workers and clients, and the steps that the seed chooses for them |
//! | `client` | a client: its requests, and its checks of the responses |
//! | `decode` | the client's side of HTTP, chunks, SSE and WebSocket |
//! | `model` | the expected logs and subscriptions |
//! | `topics` | the channels and their rules |
//! | `facts` | the logs of channels whose messages have keys, are erased or replaced |
//! | `members` | the logs of members |
//! | `stream_ids` | the ids of journals: offsets that skip, channels with different epochs |
//! | `recorder` | the engine, with a record of all calls |
//! | `fetches` | fetches of an engine that keeps its logs elsewhere |
//! | `late`, `late_answers` | an access policy that decides later; answers that come later |
//! | `heard` | what an application hears of connections and channels |
//! | `post` | the expected lengths of the worker queues |
//! | [`pipe`], [`net`] | fake sockets |
//! | `tls_end` | the clients' side of TLS, in a pipe |
//! | `control` | a fake control plane |
//! | [`stamp`], [`notes`], [`random`] | simulated time, trace and coverage, random numbers |
//!
//! # Invariants
//!
//! * The clients use none of the server's encoders or decoders, because an error in one could hide
//!   the same error in the other.
//! * The seed alone determines a run: no clock, thread or hash order has an influence.
//! * An error of the server is a value (`Err`), so that a test can expect it. Only misuse of a
//!   socket by the worker panics.

mod client;
mod control;
mod decode;
mod facts;
mod fetches;
mod heard;
mod late;
mod late_answers;
mod members;
mod model;
pub mod net;
pub mod notes;
pub mod pipe;
mod post;
pub mod random;
mod recorder;
pub mod run;
pub mod stamp;
mod stream_ids;
mod tls_end;
mod topics;
mod world;

pub use client::Tamper;

/// The result of a check: the objection is one sentence.
type Check<T = ()> = Result<T, String>;

/// Returns an objection unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($objection:tt)+) => {
        if !$condition {
            return Err(format!($($objection)+));
        }
    };
}

use ensure;
