//! What a run has found out, as it is written to JSON; tables, CSV, the HTML page and the
//! comparison are made of it.
//!
//! Times are seconds since the run's start, latencies milliseconds, memory bytes. A field that
//! could not be measured is absent, never zero.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`file`] | reading and writing: JSON, versions, full disks |
//! | [`distribution`] | of a histogram, the [`Distribution`] |
//! | [`figures`] | numbers with their units, as people read them |
//! | [`paint`] | colours for people who look at a terminal |
//! | [`live`] | what is seen while the run goes on |
//! | [`subject`] | what was tested |
//! | [`memory`] | a server's memory, taken apart |
//! | [`agents`] | the machines that the clients were on |
//! | [`table`] | what is seen when it has ended |
//! | [`csv`] | for spreadsheets |
//! | [`chart`], [`page`] | charts, and the page around them |
//! | [`html`] | one page with charts |
//! | [`compare`] | several runs side by side |

pub mod agents;
pub mod chart;
pub mod compare;
pub mod csv;
pub mod distribution;
pub mod file;
#[cfg(test)]
mod fixture;
pub mod html;
pub mod live;
pub mod memory;
pub mod page;
pub mod subject;
pub mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Network;
pub use subject::Subject;

/// The format's version: it changes when a field changes its meaning.
pub const VERSION: u32 = 1;

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The plan's name.
    pub name: String,
    /// What was tested.
    pub subject: Subject,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// How long it took.
    pub seconds: f64,
    /// Why it ended before its plan did, in one sentence.
    pub cut_short: Option<String>,
    /// The plan, as it was run.
    pub plan: serde_json::Value,
    /// The machine and its kernel settings.
    pub environment: Environment,
    /// Each phase.
    pub phases: Vec<PhaseReport>,
    /// The whole run.
    pub total: Totals,
    /// One sample a second.
    pub series: Vec<Sample>,
    /// What was to hold.
    pub assertions: Vec<Checked>,
    /// What makes figures doubtful: the generator was the bottleneck, the publisher was late …
    pub warnings: Vec<String>,
    /// The machines (or processes) that the clients were on, if there were several.
    pub agents: Vec<Agent>,
}

/// A part of the clients, in a process of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// As it calls itself.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Clients that it was to have at most.
    pub clients: u64,
    /// Clients that became subscribed.
    pub subscribed: u64,
    /// Deliveries.
    pub received: u64,
    /// Processor time.
    pub cpu_s: f64,
    /// Memory at the end.
    pub pss_bytes: Option<u64>,
    /// Its clock against that of the publisher; absent where it is the same one.
    pub clock: Option<Clock>,
    /// Why it was lost in the middle of the run.
    pub lost: Option<String>,
}

/// The clock of another machine; latencies are corrected by what it is ahead.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clock {
    /// By so many milliseconds, before the run …
    pub ahead_ms: f64,
    /// … give or take these: half of the fastest round trip.
    pub uncertainty_ms: f64,
    /// By how much more after the run, if it could be asked then.
    pub drift_ms: Option<f64>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Kernel release.
    pub kernel: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Name of the processor.
    pub processor: String,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Hard limit of descriptors of a table.
    pub descriptors_max: u64,
    /// Kernel settings that matter, by name.
    pub sysctl: BTreeMap<String, String>,
    /// This program's version.
    pub throng: String,
    /// Whether both sides ran on this machine: then senders pay for waking readers.
    pub is_loopback: bool,
    /// What carried the clients' connections: `sockets`, `tunnel`, or nothing where no report says
    /// it.
    pub network: String,
}

impl Environment {
    /// What carried the clients' connections; reports that do not say it are from before there was
    /// a choice.
    pub fn network(&self) -> &str {
        if self.network.is_empty() { Network::Sockets.name() } else { &self.network }
    }

    /// Whether the clients had no sockets.
    pub fn is_tunnel(&self) -> bool {
        self.network() == Network::Tunnel.name()
    }
}

/// A phase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseReport {
    /// `ramp to 10000`, `hold 10s`, `storm` …
    pub name: String,
    /// When it began.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// What happened in it.
    pub totals: Totals,
    /// Of a storm: until all were back, if they were.
    pub recovered_s: Option<f64>,
}

/// Counts and distributions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Clients subscribed at the end.
    pub active: u64,
    /// Connects begun.
    pub attempts: u64,
    /// Clients that became subscribed.
    pub subscribed: u64,
    /// Failures by reason, in words.
    pub failures: BTreeMap<String, u64>,
    /// Messages published and accepted.
    pub published: u64,
    /// Publishes that were refused or not answered, by reason.
    pub publish_failures: BTreeMap<String, u64>,
    /// Messages a second that were intended, and that were sent.
    pub publish_rate_intended: Option<f64>,
    /// See above.
    pub publish_rate: Option<f64>,
    /// Sends behind their intended time, in milliseconds.
    pub publish_lateness: Option<Distribution>,
    /// From a publish's request to its answer.
    pub publish_answer: Option<Distribution>,
    /// Deliveries that were due.
    pub expected: u64,
    /// Deliveries.
    pub received: u64,
    /// Never came, and nobody said so.
    pub lost: u64,
    /// Were gone when the client came back for them, and the server told of the gap.
    pub missed: u64,
    /// Came again.
    pub duplicated: u64,
    /// Came after a later one.
    pub reordered: u64,
    /// Deliveries a second while there were some.
    pub delivery_rate: Option<f64>,
    /// Other messages received: welcomes, notices, protocol answers.
    pub unmarked: u64,
    /// Messages of a stream that the client does not follow.
    pub stray: u64,
    /// Heartbeats received: pings, pongs, comments, empty lines.
    pub heartbeats: u64,
    /// From the start of the first connect to the last client subscribed; absent if the clients
    /// were on several machines.
    pub connected_s: Option<f64>,
    /// From the start of connecting to subscribed.
    pub connect: Option<Distribution>,
    /// Subscribed a second, while there were some.
    pub connect_rate: Option<f64>,
    /// From a publish's intended time to each delivery, all together.
    pub delivery: Option<Distribution>,
    /// Per publish: its first delivery …
    pub first: Option<Distribution>,
    /// … the median one …
    pub median: Option<Distribution>,
    /// … the 99th percentile …
    pub p99: Option<Distribution>,
    /// … the 99.9th …
    pub p999: Option<Distribution>,
    /// … and the last.
    pub last: Option<Distribution>,
    /// What the server cost, if it runs here.
    pub server: Option<Cost>,
    /// What this program cost.
    pub generator: Cost,
    /// What both cost the machine, if both were on it.
    pub machine: Option<MachineCost>,
    /// Kernel memory in slabs and sockets, of the whole machine, at the end against the start.
    pub kernel_bytes: Option<i64>,
    /// Packets of a tunnel that were lost, or sent again by either side.
    pub repeated_packets: Option<u64>,
}

/// What a process cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Processor time.
    pub cpu_s: f64,
    /// For each delivery, in microseconds.
    pub cpu_us_per_delivery: Option<f64>,
    /// Proportional share of memory at the end.
    pub pss_bytes: Option<u64>,
    /// Growth for each client.
    pub bytes_per_client: Option<f64>,
}

/// What a run cost the machine that both sides were on: the processor time of the server, of this
/// program, and of the kernel for them, in its own threads too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineCost {
    /// Processor time of the run: all busy time without that of others.
    pub cpu_s: f64,
    /// For each delivery, in microseconds; absent if chance may have made a large part of it.
    pub cpu_us_per_delivery: Option<f64>,
    /// Busy time of all processors.
    pub busy_s: f64,
    /// Of that, what other programs had that can be seen …
    pub others_s: f64,
    /// … and what cannot be seen had, by what it took before the run.
    pub unseen_s: f64,
    /// The busiest of the other programs, by name; of the whole run only.
    pub others: Vec<String>,
}

/// A distribution of milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// Values.
    pub count: u64,
    /// Smallest.
    pub min: f64,
    /// Average.
    pub mean: f64,
    /// Half are below.
    pub p50: f64,
    /// 90 % are below.
    pub p90: f64,
    /// 99 % are below.
    pub p99: f64,
    /// 99.9 % are below.
    pub p999: f64,
    /// Largest.
    pub max: f64,
    /// For charts: upper edges of buckets and their counts, ascending, without empty ones.
    pub buckets: Vec<(f64, u64)>,
}

/// A second of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Clients connecting, subscribed, and closed for good.
    pub connecting: u64,
    /// See above.
    pub active: u64,
    /// See above.
    pub closed: u64,
    /// In this second: clients subscribed.
    pub subscribed: u64,
    /// Failures.
    pub failures: u64,
    /// Messages published.
    pub published: u64,
    /// Deliveries.
    pub received: u64,
    /// Bytes read.
    pub received_bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Deliveries' latency.
    pub delivery: Option<Distribution>,
    /// Memory of the server.
    pub server_pss_bytes: Option<u64>,
    /// Processor time of the server, in cores.
    pub server_cores: Option<f64>,
    /// Memory of this program.
    pub generator_pss_bytes: Option<u64>,
    /// Processor time of this program, in cores.
    pub generator_cores: f64,
    /// Processors of the machine that were busy, with whatever; if both sides are on it.
    pub machine_cores: Option<f64>,
    /// Kernel memory in slabs.
    pub slab_bytes: Option<u64>,
    /// Kernel memory of what waits in socket buffers.
    pub socket_buffer_bytes: Option<u64>,
}

/// An assertion's outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checked {
    /// As written.
    pub text: String,
    /// What was found, in the assertion's unit; absent if it could not be measured, which fails.
    pub found: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}
