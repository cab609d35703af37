//! A seeded simulation of core and worker on fake sockets.
//!
//! The real [`MemoryEngine`](throng_core::MemoryEngine) and one to three real
//! [`Worker`](throng_edge::worker::Worker)s, on sockets that block, take half, and reset, with
//! clients of all transports that decode what they get on their own and ask a model whether it is
//! what they were promised. Everything follows from one seed, so that a failure replays.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`run`] | seeds: which, how, and what is said of one that fails |
//! | [`world`] | engine, workers and clients, and the script that the seed writes for them |
//! | [`client`] | a client: what it asks, decodes and believes |
//! | [`decode`] | the client's side of HTTP, chunks, SSE and WebSocket |
//! | [`model`] | what must be true |
//! | [`topics`] | the channels and their rules |
//! | [`recorder`] | the real engine, with a record of what is asked of it |
//! | [`post`] | the messages that wait for each worker |
//! | [`pipe`], [`net`] | fake sockets |
//! | [`control`] | a fake control plane |
//! | [`stamp`], [`notes`], [`random`] | the moment, what is remembered, chance |
//!
//! # Invariants
//!
//! * Nothing here uses the server's encoders or decoders: a mistake in one must not cancel out with
//!   that in the other.
//! * Nothing but the seed decides what happens: no clock, no thread, no hash order.
//! * What the peer gets wrong is a value (`Err`), so that a test can ask for it; only misuse of a
//!   socket by the worker panics.

pub mod client;
pub mod control;
pub mod decode;
pub mod model;
pub mod net;
pub mod notes;
pub mod pipe;
pub mod post;
pub mod random;
pub mod recorder;
pub mod run;
pub mod stamp;
pub mod topics;
pub mod world;

/// What a check comes to: the objection, in one sentence.
pub type Check<T = ()> = Result<T, String>;

/// Objects unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($objection:tt)+) => {
        if !$condition {
            return Err(format!($($objection)+));
        }
    };
}
