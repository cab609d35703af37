//! Clients on several machines: agents, and the coordinator that deals the plan out to them.
//!
//! They meet at a NATS server: core NATS, no streams, nothing stored. The coordinator asks and
//! agents answer, never the other way round, so that an answer always belongs to a question.
//!
//! | subject | who asks | |
//! |---|---|---|
//! | `throng.flood.GROUP.call` | the coordinator, until enough have answered | who is there? |
//! | `throng.flood.GROUP.agent.ID` | the coordinator | everything else |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `message` | what is asked and answered |
//! | `counts` | tallies and histograms on their way, without loss |
//! | [`split`] | who takes which clients |
//! | [`clock`] | how much another machine's clock is ahead |
//! | `meeting` | the connection to the NATS server |
//! | [`agent`] | `throng flood agent` |
//! | [`coordinator`] | the coordinator: finds agents, and runs a plan with them |
//! | `news` | what agents are told of what is published |
//! | `crowd` | the clients of all agents, as the conductor sees them |
//!
//! # Invariants
//!
//! * Client threads see nothing of this: an agent asks its fleet as a conductor would.
//! * What is published is read from the board, told, and answered by all agents before it is read
//!   again: `clients/start.rs` relies on that.
//! * A tally is told once. An agent that leaves a question unanswered is lost for the rest of the
//!   run, so that nothing is counted twice or half.
//! * Deliveries are measured by the clock of the agent, corrected by what that is ahead of the
//!   publisher's; how far, and how sure that is, stands in the report.

pub mod agent;
pub mod clock;
pub mod coordinator;
mod counts;
mod crowd;
mod meeting;
mod message;
mod news;
pub mod split;

/// The version of what agents and coordinator say to each other.
pub const VERSION: u32 = 1;

/// Why agents and coordinator do not come together.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    /// Nobody, or no NATS server, answers there.
    #[error("there is no NATS server at {url}: {reason}")]
    NoServer {
        /// As given, without its password.
        url: String,
        /// In words.
        reason: String,
    },
    /// The NATS server did not do what it was asked.
    #[error("the NATS server at {url}: {reason}")]
    Server {
        /// As given, without its password.
        url: String,
        /// In words.
        reason: String,
    },
    /// Time ran out.
    #[error("{found} of {wanted} agents are there after {seconds} s (group {group:?}){hint}")]
    TooFew {
        /// Agents that are there.
        found: usize,
        /// Agents that were asked for.
        wanted: usize,
        /// Waited so long.
        seconds: u64,
        /// Where.
        group: String,
        /// What else there was, or nothing.
        hint: String,
    },
    /// An agent speaks another version.
    #[error(
        "the agent {agent} is of version {theirs} and this is version {ours}: run the same one on \
         all machines"
    )]
    Version {
        /// Its name.
        agent: String,
        /// What it says.
        theirs: String,
        /// What it must say.
        ours: String,
    },
    /// An agent cannot take its part.
    #[error("the agent {agent} cannot take part: {reason}")]
    Refused {
        /// Its name.
        agent: String,
        /// In words.
        reason: String,
    },
    /// The name of a group becomes part of a subject.
    #[error("{0:?} is no name of a group: letters, digits, - and _ are allowed")]
    Group(String),
    /// Stopped by the user before anything had begun.
    #[error("stopped while waiting for agents")]
    Stopped,
    /// The runtime could not be started.
    #[error("the network cannot be used: {0}")]
    Runtime(std::io::Error),
}
