//! Messages between a coordinator and an agent, as JSON.
//!
//! The coordinator sends a [`Greeting`], and the agent answers with an [`AgentInfo`]. Then the
//! coordinator sends commands, and the agent answers each with a `Result`: what the command's
//! documentation says, or why the agent does not execute it.

use serde::{Deserialize, Serialize};

use crate::clients::{ClientCommand, ClientShare};

/// A message: its stream, and its sequence in that stream.
pub(super) type StreamSequence = (u32, u32);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Greeting {
    pub(super) version: u32,
    pub(super) program: String,
}

/// An agent describes itself. Fields that another version lacks are empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AgentInfo {
    pub(super) version: u32,
    pub(super) program: String,
    pub(super) name: String,
    pub(super) host: String,
    /// True if another coordinator is connected. Then the agent closes this connection.
    pub(super) is_busy: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum AgentCommand {
    /// Answered with `CLOCK_MONOTONIC` in nanoseconds.
    Clock,
    /// Start the clients' threads. Nothing connects yet.
    Begin(Box<BeginRun>),
    /// Update the counters of published and rejected messages. Sent before any command that
    /// depends on it.
    Update {
        published: Vec<StreamSequence>,
        refused: Vec<StreamSequence>,
        /// Whether publishing continues, so that the counters are behind.
        is_behind: bool,
    },
    Clients(ClientCommand),
    /// Answered with the [`ClientCounts`](crate::counts::ClientCounts) since the last time.
    Counts,
    /// Answered with an [`AgentCost`].
    Cost,
    /// Answered with the [`PublishDeliveries`](crate::clients::PublishDeliveries) of messages
    /// scheduled up to this time.
    Publishes {
        until_ns: u64,
    },
    /// Answered with an [`Audit`](crate::audit::Audit) against the counters.
    Audit,
    /// Close the clients and end their threads.
    End,
}

/// An agent's part of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BeginRun {
    pub(super) share: ClientShare,
    /// The plan in TOML.
    pub(super) plan: String,
}

/// The cost of an agent's process since its run started.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct AgentCost {
    /// The share of time that its busiest client thread was busy; see `ClientPool::busiest`.
    pub(super) busiest: f64,
    pub(super) cpu_s: Option<f64>,
    /// Absent in most replies, because reading it blocks the process.
    pub(super) pss_bytes: Option<u64>,
}
