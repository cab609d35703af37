//! What the terminal shows before a benchmark runs: the list, and the plan of each.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use throng_report::grid::Grid;
use throng_units::format::{count, counted, or_absent};
use throng_units::paint::{Ink, Paint};

use crate::benchmarks::{SMALL, all};
use crate::file::{Benchmark, Size};
use crate::plan::{self, Target};

/// All benchmarks with their sizes and rough durations.
pub(crate) fn list(paint: Paint) -> String {
    let mut text = format!(
        "{} of push servers, rerun against Throng.\n",
        paint.ink(Ink::Bold, "The classic benchmarks")
    );
    let mut grid =
        Grid::new(["benchmark", "year", "connections", "held for", "takes about"], paint);
    for benchmark in all() {
        let size = benchmark.sized(None, None);
        let held = benchmark.held_s(&size);
        let big = if benchmark.size.big { " *" } else { "" };
        grid.row([
            format!("{}{big}", benchmark.name),
            benchmark.year.to_string(),
            count(size.connections as u64),
            or_absent(held, about),
            about(benchmark.seconds(&size)),
        ]);
    }
    grid.write(&mut text);
    let _ = write!(
        text,
        "\n* big: only when named. `throng bench {SMALL}` runs all others, one after the other.\n\
         \n  throng bench c10k-stream\
         \n  throng bench {SMALL} --connections 1000 --time 10s --html bench.html\
         \n  throng bench two-million --dry-run\
         \n  throng bench ./mine.toml\n"
    );
    text
}

/// A rough duration: `45 s`, `2 min`, `1 h 05 min`.
pub(crate) fn about(seconds: f64) -> String {
    let whole = seconds.round().max(1.0) as u64;
    let minutes = (seconds / 60.0).round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{minutes} min"),
        _ => format!("{} h {:02} min", minutes / 60, minutes % 60),
    }
}

/// The story of a benchmark, its size, and the plan of each run.
pub(crate) fn story(benchmark: &Benchmark, size: &Size, paint: Paint) -> String {
    let Benchmark { source, year, hardware, .. } = benchmark;
    let mut text = format!("{}\n", paint.ink(Ink::Bold, &benchmark.title));
    let url = benchmark.url.as_ref().map(|url| format!(", {url}")).unwrap_or_default();
    let _ = writeln!(text, "  {}\n  {source} ({year}){url}, on {hardware}", benchmark.story);
    let _ = writeln!(text, "  {}", benchmark.setup);
    for difference in &benchmark.differences {
        let _ = writeln!(text, "  Difference: {difference}");
    }
    let held = benchmark.held_s(size).map(|time_s| format!(", held for {}", about(time_s)));
    let connections = counted(size.connections as u64, "connection", "connections");
    let _ = writeln!(text, "  {connections}{}", held.unwrap_or_default());
    text
}

/// The plan of each run of a benchmark, as `throng flood` would read it.
pub(crate) fn plans(benchmark: &Benchmark, size: Size, paint: Paint) -> String {
    let mut text = String::new();
    let target = Target { url: "http://127.0.0.1:PORT".to_owned(), ..Target::default() };
    let mut shown = BTreeSet::new();
    for run in benchmark.runs().into_iter().filter(|run| shown.insert(&run.name)) {
        let program = run.program.iter().map(|name| format!(", program {name}"));
        let title = format!("{}{}", run.name, program.collect::<String>());
        let _ = writeln!(text, "\n  {}", paint.ink(Ink::Bold, title));
        let plan = plan::clients(benchmark, run, size).and_then(|connections| {
            plan::text(benchmark, run, Size { connections, ..size }, &target)
        });
        let plan = plan.unwrap_or_else(|reason| reason);
        for line in plan.lines().filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn durations_are_rounded() {
        for (seconds, text) in
            [(0.1, "1 s"), (45.4, "45 s"), (119.0, "119 s"), (600.0, "10 min"), (3_600.0, "60 min")]
        {
            assert_eq!(about(seconds), text);
        }
        assert_eq!(about(7_500.0), "2 h 05 min");
    }

    #[test]
    fn every_benchmark_is_listed_and_has_plans() {
        let text = list(Paint::plain());
        for benchmark in all() {
            assert!(text.contains(&benchmark.name), "{text}");
            let size = benchmark.sized(Some(200), None);
            assert!(story(&benchmark, &size, Paint::plain()).contains("200 connections"));
            let plans = plans(&benchmark, size, Paint::plain());
            assert!(plans.contains("http://127.0.0.1:PORT") && !plans.contains("\"="), "{plans}");
        }
    }
}
