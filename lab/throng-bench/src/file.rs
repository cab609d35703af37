//! A benchmark as a file: its story, its size, its runs, and the measures that are taken.
//!
//! The files of `benchmarks/` are a part of the program; others are read from a path. An error says
//! what is wrong before anything starts: an unknown key, run, phase or measure, a missing unit.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use throng_flood::plan::Network;
use throng_report::Unit;
use throng_units::Time;
use throng_units::format::count;
use throng_units::suggest::nearest;

use crate::expression;
use crate::figures::{Catalogue, constant, figure_name};
use crate::plan::phases;
use crate::programs;

/// On the command line, all benchmarks that are not big.
pub(crate) const SMALL: &str = "small";

macro_rules! embedded {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../benchmarks/", $name, ".toml"))),)*] };
}

/// The names and texts of all benchmarks: reruns by year, then our own.
const EMBEDDED: [(&str, &str); 19] = embedded! {
    "c10k-stream" "c10k-long-poll" "long-poll-chat" "router" "friends" "websocket-chat"
    "million-sse" "two-million" "three-million" "growth" "million-default" "access" "tls"
    "million-tls" "upgrade" "drain" "storm" "durable" "cluster"
};

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
    /// Flags of the server of all runs that have none of their own.
    #[serde(default)]
    pub(crate) server: Vec<String>,
    /// Names of the runs in their order; by default the file's order.
    #[serde(default)]
    order: Vec<String>,
    runs: Vec<Run>,
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
    pub(crate) published: Option<PublishedOf>,
}

/// A published value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedOf {
    /// A number, or an expression of numbers.
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
    /// The benchmark in a text; `name` is for the command line.
    fn parse(name: &str, text: &str) -> Result<Benchmark, String> {
        let mut read: Benchmark = toml::from_str(text).map_err(|error| error.to_string())?;
        read.name = name.to_owned();
        let catalogue = Catalogue::embedded();
        let mut errors = read.errors(catalogue);
        for measure in &mut read.measures {
            errors.extend(catalogue.complete(measure).err());
        }
        if errors.is_empty() { Ok(read) } else { Err(errors.join("\n")) }
    }

    /// The runs in their order.
    pub(crate) fn runs(&self) -> Vec<&Run> {
        if self.order.is_empty() {
            return self.runs.iter().collect();
        }
        self.order.iter().filter_map(|name| self.run(name)).collect()
    }

    fn run(&self, name: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.name == *name)
    }

    /// Flags of the server of a run.
    pub(crate) fn flags<'a>(&'a self, run: &'a Run) -> &'a [String] {
        run.server.as_ref().unwrap_or(&self.server)
    }

    fn errors(&self, catalogue: &Catalogue) -> Vec<String> {
        let mut errors: Vec<String> =
            self.order.iter().filter(|name| self.run(name).is_none()).map(no_run).collect();
        for run in &self.runs {
            let program = run.program.as_deref().filter(|name| programs::find(name).is_none());
            errors.extend(program.map(|name| format!("there is no program {name:?}")));
        }
        let known = |name: &str| self.knows(catalogue, name).then(|| vec![Default::default()]);
        errors.extend(self.expressions().filter_map(|text| expression::list(text, &known).err()));
        errors
    }

    /// The expressions over what is measured.
    fn expressions(&self) -> impl Iterator<Item = &str> {
        let checks = self.checks.iter().flat_map(|check| {
            [Some(&check.value), check.min.as_ref(), check.max.as_ref()].into_iter().flatten()
        });
        let plots = self.plots.iter().flat_map(|plot| {
            plot.x.iter().chain(plot.lines.iter().map(|(_, expression)| expression))
        });
        let columns = self.tables.iter().flat_map(|table| &table.columns);
        let columns = columns.map(|(_, expression)| expression);
        let measures = self.measures.iter().map(|measure| &measure.value);
        checks.chain(plots).chain(columns).chain(measures).map(String::as_str)
    }

    /// True if a name can be looked up once everything has run.
    fn knows(&self, catalogue: &Catalogue, name: &str) -> bool {
        if ["clients", "time", "cores"].contains(&name) || constant(name).is_some() {
            return true;
        }
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        let of_run = |run: &Run| run.names().any(|name| name == first) || first == "all";
        let (runs, place): (Vec<&Run>, _) = match self.runs.iter().filter(|run| of_run(run)) {
            mut found if found.clone().next().is_some() => (found.by_ref().collect(), rest),
            _ => (self.runs.iter().collect(), name),
        };
        let (phase, measure) = place.split_once('.').unwrap_or((place, ""));
        let is_phase = |run: &Run| {
            let names = phases(&run.plan);
            ["total", "samples"].contains(&phase) || names.iter().any(|name| name == phase)
        };
        runs.iter().any(|run| {
            is_phase(run) && (phase == "samples" || catalogue.knows(measure))
                || run.program.is_some()
                || run.given.contains_key(place)
                || place == "kept_bytes" && run.keep.is_some()
                || phase == "requests" && run.requests.is_some()
                || phase == "status" && run.status
        })
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
        self.held_s(size).unwrap_or(20.0) + f64::from(self.size.rounds) * round
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
    /// The names under which its results are found.
    fn names(&self) -> impl Iterator<Item = String> {
        let name = figure_name(&self.name);
        let sides = self.beside.iter().map(move |side| format!("{name}_{side}"));
        std::iter::once(figure_name(&self.name)).chain(sides)
    }

    /// A number of the file for its program.
    pub(crate) fn given(&self, name: &str) -> Option<f64> {
        self.given.get(name).copied()
    }
}

/// All embedded benchmarks.
pub(crate) fn all() -> Vec<Benchmark> {
    let read = |(name, text)| {
        // A test reads them all.
        Benchmark::parse(name, text).unwrap_or_else(|error| unreachable!("{name}: {error}"))
    };
    EMBEDDED.into_iter().map(read).collect()
}

/// The benchmarks with these names, in the order of [`all`], then the files.
pub(crate) fn named(names: &[String]) -> Result<Vec<Benchmark>, String> {
    let (files, names): (Vec<_>, Vec<_>) = names.iter().partition(|name| is_path(name));
    let all = all();
    for name in &names {
        if *name != SMALL && all.iter().all(|benchmark| benchmark.name != **name) {
            let known = all.iter().map(|benchmark| benchmark.name.as_str());
            let hint = nearest(name, known).map_or_else(
                || "`throng bench` lists them".to_owned(),
                |name| format!("did you mean {name}?"),
            );
            return Err(format!("there is no benchmark {name:?}; {hint}"));
        }
    }
    let has = |name: &str| names.iter().any(|requested| *requested == name);
    let is_requested = |one: &Benchmark| has(&one.name) || has(SMALL) && !one.size.big;
    let mut found: Vec<_> = all.into_iter().filter(is_requested).collect();
    for path in files {
        found.push(read(Path::new(path))?);
    }
    Ok(found)
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

fn read(path: &Path) -> Result<Benchmark, String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Benchmark::parse(&name, &text).map_err(|error| format!("{}: {error}", path.display()))
}

fn no_run(name: &String) -> String {
    format!("order: there is no run {name:?}")
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
        toml::Value::String(text) => expression::figure(&text, &constant)
            .and_then(|figure| figure.value.ok_or_else(|| format!("{text:?} is no number")))
            .map_err(de::Error::custom),
        _ => Err(de::Error::custom("a value is a number or an expression")),
    }
}

/// True if there is such a unit.
pub(crate) fn is_unit(name: &str) -> bool {
    Unit::named(name).name() == name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_is_complete() {
        for benchmark in all() {
            let name = &benchmark.name;
            for text in [&benchmark.title, &benchmark.story, &benchmark.source, &benchmark.hardware]
            {
                assert!(!text.is_empty() && !text.contains('\n') && !text.contains("  "), "{name}");
            }
            assert!(!benchmark.setup.is_empty() && !benchmark.differences.is_empty(), "{name}");
            let is_ours = benchmark.source == "Throng";
            assert!((2006..=2020).contains(&benchmark.year) || is_ours, "{name}");
            assert_eq!(benchmark.url.is_none(), is_ours, "{name}");
            assert!(benchmark.size.clients > 0, "{name}");
            let keys: BTreeSet<_> = benchmark.measures.iter().map(|measure| &measure.key).collect();
            assert_eq!(keys.len(), benchmark.measures.len(), "{name}");
            let published = || benchmark.measures.iter().filter_map(|one| one.published.as_ref());
            assert_ne!(published().next().is_some(), is_ours, "{name}");
            for published in published() {
                assert!(published.value > 0.0 && published.connections > 0, "{}", published.what);
                assert!(published.what.len() > 10, "{}", published.what);
            }
            for measure in &benchmark.measures {
                let needs_direction = measure.published.is_some() && !measure.key.ends_with("rate");
                assert!(measure.better.is_some() || !needs_direction, "{name}: {}", measure.key);
            }
            let ids: BTreeSet<_> = benchmark.plots.iter().map(|plot| &plot.id).collect();
            assert_eq!(ids.len(), benchmark.plots.len(), "{name}");
        }
    }

    #[test]
    fn the_published_values_are_those_of_the_sources() {
        let all = all();
        let published = |name: &str, key: &str| {
            let benchmark = all.iter().find(|benchmark| benchmark.name == name)?;
            let measure = benchmark.measures.iter().find(|measure| measure.key == key)?;
            measure.published.as_ref().map(|published| published.value)
        };
        let kib = |number: f64| Some(number * 1024.0);
        assert_eq!(published("c10k-stream", "memory"), kib(45.0));
        assert_eq!(published("c10k-stream", "memory_hibernating"), kib(8.0));
        for (key, number) in
            [("memory_1", 10.34), ("memory_2", 7.17), ("memory_3", 6.88), ("memory_4", 6.84)]
        {
            assert_eq!(published("c10k-long-poll", key), kib(number));
        }
        assert_eq!(published("c10k-long-poll", "answer_all"), Some(100.0));
        assert_eq!(published("long-poll-chat", "span_2000"), Some(9_480.0));
        assert_eq!(published("million-sse", "response_mean"), Some(177.0));
        assert_eq!(published("two-million", "last"), Some(1_000.0));
        assert_eq!(published("three-million", "last"), Some(1_000.0));
        assert_eq!(published("websocket-chat", "last"), Some(50.0));
    }

    #[test]
    fn names_are_found_and_misspellings_get_a_hint() {
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let found = super::named(&names)?;
            Ok::<_, String>(found.into_iter().map(|found| found.name).collect::<Vec<_>>())
        };
        let both = named(&["router", "c10k-stream"]).expect("known");
        assert_eq!(both, ["c10k-stream", "router"]);
        let small = named(&["small"]).expect("known");
        let has = |name: &str| small.iter().any(|found| found == name);
        assert!(has("friends") && !has("two-million"), "{small:?}");
        let error = named(&["c10k-steam"]).expect_err("unknown");
        assert_eq!(error, "there is no benchmark \"c10k-steam\"; did you mean c10k-stream?");
        assert!(named(&["x"]).is_err_and(|error| error.ends_with("lists them")));
        assert!(named(&["./x"]).is_err_and(|error| error.starts_with("cannot read ./x")));
    }

    #[test]
    fn mistakes_in_a_file_are_told_when_it_is_read() {
        let text = EMBEDDED[0].1;
        let error = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Benchmark::parse("x", &text.replacen(from, to, 1)).expect_err(to)
        };
        assert!(error("year =", "yaer =").contains("unknown field `yaer`"));
        assert!(error("hold.memory", "held.memory").contains("there is no figure \"held.memory\""));
        assert!(error("hold.memory", "hold.memry").contains("there is no figure \"hold.memry\""));
        assert!(error("ramp.kernel", "ramp.kernel +").contains("a number or a name is missing"));
        assert!(error("unit = \"count\"", "").contains("needs a name, a unit"));
        assert!(
            error("name = \"streams\"", "name = \"x\"\nprogram = \"y\"").contains("no program")
        );
        assert!(error("server =", "order = [\"z\"]\nserver =").contains("there is no run \"z\""));
    }
}
