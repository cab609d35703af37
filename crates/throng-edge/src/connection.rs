//! A worker's connections: what each costs, what it owns, and the table that holds them all.
//!
//! | module | what it is |
//! |---|---|
//! | `addresses` | the addresses of clients, where they are kept |
//! | `id` | places in the table, which are reused, and tokens, which are not |
//! | `flags` | facts about a connection, one bit each |
//! | `outbound` | bytes that wait for a socket, beside messages |
//! | `condemned` | the connections that end with the turn |
//! | `behind` | the connections that wait for their sockets, and since when |
//! | `buffers` | the limit on the memory that all connections buffer |
//! | `frozen` | a connection as bytes, for another process |
//! | `io` | what a connection owns only while something is unfinished |
//! | `state` | one connection |
//! | `many` | a command about many channels, which is executed in parts |
//! | `pending` | a request or command that waits for answers |
//! | `acceptances` | when connections were accepted |
//! | `side_table` | what only some connections have |
//! | `sessions` | the sessions of connections with a token, and what the tokens grant |
//! | `unacknowledged` | the frames that a client has not acknowledged |
//! | `unfinished_heads` | connections that give way to new ones |
//! | `places` | the places that connections take, and the reserve |
//! | `connections` | the table of all connections of a worker |

mod acceptances;
mod addresses;
mod behind;
mod buffers;
mod condemned;
mod connections;
mod flags;
mod frozen;
mod id;
mod io;
mod many;
mod outbound;
mod pending;
mod places;
mod sessions;
mod side_table;
mod state;
mod unacknowledged;
mod unfinished_heads;
mod user_names;

pub(crate) use connections::Connections;
pub(crate) use flags::Flags;
pub(crate) use frozen::{FrozenConnection, FrozenIo, FrozenPartial, FrozenSession};
pub use id::{ConnectionId, Token};
pub(crate) use io::{Io, LongPoll, Partial};
pub(crate) use many::{Ending, Many};
pub(crate) use outbound::{Left, Outbound, Progress};
pub(crate) use pending::{
    Answers, Asked, Awaited, FetchedParts, Input, Pending, PendingClose, Taken, earliest,
};
pub(crate) use side_table::NEVER;
pub(crate) use state::Phase;
pub use state::{Connection, State};
pub(crate) use unacknowledged::Unacknowledged;
pub(crate) use user_names::{KeptNames, KnownUser};
