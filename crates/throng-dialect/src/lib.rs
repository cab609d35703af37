//! How clients are spoken to, without I/O.
//!
//! A **dialect** is how one kind of client is spoken to: how a greeting, a message, a gap and an
//! error look, and how input becomes commands. A worker knows none of them: it has the
//! [`Encoding`] of each connection, one byte that says dialect and framing, and finds everything
//! else from there.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`dialect`] | the interface of all dialects |
//! | `close_reason` | why connections are closed |
//! | [`encoding`] | dialect and framing in one byte, and the table of them |
//! | [`framing`] | frames, events and lines |
//! | [`joined`] | frames of `throng.v1` with several messages |
//! | [`paths`] | the paths of requests that subscribe |
//! | [`saying`] | what the server says beside messages |
//! | `plain`, `v1`, `sse`, `stream`, `poll`, `pusher` | the dialects |
//! | `testing` | a dialect of tests, which uses every part of the interface |
//!
//! # Invariants
//!
//! * A message is made once for each encoding that has subscribers of it.
//! * The number of an encoding is never used again: frozen state has it.

mod close_reason;
pub mod dialect;
pub mod encoding;
pub mod framing;
pub mod joined;
pub mod paths;
mod plain;
pub mod poll;
mod pusher;
pub mod saying;
mod sse;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod v1;

pub use close_reason::CloseReason;
pub use dialect::{Dialect, LateIdentity};
pub use encoding::Encoding;
pub use framing::{Framing, Out};
pub use paths::{refuse, route};
pub use saying::Saying;
