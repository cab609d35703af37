//! A benchmark as a file: its story, its size, its runs, and the measures that are taken.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};
use throng_flood::plan::Network;
use throng_report::Unit;
use throng_units::Time;
use throng_units::format::count;

use crate::expression;

/// A benchmark.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Benchmark {
    /// Name on the command line: the file's.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) title: String,
    /// The original and its merit: two or three sentences.
    pub(crate) story: String,
    /// Author and title of the original.
    pub(crate) source: String,
    /// URL of the original.
    pub(crate) url: Option<String>,
    pub(crate) year: u16,
    /// Hardware of the original.
    pub(crate) hardware: String,
    /// How this rerun works.
    pub(crate) setup: String,
    /// How this rerun differs from the original, one sentence each.
    pub(crate) differences: Vec<String>,
    pub(crate) size: Scope,
    /// Numbers of programs and expressions, by name; `--set` changes them.
    #[serde(default)]
    pub(crate) numbers: BTreeMap<String, f64>,
    /// The name of the values that measures stand beside, such as `raw loop`.
    pub(crate) beside: Option<String>,
    /// How to read the measures, one remark each.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// Flags of the server of all runs that have none of their own.
    #[serde(default)]
    pub(crate) server: Vec<String>,
    /// Names of the runs in their order; by default the file's order.
    #[serde(default)]
    pub(crate) order: Vec<String>,
    pub(crate) runs: Vec<Run>,
    pub(crate) measures: Vec<Measure>,
    #[serde(default)]
    pub(crate) checks: Vec<Check>,
    #[serde(default)]
    pub(crate) tables: Vec<TableOf>,
    #[serde(default)]
    pub(crate) plots: Vec<PlotOf>,
}

/// The default size, and what it needs from the machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scope {
    /// Peak number of clients.
    pub(crate) clients: usize,
    /// How long the clients are held; absent if `--time` does not apply.
    #[serde(default, deserialize_with = "optional")]
    time: Option<Time>,
    /// Runs only if named.
    #[serde(default)]
    pub(crate) big: bool,
    /// Messages go to all clients at once and fill socket buffers.
    #[serde(default)]
    pub(crate) broadcasts: bool,
    /// How many times all clients connect.
    #[serde(default = "one")]
    rounds: u32,
    /// How many times the runs are made; every other time in the opposite order.
    #[serde(default = "one")]
    pub(crate) repeats: u32,
    #[serde(default = "sockets", deserialize_with = "parsed")]
    pub(crate) network: Network,
    /// Starts nats-servers.
    #[serde(default)]
    pub(crate) nats: bool,
}

/// The size of one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Peak number of clients.
    pub(crate) connections: usize,
    /// How long the clients are held, if `--time` applies.
    pub(crate) time: Duration,
}

/// A server with a load, or a program with both.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Run {
    pub(crate) name: String,
    /// A program of [`programs`], for a run that no plan can describe.
    pub(crate) program: Option<String>,
    /// Expression of the number of clients; by default all.
    pub(crate) clients: Option<String>,
    /// Numbers of clients, as parts of the default size: a server and a load for each.
    pub(crate) steps: Vec<usize>,
    /// Flags of the server; by default the benchmark's.
    pub(crate) server: Option<Vec<String>>,
    /// Settings of the server, as the text of a file.
    pub(crate) settings: String,
    /// The tokens that clients show and the server checks.
    pub(crate) tokens: Option<Algorithm>,
    pub(crate) tls: bool,
    /// The server is the raw loop.
    pub(crate) raw: bool,
    /// It is not repeated.
    pub(crate) once: bool,
    /// It publishes as fast as the server takes it: a late publisher is no reason for a warning.
    pub(crate) saturates: bool,
    /// The servers that get the load in turn: `memory`, `one` or `three` nats-servers.
    pub(crate) beside: Vec<String>,
    /// Publishes a message to the inbox of each client's user before the load.
    pub(crate) fill: bool,
    /// Number of channels of friends that the server keeps for each client's user.
    pub(crate) keep: Option<u32>,
    /// Requests beside the load.
    pub(crate) requests: Option<RequestsOf>,
    /// Reads the server's status page during the last phase.
    pub(crate) status: bool,
    /// Numbers for the programs and for tables.
    pub(crate) given: BTreeMap<String, f64>,
    /// A plan of `throng flood`, with expressions.
    pub(crate) plan: toml::Table,
}

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Algorithm {
    /// With a secret that the server has as well.
    Hs256,
    /// With a private key, whose public key the server has.
    Es256,
}

/// Plain requests beside the load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RequestsOf {
    /// The paths, in turn.
    pub(crate) paths: Vec<String>,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Names of the phases.
    pub(crate) during: Vec<String>,
    /// Each request has a connection of its own.
    #[serde(default)]
    pub(crate) reconnect: bool,
}

/// A measure of a benchmark. Its row of the [`Catalogue`], which is named by the end of its value,
/// fills in the rest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Measure {
    /// Expression of the value.
    pub(crate) value: String,
    /// Key in JSON; by default the end of the value.
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) unit: String,
    /// The better direction: `less`, `more` or none.
    pub(crate) better: Option<String>,
    /// The value is per connection, and so comparable between sizes.
    #[serde(default)]
    pub(crate) per_connection: bool,
    pub(crate) published: Option<Published>,
    /// Expression of the value that it stands beside.
    pub(crate) beside: Option<String>,
    pub(crate) goal: Option<Goal>,
}

/// A bound that a measure is meant to keep; unlike that of a check, it fails nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    AtMost(f64),
    /// Of the ratio to the value beside it.
    RatioAtLeast(f64),
    RatioAtMost(f64),
}

/// A published value, in a file and in results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    /// A number in the measure's unit; in a file, it may be an expression of numbers.
    #[serde(deserialize_with = "number")]
    pub(crate) value: f64,
    /// Number of connections of the original.
    pub(crate) connections: usize,
    /// The original's exact figure, in words.
    pub(crate) what: String,
}

/// Bounds that a value has to keep; an absent value keeps them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Check {
    pub(crate) value: String,
    pub(crate) min: Option<String>,
    pub(crate) max: Option<String>,
    /// The name of the value in the reason of a failure.
    pub(crate) name: String,
}

/// A table: a row for each element of its columns' lists.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableOf {
    pub(crate) title: String,
    /// Heading and expression of each column.
    pub(crate) columns: Vec<(String, String)>,
}

/// A plot of lists.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PlotOf {
    pub(crate) id: String,
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) note: String,
    pub(crate) unit: String,
    /// Expression of the horizontal axis; by default the seconds of the load.
    pub(crate) x: Option<String>,
    /// The vertical axis is logarithmic.
    #[serde(default)]
    pub(crate) log: bool,
    #[serde(default)]
    pub(crate) log_x: bool,
    /// Name and expression of each line.
    pub(crate) lines: Vec<(String, String)>,
    /// Name and points of a line of published values.
    pub(crate) published: Option<(String, Vec<(f64, f64)>)>,
}

impl Benchmark {
    /// The runs in their order.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        if self.order.is_empty() {
            return self.runs.iter().collect();
        }
        self.order.iter().filter_map(|name| self.run(name)).collect()
    }

    /// The run of this name.
    pub(crate) fn run(&self, name: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.name == *name)
    }

    /// Flags of the server of a run.
    pub(crate) fn flags<'a>(&'a self, run: &'a Run) -> &'a [String] {
        run.server.as_ref().unwrap_or(&self.server)
    }

    /// Changes a number.
    pub(crate) fn set(&mut self, name: &str, number: f64) -> Result<(), String> {
        let given = self.runs.iter_mut().flat_map(|run| run.given.get_mut(name));
        let found: Vec<_> = self.numbers.get_mut(name).into_iter().chain(given).collect();
        if found.is_empty() {
            return Err(format!("{} has no number {name:?}", self.name));
        }
        found.into_iter().for_each(|found| *found = number);
        Ok(())
    }

    /// The default size with overrides from the command line.
    pub(crate) fn sized(&self, connections: Option<usize>, time: Option<Duration>) -> Size {
        let default = self.size.time.map_or(Duration::ZERO, |time| time.0);
        Size {
            connections: connections.unwrap_or(self.size.clients),
            time: time.unwrap_or(default),
        }
    }

    /// How long the clients of an execution are held, in seconds; `None` if `--time` does not
    /// apply.
    pub(crate) fn held_s(&self, size: &Size) -> Option<f64> {
        self.size.time.map(|_| size.time.as_secs_f64())
    }

    /// Rough duration at a size, in seconds.
    pub(crate) fn seconds(&self, size: &Size) -> f64 {
        /// Rate of connecting and of closing.
        const CONNECTS_PER_S: f64 = 15_000.0;
        /// Starting, stopping, and waiting for outstanding messages.
        const OVERHEAD_S: f64 = 5.0;
        let round = OVERHEAD_S + 2.0 * size.connections as f64 / CONNECTS_PER_S;
        let once = self.held_s(size).unwrap_or(20.0) + f64::from(self.size.rounds) * round;
        f64::from(self.size.repeats) * once
    }

    /// Ends of each connection in the kernel of this machine.
    pub(crate) fn kernel_ends(&self) -> usize {
        match self.size.network {
            Network::Sockets => 2,
            Network::Tunnel => 1,
        }
    }
}

impl Size {
    /// The size as text.
    pub(crate) fn text(&self) -> String {
        format!("{} connections", count(self.connections as u64))
    }
}

impl Run {
    /// The names of its phases.
    pub(crate) fn phases(&self) -> Vec<String> {
        let name = |phase: &toml::Value| {
            let name = phase.get("name").or(phase.get("do")).and_then(toml::Value::as_str);
            name.unwrap_or_default().to_owned()
        };
        let phases = self.plan.get("phases").and_then(toml::Value::as_array);
        phases.into_iter().flatten().map(name).collect()
    }

    /// The names under which its results are found.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let name = figure_name(&self.name);
        let sides = self.beside.iter().map(move |side| format!("{name}_{side}"));
        std::iter::once(figure_name(&self.name)).chain(sides)
    }

    /// True if `part` is its name, or words of it.
    pub(crate) fn is(&self, part: &str) -> bool {
        format!("-{}-", self.name).contains(&format!("-{part}-"))
    }

    /// A number of the file for its program.
    pub(crate) fn given(&self, name: &str) -> Option<f64> {
        self.given.get(name).copied()
    }
}

fn one() -> u32 {
    1
}

fn sockets() -> Network {
    Network::Sockets
}

fn parsed<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(input)?.parse().map_err(de::Error::custom)
}

fn optional<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Time>, D::Error> {
    parsed(input).map(Some)
}

fn number<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    match toml::Value::deserialize(input)? {
        toml::Value::Integer(number) => Ok(number as f64),
        toml::Value::Float(number) => Ok(number),
        toml::Value::String(text) => expression::figure(&text, &expression::constant)
            .and_then(|figure| figure.value.ok_or_else(|| format!("{text:?} is no number")))
            .map_err(de::Error::custom),
        _ => Err(de::Error::custom("a value is a number or an expression")),
    }
}

/// The name of a run in expressions, where `-` is an operator.
pub(crate) fn figure_name(run: &str) -> String {
    run.replace('-', "_")
}

/// True if there is such a unit.
pub(crate) fn is_unit(name: &str) -> bool {
    Unit::named(name).is_some()
}
