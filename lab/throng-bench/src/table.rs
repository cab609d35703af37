//! Terminal views: the list of benchmarks, and results beside the published values.

use std::fmt::Write as _;

use throng_report::compare::Better;
use throng_report::grid::Grid;
use throng_units::format::{ABSENT, count, counted, decimal, or_absent, seconds};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::benchmarks::{ALL, SMALL};
use crate::definition::Definition;
use crate::results::{MeasuredValue, Outcome, Results, Verdict};

/// All benchmarks with their sizes and rough durations.
pub(crate) fn list(paint: Paint) -> String {
    let mut text = format!(
        "{} of push servers, rerun against Throng.\n",
        paint.ink(Ink::Bold, "The classic benchmarks")
    );
    let mut grid =
        Grid::new(["benchmark", "year", "connections", "held for", "takes about"], paint);
    for benchmark in ALL.map(|benchmark| benchmark.definition) {
        let size = benchmark.scope.size;
        let held = benchmark.scope.has_time.then_some(size.time.as_secs_f64());
        let big = if benchmark.scope.is_big { " *" } else { "" };
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
         \n  throng bench two-million --dry-run\n"
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

/// What a dry run shows of a benchmark.
pub(crate) fn plan(benchmark: &Definition, outcome: &Outcome, paint: Paint) -> String {
    let mut text = format!("{}\n", paint.ink(Ink::Bold, benchmark.title));
    let _ = writeln!(text, "  {}", benchmark.story);
    let _ =
        writeln!(text, "  {} ({}), on {}", benchmark.source, benchmark.year, benchmark.hardware);
    let _ = writeln!(text, "  {}", benchmark.setup);
    for difference in benchmark.differences {
        let _ = writeln!(text, "  Difference: {difference}");
    }
    let held = outcome.time_s.map(|time_s| format!(", held for {}", about(time_s)));
    let connections = counted(outcome.connections as u64, "connection", "connections");
    let _ = writeln!(text, "  {connections}{}", held.unwrap_or_default());
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
    use crate::definition::Measurement;
    use throng_report::Unit;

    fn measured(measurement: Measurement, ours: f64) -> MeasuredValue {
        let mut measured = MeasuredValue::of(&measurement);
        measured.set(ours, 200);
        measured
    }

    #[test]
    fn our_values_are_beside_the_published_ones() {
        let measurement = Measurement::less("m", "memory", Unit::Bytes)
            .per_connection()
            .published(46_080.0, 10_000, "x");
        assert_eq!(
            row(&measured(measurement, 100.0)),
            ["memory", "45.0 KiB", "10,000", "100 B", "200", "461 × less, better"]
        );
        let rate = Measurement::more("r", "rate", Unit::PerSecond).published(1_000.0, 10, "x");
        assert_eq!(compared(&measured(rate, 500.0)), "2.00 × less, worse");
        assert_eq!(compared(&measured(rate, 3_000.0)), "3.00 × more, better");
        let time = Measurement::less("t", "time", Unit::Milliseconds).published(50.0, 10, "x");
        assert_eq!(compared(&measured(time, 100.0)), "2.00 × more, worse");
        let large = Measurement::less("t", "time", Unit::Milliseconds).published(50.0, 9_999, "x");
        assert_eq!(compared(&measured(large, 1.0)), "different size");
        let alone = MeasuredValue::of(&Measurement::of("n", "number", Unit::Count));
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
    fn the_list_has_every_benchmark() {
        let text = list(Paint::plain());
        for benchmark in ALL {
            assert!(text.contains(benchmark.definition.name), "{text}");
        }
    }

    #[test]
    fn a_failure_is_shown() {
        let mut outcome = Outcome::of(ALL[0].definition, &ALL[0].definition.scope.size, 0);
        outcome.fail("the server is gone: \x1b[2J");
        let results = Results { benchmarks: vec![outcome], ..Results::default() };
        let text = table(&results, Paint::plain());
        assert!(text.contains("failed: the server is gone: \\u{1b}[2J"), "{text}");
        assert!(!text.contains("done:"), "{text}");
    }
}
