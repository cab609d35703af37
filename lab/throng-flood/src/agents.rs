//! Clients on several machines: agents, and the coordinator that divides a plan among them.
//!
//! They communicate through a NATS server: core NATS, no streams, nothing stored. The coordinator
//! sends commands and agents reply, never the other way round, so every message belongs to a
//! command.
//!
//! | subject | sent by | |
//! |---|---|---|
//! | `throng.flood.GROUP.call` | the coordinator, until enough agents have replied | asks which
//! agents there are |
//! | `throng.flood.GROUP.agent.ID` | the coordinator | all commands to the agent `ID` |
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `message` | commands and replies |
//! | `counts` | counts and histograms in messages, without loss |
//! | [`split`] | which agent has which clients |
//! | [`clock`] | the offset of another machine's clock |
//! | `nats` | the connection to the NATS server |
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

pub(crate) mod agent;
mod clients;
pub(crate) mod clock;
pub(crate) mod coordinator;
mod counts;
mod message;
mod nats;
pub(crate) mod split;
mod updates;

/// The version of the messages between agents and coordinator.
pub(crate) const VERSION: u32 = 2;

/// Why agents and coordinator cannot work together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentsError {
    /// No NATS server answers at the URL.
    #[error("there is no NATS server at {url}: {reason}")]
    NoServer {
        /// The URL without its password.
        url: String,
        /// Why the connection failed.
        reason: String,
    },
    /// The NATS server reported an error.
    #[error("the NATS server at {url}: {reason}")]
    Server {
        /// The URL without its password.
        url: String,
        /// The error that it reported.
        reason: String,
    },
    /// Not enough agents have replied in time.
    #[error("{found} of {wanted} agents are there after {seconds} s (group {group:?}){hint}")]
    TooFew {
        /// Agents that have replied.
        found: usize,
        /// Agents that were asked for.
        wanted: usize,
        /// How long the coordinator has waited.
        seconds: u64,
        /// The group that was called.
        group: String,
        /// What may help; may be empty.
        hint: String,
    },
    /// An agent has another version.
    #[error(
        "the agent {agent} is of version {theirs} and this is version {ours}: run the same one on \
         all machines"
    )]
    Version {
        /// The name of the agent.
        agent: String,
        /// The version of the agent.
        theirs: String,
        /// The version of the coordinator.
        ours: String,
    },
    /// An agent refused to take part.
    #[error("the agent {agent} cannot take part: {reason}")]
    Refused {
        /// The name of the agent.
        agent: String,
        /// Why the agent refused.
        reason: String,
    },
    /// A group's name must be usable in a NATS subject.
    #[error("{0:?} is no name of a group: letters, digits, - and _ are allowed")]
    Group(String),
    /// The user has stopped the coordinator before the run.
    #[error("stopped while waiting for agents")]
    Stopped,
    /// The runtime cannot be started.
    #[error("the network cannot be used: {0}")]
    Runtime(std::io::Error),
}
