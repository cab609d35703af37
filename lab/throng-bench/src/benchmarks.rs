//! All benchmarks, one per file; `broadcast` is shared by some of them.

mod access;
mod broadcast;
mod c10k_long_poll;
mod c10k_stream;
pub(crate) mod cluster;
mod drain;
mod durable;
mod friends;
mod growth;
mod long_poll_chat;
mod million_default;
mod million_sse;
mod million_tls;
mod router;
mod storm;
mod three_million;
mod tls;
mod two_million;
mod upgrade;
mod users;
mod values;
mod websocket_chat;

use crate::context::Benchmark;

/// On the command line, all benchmarks that are not big.
pub(crate) const SMALL: &str = "small";

/// All benchmarks: reruns by year, then our own.
pub(crate) static ALL: [&Benchmark; 19] = [
    &c10k_stream::BENCHMARK,
    &c10k_long_poll::BENCHMARK,
    &long_poll_chat::BENCHMARK,
    &router::BENCHMARK,
    &friends::BENCHMARK,
    &websocket_chat::BENCHMARK,
    &million_sse::BENCHMARK,
    &two_million::BENCHMARK,
    &three_million::BENCHMARK,
    &growth::BENCHMARK,
    &million_default::BENCHMARK,
    &access::BENCHMARK,
    &tls::BENCHMARK,
    &million_tls::BENCHMARK,
    &upgrade::BENCHMARK,
    &drain::BENCHMARK,
    &storm::BENCHMARK,
    &durable::BENCHMARK,
    &cluster::BENCHMARK,
];

/// The benchmarks with these names, in the order of [`ALL`].
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Benchmark>, String> {
    for name in names {
        if name != SMALL && ALL.iter().all(|benchmark| benchmark.definition.name != name) {
            return Err(unknown(name));
        }
    }
    let has = |name: &str| names.iter().any(|requested| requested == name);
    let is_requested = |benchmark: &&&Benchmark| {
        let definition = benchmark.definition;
        has(definition.name) || has(SMALL) && !definition.scope.is_big
    };
    Ok(ALL.iter().filter(is_requested).copied().collect())
}

fn unknown(name: &str) -> String {
    /// Similarity of a name that may be a misspelling.
    const SIMILARITY_MIN: f64 = 0.7;
    let similar = ALL
        .iter()
        .map(|benchmark| benchmark.definition.name)
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN);
    let hint = similar.map_or_else(
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
    fn every_definition_is_complete() {
        for benchmark in ALL.map(|benchmark| benchmark.definition) {
            let name = benchmark.name;
            for text in [benchmark.title, benchmark.story, benchmark.source, benchmark.hardware] {
                assert!(!text.is_empty(), "{name}");
            }
            assert!(!benchmark.setup.is_empty() && !benchmark.differences.is_empty(), "{name}");
            let ours = [
                "growth",
                "million-default",
                "access",
                "tls",
                "million-tls",
                "upgrade",
                "drain",
                "storm",
                "durable",
                "cluster",
            ];
            let is_ours = ours.contains(&name);
            assert!((2006..=2020).contains(&benchmark.year) || is_ours, "{name}");
            assert!(benchmark.scope.size.connections > 0, "{name}");
            let keys: BTreeSet<_> =
                benchmark.measurements.iter().map(|measurement| measurement.key).collect();
            assert_eq!(keys.len(), benchmark.measurements.len(), "{name}");
            let is_published =
                benchmark.measurements.iter().any(|measurement| measurement.published.is_some());
            assert_ne!(is_published, is_ours, "{name}");
            for measurement in benchmark.measurements {
                let Some(published) = measurement.published else { continue };
                assert!(published.value > 0.0 && published.connections > 0, "{}", measurement.key);
                assert!(published.what.len() > 10, "{}", measurement.key);
                assert!(measurement.better != Better::Neither || measurement.key.ends_with("rate"));
            }
        }
        let names: BTreeSet<_> = ALL.iter().map(|benchmark| benchmark.definition.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn the_published_values_are_those_of_the_sources() {
        let published = |name: &str, key: &str| {
            let benchmark = ALL.iter().find(|benchmark| benchmark.definition.name == name);
            benchmark
                .and_then(|found| found.definition.measurement(key)?.published)
                .map(|found| found.value)
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
            super::named(&names)
                .map(|found| found.iter().map(|each| each.definition.name).collect::<Vec<_>>())
        };
        assert_eq!(named(&["router", "c10k-stream"]), Ok(vec!["c10k-stream", "router"]));
        let small = named(&["small"]).expect("known");
        assert!(small.contains(&"friends") && !small.contains(&"two-million"), "{small:?}");
        let error = named(&["c10k-steam"]).expect_err("unknown");
        assert_eq!(error, "there is no benchmark \"c10k-steam\"; did you mean c10k-stream?");
        assert!(named(&["x"]).is_err_and(|error| error.ends_with("lists them")));
    }
}
