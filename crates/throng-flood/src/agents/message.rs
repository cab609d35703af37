//! What is asked and answered, as JSON.

use serde::{Deserialize, Serialize};

use super::counts::{PublishCounts, TallyCounts};
use crate::audit::Audit;

/// `stream`, `sequence`.
pub(super) type Published = (u32, u32);

/// Who is there? Its version is read before anything else of it, whatever that looks like.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) version: u32,
    /// The program's.
    pub(super) program: String,
}

/// I am.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Here {
    pub(super) version: u32,
    pub(super) program: String,
    /// Of this process, in the subject on which it is asked.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) host: String,
    pub(super) boot_id: String,
    /// It takes part in another run.
    pub(super) is_busy: bool,
}

/// A question to one agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    /// Tells coordinators apart: while an agent belongs to one, it does not listen to others.
    pub(super) run: u32,
    pub(super) ask: Ask,
}

/// What the coordinator asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The agent's clock.
    Clock,
    /// To start a fleet; it belongs to this run from now on.
    Begin(Box<Begin>),
    /// These have been published; these of them were refused. Comes before what depends on it.
    Board {
        published: Vec<Published>,
        refused: Vec<Published>,
        /// What else had been published when the board was read comes with the next one.
        has_more: bool,
        /// Publishing goes on.
        is_behind: bool,
    },
    /// See `Fleet`.
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
    Tally,
    /// What this process costs.
    Cost,
    /// The deliveries of publishes that were intended until then.
    Publishes {
        until_ns: u64,
    },
    /// What did not fit into the answer to the last one.
    MorePublishes,
    /// Compares with what the board says.
    Audit,
    /// The run is over.
    End,
}

/// A part of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Begin {
    /// In TOML.
    pub(super) plan: String,
    pub(super) agent: usize,
    pub(super) agents: usize,
    /// Clients of all agents together.
    pub(super) clients: usize,
    pub(super) clock_ahead_ns: i64,
}

/// What an agent says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Clock {
        now_ns: u64,
    },
    Tally(Box<TallyCounts>),
    Cost(Cost),
    Publishes {
        publishes: Vec<PublishCounts>,
        has_more: bool,
    },
    Audit(Audit),
    /// In words.
    Refused(String),
}

/// What a process has cost since the run began.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Cost {
    /// See `Fleet::busiest`.
    pub(super) busiest: f64,
    pub(super) cpu_ns: Option<u64>,
    /// Reading it holds up the process: only now and then.
    pub(super) pss_bytes: Option<u64>,
}
