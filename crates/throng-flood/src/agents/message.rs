//! Commands and replies, as JSON.

use serde::{Deserialize, Serialize};

use super::counts::{WireCounts, WireDeliveries};
use crate::audit::Audit;

/// Stream and sequence.
pub(super) type Published = (u32, u32);

/// Asks which agents are there. The version is read first, whatever the rest looks like.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Discovery {
    pub(super) version: u32,
    /// The version of the program.
    pub(super) program: String,
}

/// The reply of an agent that is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AgentInfo {
    pub(super) version: u32,
    pub(super) program: String,
    /// Identifies the process in the subject of its commands.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) host: String,
    pub(super) boot_id: String,
    /// Whether it takes part in a run already.
    pub(super) is_busy: bool,
}

/// A command to one agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentCommand {
    /// The run. An agent serves only the coordinator of its run.
    pub(super) run: u32,
    pub(super) command: Command,
}

/// What an agent is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Command {
    /// Report its clock.
    Clock,
    /// Start a pool, which belongs to this run from now on.
    Begin(Box<Begin>),
    /// Update the counters of published and rejected messages. Sent before any command that
    /// depends on it.
    Update {
        published: Vec<Published>,
        refused: Vec<Published>,
        /// More of the same reading follows in the next command.
        has_more: bool,
        /// Publishing continues.
        is_behind: bool,
    },
    /// See `ClientPool`.
    Ramp {
        to: usize,
        rate: Option<f64>,
        in_flight: usize,
    },
    Churn {
        rate: f64,
    },
    Storm {
        in_flight: usize,
    },
    Slow {
        share: f64,
        is_slow: bool,
    },
    /// Report the counts since the last time.
    Counts,
    /// Report the cost of its process.
    Cost,
    /// Report the deliveries of messages scheduled up to this time.
    Publishes {
        until_ns: u64,
    },
    /// Report those that did not fit into the last reply.
    MorePublishes,
    /// Audit against the counters.
    Audit,
    /// End the run.
    End,
}

/// An agent's part of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Begin {
    /// The plan in TOML.
    pub(super) plan: String,
    pub(super) agent: usize,
    pub(super) agents: usize,
    /// Clients of all agents together.
    pub(super) clients: usize,
    pub(super) clock_ahead_ns: i64,
}

/// The reply of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Clock {
        now_ns: u64,
    },
    Counts(Box<WireCounts>),
    Cost(Cost),
    Publishes {
        publishes: Vec<WireDeliveries>,
        has_more: bool,
    },
    Audit(Audit),
    /// The reason.
    Refused(String),
}

/// The cost of a process since the run started.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Cost {
    /// See `ClientPool::busiest`.
    pub(super) busiest: f64,
    pub(super) cpu_ns: Option<u64>,
    /// Only sometimes, because reading it blocks the process.
    pub(super) pss_bytes: Option<u64>,
}
