//! A worker's connections: what each costs, what it owns, and the table that holds them all.
//!
//! | module | what it is |
//! |---|---|
//! | `id` | places in the table, which are reused, and tokens, which are not |
//! | `flags` | facts about a connection, one bit each |
//! | `outbound` | bytes that wait for a socket, beside messages |
//! | `buffers` | the limit on the memory that all connections buffer |
//! | `io` | what a connection owns only while something is unfinished |
//! | `state` | one connection |
//! | `unfinished_heads` | connections that give way to new ones |
//! | `connections` | all connections of a worker, and their places |

mod buffers;
mod connections;
mod flags;
mod id;
mod io;
mod outbound;
mod state;
mod unfinished_heads;

pub(crate) use connections::Connections;
pub(crate) use flags::Flags;
pub use id::{ConnectionId, Token};
pub(crate) use io::{Io, LongPoll, Partial};
pub(crate) use outbound::{Left, Progress};
pub use state::{Connection, State};
