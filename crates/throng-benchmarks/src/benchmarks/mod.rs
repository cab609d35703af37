//! All benchmarks, a file each; `broadcast` is what two of them share.

mod broadcast;
mod c10k_long_poll;
mod c10k_stream;
mod friends;
mod growth;
mod long_poll_chat;
mod million_default;
mod million_sse;
mod router;
mod three_million;
mod two_million;
mod websocket_chat;

use crate::benchmark::Benchmark;

/// Stands for all that are not big, on the command line.
pub const SMALL: &str = "small";

/// From the first to the largest; the last two are of our own.
pub static ALL: [&Benchmark; 11] = [
    &c10k_stream::EXPERIMENT,
    &c10k_long_poll::EXPERIMENT,
    &long_poll_chat::EXPERIMENT,
    &router::EXPERIMENT,
    &friends::EXPERIMENT,
    &websocket_chat::EXPERIMENT,
    &million_sse::EXPERIMENT,
    &two_million::EXPERIMENT,
    &three_million::EXPERIMENT,
    &growth::EXPERIMENT,
    &million_default::EXPERIMENT,
];

/// Those of these names, in the order of [`ALL`]; [`SMALL`] stands for several.
pub fn named(names: &[String]) -> Result<Vec<&'static Benchmark>, String> {
    for name in names {
        if name != SMALL && ALL.iter().all(|benchmark| benchmark.name != name) {
            return Err(unknown(name));
        }
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let wanted =
        |benchmark: &&&Benchmark| has(benchmark.name) || has(SMALL) && !benchmark.scope.is_big;
    Ok(ALL.iter().filter(wanted).copied().collect())
}

fn unknown(name: &str) -> String {
    /// A name that is less alike than this is no slip of the fingers.
    const ALIKE_MIN: f64 = 0.7;
    let alike = ALL
        .iter()
        .map(|benchmark| (strsim::jaro_winkler(name, benchmark.name), benchmark.name))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(alike, _)| *alike >= ALIKE_MIN);
    let hint = alike.map_or_else(
        || "`throng bench` lists them".to_owned(),
        |(_, name)| format!("did you mean {name}?"),
    );
    format!("there is no benchmark {name:?}; {hint}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use throng_report::compare::Better;

    #[test]
    fn every_benchmark_is_told_whole() {
        for benchmark in ALL {
            let name = benchmark.name;
            for text in [benchmark.title, benchmark.story, benchmark.source, benchmark.hardware] {
                assert!(!text.is_empty(), "{name}");
            }
            assert!(!benchmark.setup.is_empty() && !benchmark.differences.is_empty(), "{name}");
            let is_ours =
                [growth::EXPERIMENT.name, million_default::EXPERIMENT.name].contains(&name);
            assert!((2006..=2020).contains(&benchmark.year) || is_ours, "{name}");
            assert!(benchmark.scope.size.connections > 0, "{name}");
            let keys: BTreeSet<_> = benchmark.figures.iter().map(|figure| figure.key).collect();
            assert_eq!(keys.len(), benchmark.figures.len(), "{name}");
            let is_published = benchmark.figures.iter().any(|figure| figure.published.is_some());
            assert_ne!(is_published, is_ours, "{name}");
            for figure in benchmark.figures {
                let Some(published) = figure.published else { continue };
                assert!(published.value > 0.0 && published.connections > 0, "{}", figure.key);
                assert!(published.what.len() > 10, "{}", figure.key);
                assert!(figure.better != Better::Neither || figure.key.ends_with("rate"));
            }
        }
        let names: BTreeSet<_> = ALL.iter().map(|benchmark| benchmark.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn the_published_figures_are_those_of_the_sources() {
        let published = |name: &str, key: &str| {
            let benchmark = ALL.iter().find(|benchmark| benchmark.name == name);
            benchmark.and_then(|found| found.figure(key)?.published).map(|found| found.value)
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
    fn names_are_found_and_slips_are_told() {
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            super::named(&names).map(|found| found.iter().map(|each| each.name).collect::<Vec<_>>())
        };
        assert_eq!(named(&["router", "c10k-stream"]), Ok(vec!["c10k-stream", "router"]));
        let small = named(&["small"]).expect("known");
        assert!(small.contains(&"friends") && !small.contains(&"two-million"), "{small:?}");
        let error = named(&["c10k-steam"]).expect_err("unknown");
        assert_eq!(error, "there is no benchmark \"c10k-steam\"; did you mean c10k-stream?");
        assert!(named(&["x"]).is_err_and(|error| error.ends_with("lists them")));
    }
}
