//! All benchmarks: those in `benchmarks/`, which are a part of the program, and files of a path.
//!
//! An error says what is wrong before anything starts: an unknown key, run, program, phase or
//! measure, a missing unit.

use std::path::Path;

use throng_units::suggest::nearest;

use crate::expression;
use crate::figures::Catalogue;
use crate::file::{Benchmark, Run};
use crate::programs;

/// On the command line, all benchmarks that are not big.
pub(crate) const SMALL: &str = "small";

macro_rules! embedded {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../benchmarks/", $name, ".toml"))),)*]
    };
}

/// The names and texts of all benchmarks: reruns by year, then our own.
const EMBEDDED: [(&str, &str); 20] = embedded! {
    "c10k-stream" "c10k-long-poll" "long-poll-chat" "router" "friends" "websocket-chat"
    "million-sse" "two-million" "three-million" "growth" "million-default" "access" "tls"
    "million-tls" "upgrade" "drain" "storm" "durable" "cluster"
    "baseline"
};

/// All embedded benchmarks.
pub(crate) fn all() -> Vec<Benchmark> {
    let read = |(name, text)| {
        // A test reads them all.
        parse(name, text).unwrap_or_else(|error| unreachable!("{name}: {error}"))
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
    parse(&name, &text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The benchmark in a text; `name` is for the command line.
fn parse(name: &str, text: &str) -> Result<Benchmark, String> {
    let mut read: Benchmark = toml::from_str(text).map_err(|error| error.to_string())?;
    read.name = name.to_owned();
    let catalogue = Catalogue::embedded();
    let mut errors = errors(&read, catalogue);
    for measure in &mut read.measures {
        errors.extend(catalogue.complete(measure).err());
    }
    if errors.is_empty() { Ok(read) } else { Err(errors.join("\n")) }
}

/// Everything in a file that cannot be found.
fn errors(read: &Benchmark, catalogue: &Catalogue) -> Vec<String> {
    let mut errors: Vec<String> =
        read.order.iter().filter(|name| read.run(name).is_none()).map(no_run).collect();
    for run in &read.runs {
        let program = run.program.as_deref().filter(|name| programs::find(name).is_none());
        errors.extend(program.map(|name| format!("there is no program {name:?}")));
    }
    let known = |name: &str| knows(read, catalogue, name).then(|| vec![Default::default()]);
    errors.extend(expressions(read).filter_map(|text| expression::list(text, &known).err()));
    errors
}

/// The expressions over what is measured.
fn expressions(read: &Benchmark) -> impl Iterator<Item = &str> {
    let checks = read.checks.iter().flat_map(|check| {
        [Some(&check.value), check.min.as_ref(), check.max.as_ref()].into_iter().flatten()
    });
    let plots = read
        .plots
        .iter()
        .flat_map(|plot| plot.x.iter().chain(plot.lines.iter().map(|(_, expression)| expression)));
    let columns = read.tables.iter().flat_map(|table| &table.columns);
    let columns = columns.map(|(_, expression)| expression);
    let measures = read
        .measures
        .iter()
        .flat_map(|measure| [&measure.value].into_iter().chain(&measure.beside));
    checks.chain(plots).chain(columns).chain(measures).map(String::as_str)
}

/// True if a name can be looked up once everything has run.
fn knows(read: &Benchmark, catalogue: &Catalogue, name: &str) -> bool {
    if ["clients", "time", "cores"].contains(&name) || expression::constant(name).is_some() {
        return true;
    }
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    let of_run = |run: &Run| run.names().any(|name| name == first) || first == "all";
    let (runs, place): (Vec<&Run>, _) = match read.runs.iter().filter(|run| of_run(run)) {
        mut found if found.clone().next().is_some() => (found.by_ref().collect(), rest),
        _ => (read.runs.iter().collect(), name),
    };
    let (phase, measure) = place.split_once('.').unwrap_or((place, ""));
    let is_phase = |run: &Run| {
        ["total", "samples"].contains(&phase) || run.phases().iter().any(|name| name == phase)
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

fn no_run(name: &String) -> String {
    format!("order: there is no run {name:?}")
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
            parse("x", &text.replacen(from, to, 1)).expect_err(to)
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
