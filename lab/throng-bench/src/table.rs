//! Terminal views: the list of benchmarks, and results beside the published values.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use throng_report::compare::Better;
use throng_report::grid::Grid;
use throng_units::format::{ABSENT, count, counted, decimal, or_absent, seconds};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::file::{Benchmark, Size};
use crate::library::{SMALL, all};
use crate::plan::{self, Target};
use crate::results::{MeasuredValue, Outcome, Results, Verdict};

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
        let plan = plan::text(benchmark, run, size, &target).unwrap_or_else(|reason| reason);
        plan.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

/// All results as text.
pub(crate) fn table(results: &Results, paint: Paint) -> String {
    let mut text = String::new();
    for outcome in &results.benchmarks {
        outcome_table(&mut text, outcome, paint);
    }
    text
}

fn outcome_table(text: &mut String, outcome: &Outcome, paint: Paint) {
    let connections = counted(outcome.connections as u64, "connection", "connections");
    let _ = writeln!(
        text,
        "\n{}  {connections}, {}",
        paint.ink(Ink::Bold, &outcome.title),
        seconds(outcome.seconds)
    );
    let _ =
        writeln!(text, "{}", paint.ink(Ink::Dim, format!("{}, {}", outcome.source, outcome.year)));
    let _ = match outcome.verdict {
        Verdict::Done => {
            writeln!(text, "{}", paint.ink(Ink::GOOD, "done: nothing failed, nothing is lost"))
        }
        Verdict::Failed => writeln!(text, "{}", paint.ink(Ink::BAD, "failed")),
    };
    for reason in &outcome.reasons {
        let _ = writeln!(text, "{} {}", paint.ink(Ink::BAD, "failed:"), sanitized(reason));
    }
    for warning in &outcome.warnings {
        let _ = writeln!(text, "{} {}", paint.ink(Ink::WARNING, "warning:"), sanitized(warning));
    }
    text.push('\n');
    let mut grid = Grid::new(["", "published", "of", "ours", "of", ""], paint);
    for measurement in &outcome.measurements {
        grid.row(row(measurement));
    }
    grid.write(text);
    for table in &outcome.tables {
        let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, sanitized(&table.title)));
        let mut grid = Grid::new(table.columns.iter().map(String::as_str), paint);
        for row in &table.rows {
            grid.row(row.iter().map(|value| cell(*value)));
        }
        grid.write(text);
    }
}

/// A value of a table, whose column heading states the unit.
pub(crate) fn cell(value: Option<f64>) -> String {
    or_absent(value, |value| {
        let is_count = value.fract() == 0.0 && value >= 0.0;
        if is_count { count(value as u64) } else { decimal(value) }
    })
}

/// A measurement: the published value, our value, and how they compare.
pub(crate) fn row(measurement: &MeasuredValue) -> [String; 6] {
    let published = measurement.published.as_ref();
    let unit = measurement.unit();
    [
        measurement.name.clone(),
        published.map_or_else(String::new, |published| unit.show(published.value)),
        published.map_or_else(String::new, |published| count(published.connections as u64)),
        or_absent(measurement.ours, |value| unit.show(value)),
        or_absent(measurement.connections.filter(|_| measurement.ours.is_some()), |connections| {
            count(connections as u64)
        }),
        compared(measurement),
    ]
}

/// How our value differs: `45 × less, better`, `1.2 × more, worse`.
pub(crate) fn compared(measurement: &MeasuredValue) -> String {
    let (Some(ours), Some(published)) = (measurement.ours, measurement.published.as_ref()) else {
        return String::new();
    };
    if measurement.better() == Better::Neither {
        return String::new();
    }
    if !measurement.is_comparable() {
        return "different size".to_owned();
    }
    let Some(ratio) = measurement.ratio else { return ABSENT.to_owned() };
    let times = if ratio >= 1.0 { ratio } else { 1.0 / ratio };
    let word = if ours < published.value { "less" } else { "more" };
    let verdict = if ratio >= 1.0 { "better" } else { "worse" };
    format!("{} × {word}, {verdict}", decimal(times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::PublishedValue;

    fn measured(unit: &str, better: &str, published: f64, ours: f64) -> MeasuredValue {
        MeasuredValue {
            name: "name".to_owned(),
            unit: unit.to_owned(),
            better: Some(better.to_owned()),
            is_per_connection: true,
            ours: Some(ours),
            connections: Some(200),
            ratio: Some(if better == "less" { published / ours } else { ours / published }),
            published: Some(PublishedValue {
                value: published,
                connections: 10_000,
                ..PublishedValue::default()
            }),
            ..MeasuredValue::default()
        }
    }

    #[test]
    fn our_values_are_beside_the_published_ones() {
        let memory = measured("bytes", "less", 46_080.0, 100.0);
        let shown = ["name", "45.0 KiB", "10,000", "100 B", "200", "461 × less, better"];
        assert_eq!(row(&memory), shown);
        let words = |better, ours| compared(&measured("per_second", better, 1_000.0, ours));
        assert_eq!(words("more", 500.0), "2.00 × less, worse");
        assert_eq!(words("more", 3_000.0), "3.00 × more, better");
        assert_eq!(words("less", 2_000.0), "2.00 × more, worse");
        let other_size = MeasuredValue { is_per_connection: false, ..memory };
        assert_eq!(compared(&other_size), "different size");
        let alone = MeasuredValue { name: "number".to_owned(), ..MeasuredValue::default() };
        assert_eq!(row(&alone), ["number", "", "", ABSENT, ABSENT, ""]);
    }

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

    #[test]
    fn a_failure_is_shown() {
        let mut outcome = Outcome::default();
        outcome.fail("the server is gone: \x1b[2J");
        let results = Results { benchmarks: vec![outcome], ..Results::default() };
        let text = table(&results, Paint::plain());
        assert!(text.contains("failed: the server is gone: \\u{1b}[2J"), "{text}");
        assert!(!text.contains("done:"), "{text}");
    }
}
