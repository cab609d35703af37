//! The results as sections, for a terminal and as a page: for each benchmark the measurements
//! beside the published values, on the page with its story and charts; and two results compared.

use std::collections::BTreeMap;

use throng_report::Unit;
use throng_report::chart::{Chart, Pair, Pairs};
use throng_report::compare::{self, Better, FOOTNOTE, Measure, Range, Side, named_runs};
use throng_report::page::{self, Cell, Page, Part, Section};
use throng_units::format::{self, ABSENT, count, counted, decimal, or_absent};
use throng_units::paint::Paint;

use crate::file::Goal;
use crate::listing::about;
use crate::results::{MeasuredValue, Outcome, Results, Spread, Table, Verdict};

/// Named at the bottom of pages.
const COMMAND: &str = "throng bench";

const TITLE: &str = "The classic benchmarks, rerun";

const PLACE: &str = "Clients and server shared this machine and its cores: a sender also pays for \
     waking the reader and for the reader's half of TCP.";

/// All results for a terminal.
pub(crate) fn text(results: &Results, paint: Paint) -> String {
    sections_text(results.benchmarks.iter().map(section), paint)
}

fn sections_text(sections: impl IntoIterator<Item = Section>, paint: Paint) -> String {
    let mut text = String::new();
    sections.into_iter().for_each(|section| section.write(&mut text, paint));
    text
}

/// All results as an HTML page.
pub(crate) fn html(results: &Results) -> String {
    let environment = &results.environment;
    let head = Section {
        subtitle: format!(
            "{}, {}, {}, {}",
            format::date(results.started_unix_s),
            environment.processor,
            counted(environment.cores as u64, "core", "cores"),
            format::bytes(environment.memory_bytes as f64),
        ),
        ..Section::new(TITLE, vec![Part::Note(PLACE.to_owned())])
    };
    let overview = Section::new("Benchmarks", vec![Part::Table(overview(results))]);
    let machine = Section::new("Machine", vec![Part::Details(environment.rows())]);
    let outcomes = results.benchmarks.iter().map(section);
    let overview = (results.benchmarks.len() > 1).then_some(overview);
    let sections = overview.into_iter().chain(outcomes).chain([machine]);
    Page::new(COMMAND, head, sections.collect()).html()
}

fn overview(results: &Results) -> page::Table {
    let rows = results.benchmarks.iter().map(|outcome| {
        vec![
            outcome.title.as_str().into(),
            outcome.year.to_string().into(),
            count(outcome.connections as u64).into(),
            format::seconds(outcome.seconds).into(),
            verdict(outcome),
        ]
    });
    page::Table::new(&["benchmark", "year", "connections", "took", "outcome"], rows)
}

fn section(outcome: &Outcome) -> Section {
    let connections = counted(outcome.connections as u64, "connection", "connections");
    let original = format!("{}, {}", outcome.source, outcome.year);
    let facts = [
        ("held for", or_absent(outcome.time_s, about)),
        ("server", servers(outcome)),
        ("hardware of the original", outcome.hardware.clone()),
        ("setup", outcome.setup.clone()),
        ("differences", outcome.differences.join(" ")),
    ];
    let measurements = match &outcome.beside {
        Some(name) => beside(name, &outcome.measurements),
        None => {
            let headings =
                ["measurement", "published", "connections", "ours", "connections", "difference"];
            page::Table::new(&headings, outcome.measurements.iter().map(row))
        }
    };
    let mut parts = vec![
        Part::Text(outcome.story.clone()),
        Part::Facts(vec![("original".to_owned(), original)]),
        Part::Details(facts.map(|(name, value)| (name.to_owned(), value)).to_vec()),
        Part::Warnings(outcome.warnings.clone()),
        Part::Table(measurements),
    ];
    parts.extend(outcome.notes.iter().cloned().map(Part::Note));
    parts.extend(pairs(outcome).into_iter().map(|chart| Part::Charts(vec![chart])));
    let plots = outcome.plots.iter().cloned().map(Chart::Lines);
    parts.extend(plots.map(|chart| Part::Charts(vec![chart])));
    parts.extend(outcome.tables.iter().map(by_step).map(Part::Table));
    parts.push(Part::Folded(published(outcome)));
    Section {
        title: outcome.title.clone(),
        subtitle: format!("{connections}, {}", format::seconds(outcome.seconds)),
        verdict: Some(verdict(outcome)),
        parts,
    }
}

fn verdict(outcome: &Outcome) -> Cell {
    match outcome.verdict {
        Verdict::Done => Cell::good("done: nothing failed, nothing is lost"),
        Verdict::Failed => Cell::bad(format!("failed: {}", outcome.reasons.join("; "))),
    }
}

/// The flags of each server; equal neighbours are merged.
fn servers(outcome: &Outcome) -> String {
    let same = outcome.servers.chunk_by(|one, other| one == other);
    let texts = same.map(|servers| match servers {
        [one] => one.clone(),
        _ => format!("{} servers with {}", servers.len(), servers[0]),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// A measurement: the published value, our value, and how they compare.
fn row(measurement: &MeasuredValue) -> Vec<Cell> {
    let (unit, published) = (measurement.unit, measurement.published.as_ref());
    let ours = measurement.connections.filter(|_| measurement.ours.is_some());
    vec![
        measurement.name.as_str().into(),
        published.map_or_else(String::new, |published| unit.show(published.value)).into(),
        published.map_or_else(String::new, |published| count(published.connections as u64)).into(),
        or_absent(measurement.ours, |value| unit.show(value)).into(),
        or_absent(ours, |connections| count(connections as u64)).into(),
        difference(measurement).into(),
    ]
}

/// Our measurements and those beside them.
fn beside(name: &str, measurements: &[MeasuredValue]) -> page::Table {
    let row = |measured: &MeasuredValue| {
        let unit = measured.unit;
        let ours = measured.runs.or(measured.ours.map(|ours| Spread {
            median: ours,
            min: ours,
            max: ours,
        }));
        let goal = measured.goal.map(|goal| match goal {
            Goal::AtMost(most) => format!("{} at most", unit.show(most)),
            Goal::RatioAtLeast(least) => format!("ratio {least} at least"),
            Goal::RatioAtMost(most) => format!("ratio {most} at most"),
        });
        vec![
            measured.name.as_str().into(),
            spread(ours, |value| exact(unit, value)).into(),
            spread(measured.beside, |value| exact(unit, value)).into(),
            spread(measured.beside_ratio, |ratio| format!("{ratio:.2}")).into(),
            or_absent(goal, |goal| goal).into(),
            match measured.is_reached {
                Some(true) => Cell::good("yes"),
                Some(false) => Cell::bad("no"),
                None => ABSENT.into(),
            },
        ]
    };
    let rows = measurements.iter().filter(|one| one.ours.is_some() || one.beside.is_some());
    let headings = ["measurement", "ours", name, "ratio", "goal", "reached"];
    page::Table::new(&headings, rows.map(row))
}

/// A value with its unit, in more digits if it is a short time: ratios of those matter.
fn exact(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Milliseconds if value < 0.1 => format!("{:.2} µs", value * 1e3),
        Unit::Cores if value < 0.1 => format!("{value:.4} cores"),
        _ => unit.show(value),
    }
}

/// A median and its range, if there is one: `8.39 µs (7.87 µs to 8.61 µs)`.
fn spread(values: Option<Spread>, show: impl Fn(f64) -> String) -> String {
    or_absent(values, |Spread { median, min, max }| {
        if min == max {
            return show(median);
        }
        format!("{} ({} to {})", show(median), show(min), show(max))
    })
}

/// How our value differs: `45 × less, better`, `1.2 × more, worse`.
fn difference(measurement: &MeasuredValue) -> String {
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

/// A chart for each unit with our values and the published ones.
fn pairs(outcome: &Outcome) -> Vec<Chart> {
    let mut by_unit: BTreeMap<Unit, Vec<Pair>> = BTreeMap::new();
    for measurement in &outcome.measurements {
        let Some(published) = &measurement.published else { continue };
        let pair = (measurement.name.clone(), measurement.ours, Some(published.value));
        by_unit.entry(measurement.unit).or_default().push(pair);
    }
    let chart = |(unit, rows)| {
        let things = match unit {
            Unit::Bytes => "Memory",
            Unit::Milliseconds | Unit::Clock => "Times",
            Unit::PerSecond => "Rates",
            Unit::Cores => "Processor time",
            Unit::Count | Unit::Share => "Numbers",
        };
        Chart::Pairs(Pairs {
            id: format!("{}-{}", outcome.name, things.to_lowercase().replace(' ', "-")),
            title: format!("{things}, ours and published"),
            note: "Logarithmic scale. Numbers: ours / published.",
            unit,
            names: ["ours", "published"],
            rows,
        })
    };
    by_unit.into_iter().map(chart).collect()
}

/// A table by size or step, whose headings state the units.
fn by_step(table: &Table) -> page::Table {
    let headings: Vec<&str> = table.columns.iter().map(String::as_str).collect();
    let cell = |value: &Option<f64>| or_absent(*value, |value| Unit::Count.show(value)).into();
    let rows = table.rows.iter().map(|row| row.iter().map(cell).collect());
    page::Table::new(&headings, rows).titled(&table.title)
}

fn published(outcome: &Outcome) -> page::Table {
    let rows = outcome.measurements.iter().filter_map(|measurement| {
        let published = measurement.published.as_ref()?;
        let value = measurement.unit.show(published.value);
        Some(vec![measurement.name.as_str().into(), value.into(), published.what.as_str().into()])
    });
    let headings = ["measurement", "published", "what exactly"];
    page::Table::new(&headings, rows).titled("What exactly was published")
}

/// The comparison of results for a terminal.
pub(crate) fn compared_text(sides: &[Side<Results>], paint: Paint) -> String {
    let page = compared(sides);
    sections_text([page.head].into_iter().chain(page.sections), paint)
}

/// The comparison of results as an HTML page.
pub(crate) fn compared_html(sides: &[Side<Results>]) -> String {
    compared(sides).html()
}

/// A section for each benchmark of the first side.
fn compared(sides: &[Side<Results>]) -> Page {
    let names: Vec<&str> = sides.iter().map(|side| side.label.as_str()).collect();
    let benchmarks = sides.iter().flat_map(|side| side.runs.first()).next();
    let benchmarks = benchmarks.iter().flat_map(|results| &results.benchmarks);
    let sections = benchmarks.filter_map(|outcome| comparison(outcome, sides));
    let sections: Vec<Section> = sections.collect();
    let mut runs = sides.iter().flat_map(|side| &side.runs).map(|results| &results.environment);
    let first = runs.next();
    let mut warnings = Vec::new();
    if sections.is_empty() {
        warnings.push("the two results have no benchmark in common".to_owned());
    }
    if runs.any(|environment| Some(environment) != first) {
        warnings.push("the machines or their settings differ".to_owned());
    }
    let head = vec![Part::Warnings(warnings)];
    Page::new(COMMAND, Section::new(names.join(" against "), head), sections)
}

/// The comparison of a benchmark; `None` if a side lacks it.
fn comparison(benchmark: &Outcome, sides: &[Side<Results>]) -> Option<Section> {
    let of_side = |side: &Side<Results>| {
        let outcomes = side.runs.iter().flat_map(|results| &results.benchmarks);
        let runs: Vec<Outcome> =
            outcomes.filter(|outcome| outcome.name == benchmark.name).cloned().collect();
        (!runs.is_empty()).then(|| Side { label: side.label.clone(), runs })
    };
    let sides: Vec<Side<Outcome>> = sides.iter().map(of_side).collect::<Option<_>>()?;
    let size = |outcome: &Outcome| (outcome.connections, outcome.time_s);
    let mut warnings = Vec::new();
    for (name, outcome) in named_runs(&sides) {
        if size(outcome) != size(benchmark) {
            warnings.push(format!("{name} has another size"));
        }
        if !outcome.reasons.is_empty() {
            warnings.push(format!("{name} failed: {}", outcome.reasons.join("; ")));
        }
    }
    let measures = |outcome: &Outcome| outcome.measurements.iter().map(measure).collect();
    let parts = vec![
        Part::Warnings(warnings),
        Part::Table(compare::table(&sides, measures)),
        Part::Note(FOOTNOTE.to_owned()),
    ];
    Some(Section::new(&benchmark.title, parts))
}

fn measure(measured: &MeasuredValue) -> Measure {
    Measure {
        key: measured.key.clone(),
        name: measured.name.clone(),
        unit: measured.unit,
        better: measured.better(),
        value: measured.ours,
        range: Range::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use throng_report::chart::{Plot, PlotLine};

    use super::*;
    use crate::benchmarks;
    use crate::figures::Figures;
    use crate::file::Published;

    fn results(outcomes: Vec<Outcome>) -> Results {
        Results { benchmarks: outcomes, ..Results::default() }
    }

    fn all() -> Results {
        let outcomes = benchmarks::all().into_iter().map(|benchmark| {
            let size = benchmark.sized(None, None);
            let mut outcome = Outcome::of(&benchmark, &size);
            outcome.complete(&benchmark, &Figures { size, cores: 1.0, runs: Vec::new() });
            for (nth, measurement) in outcome.measurements.iter_mut().enumerate() {
                measurement.set(nth as f64 * 100.0, size.connections);
            }
            let points = vec![(1.0, Some(5.0)), (2.0, None)];
            let lines = vec![PlotLine { name: "here".to_owned(), points }];
            let id = format!("{}-plot", outcome.name);
            outcome.plots = vec![Plot { id, lines, ..Plot::default() }];
            outcome
        });
        results(outcomes.collect())
    }

    fn measured(unit: Unit, better: &str, published: f64, ours: f64) -> MeasuredValue {
        MeasuredValue {
            name: "name".to_owned(),
            unit,
            better: Some(better.to_owned()),
            is_per_connection: true,
            ours: Some(ours),
            connections: Some(200),
            ratio: Some(if better == "less" { published / ours } else { ours / published }),
            published: Some(Published {
                value: published,
                connections: 10_000,
                ..Published::default()
            }),
            ..MeasuredValue::default()
        }
    }

    fn texts(row: &[Cell]) -> Vec<&str> {
        row.iter().map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn the_page_has_every_benchmark_and_plot() {
        let html = html(&all());
        for benchmark in benchmarks::all() {
            let title = serde_json::to_string(&benchmark.title).expect("JSON");
            assert!(html.contains(&format!("{{\"title\":{title},")), "{title}");
            let id = format!("\"id\":\"{}-plot\"", benchmark.name);
            assert_eq!(html.matches(&id).count(), 1, "{id}");
        }
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut results = all();
        let evil = "</script><script>alert(1)</script>\x1b[2J";
        let outcome = &mut results.benchmarks[0];
        outcome.fail(evil);
        outcome.warnings.push(evil.to_owned());
        outcome.title = evil.to_owned();
        outcome.tables.push(Table {
            title: evil.to_owned(),
            columns: vec![evil.to_owned()],
            rows: vec![vec![Some(1.0)]],
        });
        results.environment.processor = evil.to_owned();
        let html = html(&results);
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script>").count(), 2);
        let text = text(&results, Paint::plain());
        assert!(!text.contains('\x1b') && text.contains("\nfailed: "), "{text}");
    }

    #[test]
    fn empty_results_are_a_page() {
        assert!(html(&Results::default()).contains("</html>"));
    }

    #[test]
    fn our_values_are_beside_the_published_ones() {
        let memory = measured(Unit::Bytes, "less", 46_080.0, 100.0);
        let shown = ["name", "45.0 KiB", "10,000", "100 B", "200", "461 × less, better"];
        assert_eq!(texts(&row(&memory)), shown);
        let words = |better, ours| difference(&measured(Unit::PerSecond, better, 1_000.0, ours));
        assert_eq!(words("more", 500.0), "2.00 × less, worse");
        assert_eq!(words("more", 3_000.0), "3.00 × more, better");
        assert_eq!(words("less", 2_000.0), "2.00 × more, worse");
        let other_size = MeasuredValue { is_per_connection: false, ..memory };
        assert_eq!(difference(&other_size), "different size");
        let alone = MeasuredValue { name: "number".to_owned(), ..MeasuredValue::default() };
        assert_eq!(texts(&row(&alone)), ["number", "", "", ABSENT, ABSENT, ""]);
    }

    #[test]
    fn values_stand_beside_others_with_goals() {
        let spread = |median: f64| Some(Spread { median, min: median / 2.0, max: median * 2.0 });
        let one = MeasuredValue {
            name: "burst".to_owned(),
            unit: Unit::PerSecond,
            ours: Some(250.0),
            runs: spread(250.0),
            beside: spread(100.0),
            beside_ratio: spread(2.5),
            goal: Some(Goal::RatioAtLeast(3.0)),
            is_reached: Some(false),
            ..MeasuredValue::default()
        };
        let unmeasured = MeasuredValue { ours: None, beside: None, ..one.clone() };
        let alone = MeasuredValue {
            name: "delivery".to_owned(),
            unit: Unit::Milliseconds,
            ours: Some(0.00839),
            ..MeasuredValue::default()
        };
        let table = beside("raw loop", &[one, unmeasured, alone]);
        assert_eq!(table.headings[2], "raw loop");
        let rows: Vec<_> = table.rows.iter().map(|row| texts(row)).collect();
        let of_burst = [
            "burst",
            "250/s (125/s to 500/s)",
            "100/s (50.0/s to 200/s)",
            "2.50 (1.25 to 5.00)",
            "ratio 3 at least",
            "no",
        ];
        let of_delivery = ["delivery", "8.39 µs", ABSENT, ABSENT, ABSENT, ABSENT];
        assert_eq!(rows, [of_burst, of_delivery]);
    }

    #[test]
    fn keys_of_measurements_are_unique() {
        for outcome in all().benchmarks {
            let keys = outcome.measurements.iter().map(|measurement| &measurement.key);
            let unique: std::collections::BTreeSet<_> = keys.collect();
            assert_eq!(unique.len(), outcome.measurements.len(), "{}", outcome.name);
        }
    }

    fn side(label: &str, memory: f64, connections: usize) -> Side<Results> {
        let mut measured = measured(Unit::Bytes, "less", 1.0, 1.0);
        measured.set(memory, connections);
        let measurements = vec![measured];
        let outcome = Outcome { connections, measurements, ..Outcome::default() };
        Side { label: label.to_owned(), runs: vec![results(vec![outcome])] }
    }

    #[test]
    fn a_better_value_is_marked() {
        let text = |after| compared_text(&[side("before", 200.0, 10), after], Paint::plain());
        let better = text(side("after", 100.0, 10));
        assert!(better.contains("0.50× better") && !better.contains("warning"), "{better}");
        let worse = text(side("after", 400.0, 20));
        assert!(worse.contains("2.00× worse"), "{worse}");
        assert!(worse.contains("warning: after has another size"), "{worse}");
    }

    #[test]
    fn results_without_a_common_benchmark_say_so() {
        let nothing = Side { label: "b".to_owned(), runs: vec![Results::default()] };
        let text = compared_text(&[side("a", 1.0, 1), nothing], Paint::plain());
        assert!(text.contains("the two results have no benchmark in common"), "{text}");
    }
}
