//! What is seen in the terminal: the list of benchmarks, and their figures beside the published
//! ones.

use std::fmt::Write as _;

use throng_report::compare::Better;
use throng_report::grid::Grid;
use throng_units::format::{ABSENT, count, counted, decimal, or_absent, seconds};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::benchmark::Benchmark;
use crate::benchmarks::{ALL, SMALL};
use crate::results::{Measured, Outcome, Results, Verdict};

/// Every benchmark with its size and how long it takes about.
pub fn list(paint: Paint) -> String {
    let mut text = format!(
        "{} of push servers, rerun against this one.\n",
        paint.ink(Ink::Bold, "The classic benchmarks")
    );
    let mut grid =
        Grid::new(["benchmark", "year", "connections", "held for", "takes about"], paint);
    for benchmark in ALL {
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

/// A length of time that need not be exact: `45 s`, `2 min`, `1 h 05 min`.
pub fn about(seconds: f64) -> String {
    let whole = seconds.round().max(1.0) as u64;
    let minutes = (seconds / 60.0).round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{minutes} min"),
        _ => format!("{} h {:02} min", minutes / 60, minutes % 60),
    }
}

/// What would be done.
pub fn plan(benchmark: &Benchmark, outcome: &Outcome, paint: Paint) -> String {
    let mut text = format!("{}\n", paint.ink(Ink::Bold, benchmark.title));
    let _ = writeln!(text, "  {}", benchmark.story);
    let _ =
        writeln!(text, "  {} ({}), on {}", benchmark.source, benchmark.year, benchmark.hardware);
    let _ = writeln!(text, "  {}", benchmark.setup);
    for difference in benchmark.differences {
        let _ = writeln!(text, "  Different here: {difference}");
    }
    let held = outcome.time_s.map(|time_s| format!(", held for {}", about(time_s)));
    let connections = counted(outcome.connections as u64, "connection", "connections");
    let _ = writeln!(text, "  {connections}{}", held.unwrap_or_default());
    text
}

/// All results.
pub fn table(results: &Results, paint: Paint) -> String {
    let mut text = String::new();
    for outcome in &results.benchmarks {
        of_outcome(&mut text, outcome, paint);
    }
    text
}

fn of_outcome(text: &mut String, outcome: &Outcome, paint: Paint) {
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
        let _ = writeln!(text, "{} {}", paint.ink(Ink::WARNING, "doubtful:"), sanitized(warning));
    }
    text.push('\n');
    let mut grid = Grid::new(["", "published", "of", "ours", "of", ""], paint);
    for figure in &outcome.figures {
        grid.row(row(figure));
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

/// A value of a table whose column says the unit.
pub fn cell(value: Option<f64>) -> String {
    or_absent(value, |value| match value.fract() == 0.0 && value >= 0.0 {
        // Whole numbers are counted.
        true => count(value as u64),
        false => decimal(value),
    })
}

/// A figure: what was published, ours, and how they compare.
pub fn row(figure: &Measured) -> [String; 6] {
    let published = figure.published.as_ref();
    let unit = figure.unit();
    [
        figure.name.clone(),
        published.map_or_else(String::new, |published| unit.show(published.value)),
        published.map_or_else(String::new, |published| count(published.connections as u64)),
        or_absent(figure.ours, |value| unit.show(value)),
        or_absent(figure.connections.filter(|_| figure.ours.is_some()), |connections| {
            count(connections as u64)
        }),
        compared(figure),
    ]
}

/// `45 × less`, `1.2 × more`: the word says which way it differs, the sign which is better.
pub fn compared(figure: &Measured) -> String {
    let (Some(ours), Some(published)) = (figure.ours, figure.published.as_ref()) else {
        return String::new();
    };
    if figure.better() == Better::Neither {
        return String::new();
    }
    if !figure.is_comparable() {
        return "of another size".to_owned();
    }
    let Some(ratio) = figure.ratio else { return ABSENT.to_owned() };
    let times = if ratio >= 1.0 { ratio } else { 1.0 / ratio };
    let word = if ours < published.value { "less" } else { "more" };
    let verdict = if ratio >= 1.0 { "better" } else { "worse" };
    format!("{} × {word}, {verdict}", decimal(times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::Figure;
    use throng_report::Unit;

    fn measured(figure: Figure, ours: f64) -> Measured {
        let mut measured = Measured::of(&figure);
        measured.set(ours, 200);
        measured
    }

    #[test]
    fn figures_stand_beside_the_published_ones() {
        let figure =
            Figure::less("m", "memory", Unit::Bytes).each().published(46_080.0, 10_000, "x");
        assert_eq!(
            row(&measured(figure, 100.0)),
            ["memory", "45.0 KiB", "10,000", "100 B", "200", "461 × less, better"]
        );
        let rate = Figure::more("r", "rate", Unit::PerSecond).published(1_000.0, 10, "x");
        assert_eq!(compared(&measured(rate, 500.0)), "2.00 × less, worse");
        assert_eq!(compared(&measured(rate, 3_000.0)), "3.00 × more, better");
        let time = Figure::less("t", "time", Unit::Milliseconds).published(50.0, 10, "x");
        assert_eq!(compared(&measured(time, 100.0)), "2.00 × more, worse");
        let large = Figure::less("t", "time", Unit::Milliseconds).published(50.0, 9_999, "x");
        assert_eq!(compared(&measured(large, 1.0)), "of another size");
        let alone = Measured::of(&Figure::of("n", "number", Unit::Count));
        assert_eq!(row(&alone), ["number", "", "", ABSENT, ABSENT, ""]);
    }

    #[test]
    fn times_are_rounded() {
        for (seconds, text) in
            [(0.1, "1 s"), (45.4, "45 s"), (119.0, "119 s"), (600.0, "10 min"), (3_600.0, "60 min")]
        {
            assert_eq!(about(seconds), text);
        }
        assert_eq!(about(7_500.0), "2 h 05 min");
    }

    #[test]
    fn the_list_names_all() {
        let text = list(Paint::plain());
        for benchmark in ALL {
            assert!(text.contains(benchmark.name), "{text}");
        }
    }

    #[test]
    fn a_failure_is_seen() {
        let mut outcome = Outcome::of(ALL[0], &ALL[0].scope.size, 0);
        outcome.fail("the server is gone: \x1b[2J");
        let results = Results { benchmarks: vec![outcome], ..Results::default() };
        let text = table(&results, Paint::plain());
        assert!(text.contains("failed: the server is gone: \\u{1b}[2J"), "{text}");
        assert!(!text.contains("done:"), "{text}");
    }
}
