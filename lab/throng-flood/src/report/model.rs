//! The data of a report, as it is stored in JSON.
//!
//! Times are seconds since the run's start, latencies milliseconds, sizes bytes. A field that was
//! not measured is absent, never zero.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use throng_report::chart::Points;
use throng_report::file::{Format, ReadError, to_json};
use throng_report::{Distribution, Environment};
use throng_units::format::{count, counted};

/// The format's version; it changes when a field changes its name or meaning.
pub const VERSION: u32 = 1;

/// The value of [`Environment::network`] for clients without sockets.
const TUNNEL: &str = "tunnel";

const FORMAT: Format = Format { command: "throng flood", version: VERSION };

/// The report of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The format, [`VERSION`].
    #[serde(rename = "format")]
    pub version: u32,
    /// The plan's name.
    pub name: String,
    /// What was tested.
    pub description: RunDescription,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// Why the run ended before its plan did, in one sentence.
    pub cut_short: Option<String>,
    /// The plan as it was run, without secrets.
    pub plan: serde_json::Value,
    /// The machine and its kernel settings.
    pub environment: Environment,
    /// One entry for each phase that began.
    pub phases: Vec<PhaseReport>,
    /// Totals of the whole run.
    pub total: Totals,
    /// One sample per second.
    pub series: Vec<Sample>,
    /// The outcome of each assertion.
    pub assertions: Vec<AssertionResult>,
    /// Reasons to doubt the measurements: the generator was the bottleneck, the publisher was
    /// late …
    pub warnings: Vec<String>,
    /// The agents that ran the clients; empty if this process ran them.
    pub agents: Vec<AgentReport>,
}

/// A process, usually on another machine, that ran a part of the clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentReport {
    /// The name it was started with.
    pub name: String,
    /// Host name of its machine.
    pub host: String,
    /// Clients assigned to it at the peak.
    pub clients: u64,
    /// Subscriptions that succeeded.
    pub subscribed: u64,
    /// Deliveries that it received.
    pub received: u64,
    /// Processor time used.
    pub cpu_s: f64,
    /// Proportional set size at the end.
    pub pss_bytes: Option<u64>,
    /// Its clock relative to the publisher's; absent on the publisher's machine.
    pub clock: Option<ClockReport>,
    /// Why the connection to it was lost during the run.
    pub lost: Option<String>,
}

/// The offset of an agent's clock. Its latencies are corrected by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockReport {
    /// How far it was ahead of the publisher's before the run.
    pub ahead_ms: f64,
    /// Uncertainty of the offset: half of the fastest round trip.
    pub uncertainty_ms: f64,
    /// Change of the offset during the run; absent if the agent did not answer afterwards.
    pub drift_ms: Option<f64>,
}

/// One phase of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseReport {
    /// For example `ramp to 10000`, `hold 10s`, `storm`.
    pub name: String,
    /// Start of the phase.
    pub from_s: f64,
    /// End of the phase.
    pub to_s: f64,
    /// Counts and distributions of the phase.
    pub totals: Totals,
    /// For a storm: the time until all clients were back; absent if some did not return.
    pub recovered_s: Option<f64>,
}

/// Counts and distributions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Subscribed clients at the end.
    pub active: u64,
    /// Connects that were started.
    pub attempts: u64,
    /// Subscriptions that succeeded.
    pub subscribed: u64,
    /// Clients that the server told when to come back, and that did.
    pub told: u64,
    /// Failures of clients by reason.
    pub failures: BTreeMap<String, u64>,
    /// Messages that the server accepted.
    pub published: u64,
    /// Refused and unanswered publishes by reason.
    pub publish_failures: BTreeMap<String, u64>,
    /// Publish rate of the plan, per second.
    pub publish_rate_intended: Option<f64>,
    /// Publish rate achieved, per second.
    pub publish_rate: Option<f64>,
    /// Delay of sends behind their intended time.
    pub publish_lateness: Option<Distribution>,
    /// Time from a publish request to its response.
    pub publish_answer: Option<Distribution>,
    /// Deliveries that should have happened.
    pub expected: u64,
    /// Deliveries that happened.
    pub received: u64,
    /// Bytes that clients received, TLS and handshakes included.
    pub received_bytes: u64,
    /// Expected messages that never arrived, and the server did not say so.
    pub lost: u64,
    /// Expected messages that never arrived, as the server said: a gap, or messages skipped.
    pub missed: u64,
    /// Messages delivered again.
    pub duplicated: u64,
    /// Messages delivered after a later one.
    pub reordered: u64,
    /// Deliveries per second, over the seconds that had any.
    pub delivery_rate: Option<f64>,
    /// Other messages: welcomes, notices, protocol responses.
    pub unmarked: u64,
    /// Messages of a stream that the client does not follow.
    pub stray: u64,
    /// Heartbeats: pings, pongs, comments, empty lines.
    pub heartbeats: u64,
    /// Time from the first connection attempt to the last subscription; absent with agents.
    pub connected_s: Option<f64>,
    /// Time from the start of a connection attempt to its subscription.
    pub connect: Option<Distribution>,
    /// Subscriptions per second, over the seconds that had any.
    pub connect_rate: Option<f64>,
    /// Time from a publish's intended time to each delivery.
    pub delivery: Option<Distribution>,
    /// Over all clients that follow several channels: the median age of a message when the client
    /// handled it, up to the end of publishing.
    pub reader_p50: Option<Distribution>,
    /// The same: the 99th percentile.
    pub reader_p99: Option<Distribution>,
    /// The same: the highest age.
    pub reader_max: Option<Distribution>,
    /// The same: for how long the client has missed the next message of its most stale channel, at
    /// the end of publishing; 0 for a client that has all.
    pub behind: Option<Distribution>,
    /// Over all publishes: the latency of the first delivery.
    pub first: Option<Distribution>,
    /// Over all publishes: the median latency.
    pub median: Option<Distribution>,
    /// Over all publishes: the 99th percentile.
    pub p99: Option<Distribution>,
    /// Over all publishes: the 99.9th percentile.
    pub p999: Option<Distribution>,
    /// Over all publishes: the latency of the last delivery.
    pub last: Option<Distribution>,
    /// Resources of the server; absent if its process is not known.
    pub server: Option<Cost>,
    /// Resources of the load generator.
    pub generator: Cost,
    /// Resources of the whole machine; absent if the server is elsewhere.
    pub machine: Option<MachineCost>,
    /// Growth of the kernel's memory in slabs and socket buffers, for the whole machine.
    pub kernel_bytes: Option<i64>,
    /// Packets of a tunnel that were lost or retransmitted by either side.
    pub repeated_packets: Option<u64>,
    /// TLS of the clients; absent without.
    pub tls: Option<TlsTotals>,
}

/// TLS handshakes of clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsTotals {
    /// Handshakes that succeeded. Those that failed are among the failures.
    pub handshakes: u64,
    /// Those that resumed a session.
    pub resumed: u64,
    /// Those of each version and suite.
    pub suites: BTreeMap<String, u64>,
    /// Time from the first byte of a handshake to its end.
    pub handshake: Option<Distribution>,
}

/// Resources of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Processor time in seconds.
    pub cpu_s: f64,
    /// Processor time per delivery, in microseconds.
    pub cpu_us_per_delivery: Option<f64>,
    /// Proportional set size at the end.
    pub pss_bytes: Option<u64>,
    /// Growth of memory per client; absent if there are no clients, or the process shrank.
    pub bytes_per_client: Option<f64>,
}

/// Processor time of the machine that ran both sides: of the server, of this program, and of the
/// kernel on their behalf, including kernel threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineCost {
    /// Processor time of the run: all busy time minus that of other programs.
    pub cpu_s: f64,
    /// Processor time per delivery, in microseconds; absent if noise may dominate it.
    pub cpu_us_per_delivery: Option<f64>,
    /// Busy time of all processors.
    pub busy_s: f64,
    /// Busy time of other visible programs.
    pub others_s: f64,
    /// Busy time outside this container, estimated from before the run.
    pub unseen_s: f64,
    /// Names of the busiest other programs; only in the totals of the run.
    pub others: Vec<String>,
}

/// One second of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// End of the second.
    pub at_s: f64,
    /// Clients that are connecting.
    pub connecting: u64,
    /// Clients that are subscribed.
    pub active: u64,
    /// Clients that are closed and do not return.
    pub closed: u64,
    /// Subscriptions in this second.
    pub subscribed: u64,
    /// Failures in this second.
    pub failures: u64,
    /// Messages published in this second.
    pub published: u64,
    /// Deliveries in this second.
    pub received: u64,
    /// Bytes received in this second.
    pub received_bytes: u64,
    /// Heartbeats received in this second.
    pub heartbeats: u64,
    /// Latency of the deliveries in this second.
    pub delivery: Option<Distribution>,
    /// How far clients that follow several channels are behind, over these clients.
    pub behind: Option<Distribution>,
    /// Proportional set size of the server.
    pub server_pss_bytes: Option<u64>,
    /// Processor use of the server, in cores.
    pub server_cores: Option<f64>,
    /// Proportional set size of this program.
    pub generator_pss_bytes: Option<u64>,
    /// Processor use of this program, in cores.
    pub generator_cores: f64,
    /// Processor use of the whole machine, in cores; absent if the server is elsewhere.
    pub machine_cores: Option<f64>,
    /// Kernel memory in slabs.
    pub slab_bytes: Option<u64>,
    /// Kernel memory in socket buffers.
    pub socket_buffer_bytes: Option<u64>,
}

/// The outcome of an assertion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssertionResult {
    /// The assertion as written in the plan.
    pub text: String,
    /// The measured value in the assertion's unit; absent if not measured, which fails.
    pub found: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// What a run tested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunDescription {
    /// URL that clients connect to, with the plan's `{i}`, `{stream}` and other placeholders.
    pub target: String,
    /// Name of the transport.
    pub transport: String,
    /// Name of the profile.
    pub profile: String,
    /// Number of clients at the plan's peak.
    pub clients: u64,
    /// The command line without secrets; empty if the run was not started by a command.
    pub command: String,
    /// The plan as a file for `--plan`, without secrets.
    pub plan: String,
}

impl RunDescription {
    /// Names and values for a table; empty for a run without a target.
    pub fn rows(&self) -> Vec<(String, String)> {
        if self.target.is_empty() {
            return Vec::new();
        }
        let rows = [
            ("target", self.target.clone()),
            ("transport", self.transport.clone()),
            ("profile", self.profile.clone()),
            ("clients", count(self.clients)),
            ("command", self.command.clone()),
        ];
        let known = rows.into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The description in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} over {} at {}",
            counted(self.clients, "client", "clients"),
            self.transport,
            self.target
        )
    }
}

impl Report {
    /// Reads a report that [`Report::to_json`] has written.
    pub fn read(path: &Path) -> Result<Report, ReadError> {
        FORMAT.read(path)
    }

    /// The report as indented JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// A value of each sample, with its time.
    pub(super) fn points(&self, value: impl Fn(&Sample) -> Option<f64>) -> Points {
        self.series.iter().map(|sample| (sample.at_s, value(sample))).collect()
    }

    /// Whether the clients used a tunnel instead of sockets.
    pub(super) fn is_tunnel(&self) -> bool {
        self.environment.network == TUNNEL
    }
}
