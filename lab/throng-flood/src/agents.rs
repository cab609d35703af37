//! Clients on several machines: agents, and the coordinator that divides a plan among them.
//!
//! The coordinator connects to each agent over TCP. It sends commands, and agents answer each; see
//! `message`. The connection is authenticated with a shared secret, and not encrypted.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `connection` | authenticated frames with deadlines |
//! | `message` | commands and replies |
//! | [`bounds`] | the load that an agent allows |
//! | [`clock`] | the offset of another machine's clock |
//! | [`agent`] | `throng flood agent` |
//! | [`coordinator`] | finds agents, and runs a plan with them |
//! | `updates` | sends agents the counters of published messages |
//! | `clients` | the clients of all agents, for the runner |
//!
//! # Invariants
//!
//! * Client threads do not know that agents exist: an agent uses its pool as a runner would.
//! * The counters of published messages are read, sent, and acknowledged by all agents before they
//!   are read again: `clients/start.rs` relies on that.
//! * Counts are sent once. An agent that leaves a command unanswered is lost for the rest of the
//!   run, so that nothing is counted twice or in part.
//! * Deliveries are measured by the agent's clock, corrected by its offset from the publisher's.
//!   The report has the offset and its uncertainty.

use std::io::{Error, ErrorKind};
use std::time::Duration;

pub(crate) mod agent;
pub(crate) mod bounds;
mod clients;
pub(crate) mod clock;
pub(crate) mod connection;
pub(crate) mod coordinator;
mod message;
mod updates;

#[cfg(test)]
mod tests;

/// The version of the messages between agents and coordinator.
pub(crate) const VERSION: u32 = 1;

/// A side that does not take or answer a message for this long is lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Why a connection failed, in words.
fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it has closed the connection".to_owned()
        }
        ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        _ => error.to_string(),
    }
}
