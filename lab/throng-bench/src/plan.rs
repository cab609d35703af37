//! The plan of a run: the file's, with its expressions evaluated and the server filled in.
//!
//! A text that begins with `=` is an expression of `clients`, `time` (in seconds), `whole` (the
//! default number of clients), `tables` (the descriptor tables that the clients need) and the
//! benchmark's `numbers`. What a plan leaves out: `ramp` goes to all clients, a thousand
//! attempts at a time; `hold` takes `time`; a `publish` with a count spreads its messages over the
//! phase. A phase may have a `name`; by default, it is what the phase does. URLs that begin with
//! `/` are paths of the server.

use std::time::Duration;

use throng_flood::plan::Network;
use throng_host::environment::raise_descriptors;
use throng_units::Time;
use toml::{Table, Value};

use crate::expression::{self, Figure};
use crate::file::{Benchmark, Run, Size};

/// Concurrent connection attempts: few enough for a listen queue of 4096.
pub(crate) const IN_FLIGHT: usize = 1_000;

/// Avoids a division by zero.
const SECONDS_MIN: f64 = 0.1;

/// The servers that get a load.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    /// Base URL, without a trailing slash.
    pub(crate) url: String,
    /// Host and port of further nodes.
    pub(crate) nodes: Vec<String>,
    /// Host and port of the servers that clients come back to, if not to their own.
    pub(crate) failover: Vec<String>,
    /// The processes whose resources are measured.
    pub(crate) processes: Vec<u32>,
    /// Whether connections and publishes may fail, since the run ends what they need: clients come
    /// back, and lost messages are faults all the same.
    pub(crate) may_fail: bool,
}

/// A number of a file, whose names are those of the module's documentation.
pub(crate) fn number(text: &str, benchmark: &Benchmark, size: Size) -> Result<f64, String> {
    let names = |name: &str| {
        let value = match name {
            "clients" => size.connections as f64,
            "time" => size.time.as_secs_f64(),
            "whole" => benchmark.size.clients as f64,
            "tables" => (size.connections as f64 / per_table()).ceil(),
            _ => *benchmark.numbers.get(name)?,
        };
        Some(vec![Figure::of(Some(value), 0)])
    };
    let value = expression::figure(text, &names)?.value;
    value.ok_or_else(|| format!("{text:?} has no value"))
}

/// The connections that one descriptor table of this machine can have.
fn per_table() -> f64 {
    /// Standard streams, pipes, listeners, epoll.
    const APART: u64 = 128;
    raise_descriptors(0).saturating_sub(APART).max(1) as f64
}

/// The number of clients of a run.
pub(crate) fn clients(benchmark: &Benchmark, run: &Run, size: Size) -> Result<usize, String> {
    let own = run.clients.as_deref().map(|text| number(text, benchmark, size)).transpose()?;
    Ok(own.map_or(size.connections, |clients| clients as usize))
}

/// The text of the plan of a run. The files of keys that it names are in the server's directory.
pub(crate) fn text(
    benchmark: &Benchmark,
    run: &Run,
    size: Size,
    target: &Target,
) -> Result<String, String> {
    let number = |text: &str| number(text, benchmark, size);
    let mut plan = Value::Table(run.plan.clone());
    evaluate(&mut plan, &number)?;
    let Value::Table(mut plan) = plan else { return Ok(String::new()) };
    for phase in plan.get_mut("phases").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(phase) = phase.as_table_mut() {
            complete(phase, size);
        }
    }
    plan.insert("name".to_owned(), benchmark.name.clone().into());
    if benchmark.size.network == Network::Tunnel {
        plan.insert("network".to_owned(), "tunnel".into());
    }
    if target.may_fail || !target.failover.is_empty() {
        plan.insert("keep".to_owned(), true.into());
    }
    let processes: Vec<_> = target.processes.iter().map(u32::to_string).collect();
    if !processes.is_empty() {
        plan.insert("server-pid".to_owned(), processes.join(",").into());
    }
    let of_target = table(&mut plan, "target");
    let path = of_target.get("url").and_then(Value::as_str).unwrap_or_default();
    of_target.insert("url".to_owned(), format!("{}{path}", target.url).into());
    if run.tls {
        of_target.insert("insecure".to_owned(), true.into());
    }
    for (key, addresses) in [("nodes", &target.nodes), ("failover", &target.failover)] {
        if !addresses.is_empty() {
            of_target.insert(key.to_owned(), addresses.clone().into());
        }
    }
    if let Some(algorithm) = run.tokens {
        let (option, file) = algorithm.option();
        table(&mut plan, "tokens").insert(option.to_owned(), file.into());
    }
    let publish = plan.get_mut("publish").and_then(Value::as_table_mut);
    if let Some(Value::String(path)) = publish.and_then(|publish| publish.get_mut("url")) {
        path.insert_str(0, &target.url);
    }
    toml::to_string(&plan).map_err(|error| error.to_string())
}

/// The table of a plan, which is made if it is not there.
fn table<'a>(plan: &'a mut Table, name: &str) -> &'a mut Table {
    let made = plan.entry(name).or_insert_with(|| Table::new().into());
    if !made.is_table() {
        *made = Table::new().into();
    }
    made.as_table_mut().unwrap_or_else(|| unreachable!("it is a table now"))
}

/// Replaces expressions by their numbers.
fn evaluate(value: &mut Value, number: &dyn Fn(&str) -> Result<f64, String>) -> Result<(), String> {
    match value {
        Value::String(text) => {
            if let Some(text) = text.strip_prefix('=') {
                *value = shown(number(text)?);
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| evaluate(item, number)),
        Value::Table(table) => table.iter_mut().try_for_each(|(_, item)| evaluate(item, number)),
        _ => Ok(()),
    }
}

fn shown(number: f64) -> Value {
    if number.fract() == 0.0 { (number as i64).into() } else { number.into() }
}

/// Fills in what a phase leaves out.
fn complete(phase: &mut Table, size: Size) {
    phase.remove("name");
    let kind = phase.get("do").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind == "ramp" {
        let to = phase.entry("to").or_insert((size.connections as i64).into());
        let to = to.as_integer().unwrap_or_default().max(1);
        phase.insert("to".to_owned(), to.into());
        phase.entry("in-flight").or_insert((IN_FLIGHT as i64).min(to).into());
    } else if kind == "hold" {
        phase.entry("time").or_insert(shown(size.time.as_secs_f64()));
    }
    let seconds = phase.get("time").and_then(seconds);
    if let (Some(seconds), Some(publish)) = (seconds, phase.get_mut("publish")) {
        let count = publish.get("count").and_then(Value::as_integer);
        if let (Some(publish), Some(count)) = (publish.as_table_mut(), count) {
            publish.entry("rate").or_insert((count as f64 / seconds.max(SECONDS_MIN)).into());
        }
    }
    for key in ["time", "timeout"] {
        if let Some(seconds) = phase.get(key).and_then(seconds_of_number) {
            let time = Time(Duration::from_millis((seconds * 1e3).round() as u64));
            phase.insert(key.to_owned(), time.to_string().into());
        }
    }
}

/// The seconds of a time, which is a number of seconds or a text with a unit.
fn seconds(time: &Value) -> Option<f64> {
    let text = |text: &str| text.parse::<Time>().ok();
    seconds_of_number(time).or_else(|| Some(text(time.as_str()?)?.0.as_secs_f64()))
}

fn seconds_of_number(time: &Value) -> Option<f64> {
    time.as_float().or(time.as_integer().map(|seconds| seconds as f64))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use throng_flood::plan::{Phase, Plan};

    use super::*;
    use crate::benchmarks::all;

    fn plan(name: &str, connections: usize, seconds: u64) -> Plan {
        let all = all();
        let benchmark = all.iter().find(|benchmark| benchmark.name == name).expect("known");
        let size = Size { connections, time: Duration::from_secs(seconds) };
        let target = Target { url: "http://127.0.0.1:1".to_owned(), ..Target::default() };
        let text = text(benchmark, benchmark.runs()[0], size, &target).expect("a plan");
        Plan::from_toml(Path::new("x"), text).expect("a plan")
    }

    #[test]
    fn steps_are_parts_of_the_clients() {
        let phases = plan("websocket-chat", 200, 2).phases;
        let ramps = phases.iter().filter_map(|phase| match phase {
            Phase::Ramp { to, in_flight, .. } => Some((*to, *in_flight)),
            _ => None,
        });
        assert_eq!(ramps.collect::<Vec<_>>(), [(46, 46), (100, 100), (150, 150), (200, 200)]);
        assert!(plan("websocket-chat", 1, 2).phases.contains(&phases_of_one()));
    }

    fn phases_of_one() -> Phase {
        Phase::Ramp { to: 1, rate: None, in_flight: 1 }
    }

    #[test]
    fn numbers_of_a_file_and_of_the_machine_have_names() {
        let all = all();
        let baseline = all.iter().find(|benchmark| benchmark.name == "baseline").expect("known");
        let size = Size { connections: per_table() as usize + 1, time: Duration::ZERO };
        assert_eq!(number("tables", baseline, size), Ok(2.0));
        assert_eq!(number("senders * 2", baseline, size), Ok(4.0));
        assert!(number("sender", baseline, size).is_err());
    }

    #[test]
    fn messages_of_the_growth_do_not_overlap() {
        let held = |connections, seconds| match &plan("growth", connections, seconds).phases[1] {
            Phase::Hold { time, publish: Some(publish) } => (*time, publish.count, publish.rate),
            phase => panic!("{phase:?}"),
        };
        assert_eq!(held(1_000_000, 45), (Duration::from_secs(40), Some(1), 0.025));
        assert_eq!(held(1_000, 45), (Duration::from_secs(10), Some(40), 4.0));
        assert_eq!(held(1_000_000, 2), (Duration::from_secs(2), Some(1), 0.5));
    }
}
