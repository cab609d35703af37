//! Commands and replies, as JSON.

use serde::{Deserialize, Serialize};

use super::counts::{WireCounts, WireDeliveries};
use crate::audit::Audit;

/// A message: its stream, and its sequence in that stream.
pub(super) type StreamSequence = (u32, u32);

/// Asks which agents there are. The version is read first, so that others can be reported.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Discovery {
    pub(super) version: u32,
    /// The version of the program.
    pub(super) program: String,
}

/// The reply of an agent to [`Discovery`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AgentInfo {
    pub(super) version: u32,
    pub(super) program: String,
    /// Identifies the process in the subject of its commands.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) host: String,
    pub(super) boot_id: String,
    /// Whether the agent takes part in another run.
    pub(super) is_busy: bool,
}

/// A command to one agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunCommand {
    /// The run. An agent serves only the coordinator of its run.
    pub(super) run: u32,
    pub(super) command: AgentCommand,
}

/// A task of an agent; each has one [`Reply`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum AgentCommand {
    /// Report its clock.
    Clock,
    /// Start a pool, which belongs to this run from now on.
    Begin(Box<BeginRun>),
    /// Update the counters of published and rejected messages. Sent before any command that
    /// depends on it.
    Update {
        published: Vec<StreamSequence>,
        refused: Vec<StreamSequence>,
        /// More of the same reading follows in the next command.
        has_more: bool,
        /// Whether publishing continues, so that the counters are behind.
        is_behind: bool,
    },
    /// The commands of `ClientPool`, here and below.
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
pub(super) struct BeginRun {
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
    Cost(AgentCost),
    Publishes {
        publishes: Vec<WireDeliveries>,
        has_more: bool,
    },
    Audit(Audit),
    /// The agent does not execute the command, for this reason.
    Refused(String),
}

/// The cost of a process since the run started.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct AgentCost {
    /// The share of time that its busiest client thread was busy; see `ClientPool::busiest`.
    pub(super) busiest: f64,
    pub(super) cpu_ns: Option<u64>,
    /// Absent in most replies, because reading it blocks the process.
    pub(super) pss_bytes: Option<u64>,
}
