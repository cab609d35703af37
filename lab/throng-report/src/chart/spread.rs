//! Histograms, and ranges of several distributions.

use std::fmt::Write as _;

use throng_units::format::count;

use super::axis::Axis;
use super::figure::{Area, Figure, axes, row_axes, text_width};
use crate::distribution::{Distribution, lower_edge};
use crate::html::escaped;
use crate::unit::Unit;

/// A histogram of latencies on a logarithmic axis; `None` if it is empty.
pub fn histogram(id: &str, title: &str, area: Area, found: &Distribution) -> Option<Figure> {
    let (first, _) = found.buckets.first()?;
    let (last, _) = found.buckets.last()?;
    let whole: u64 = found.buckets.iter().map(|(_, count)| count).sum();
    let share = |count: u64| count as f64 / whole.max(1) as f64;
    let max = found.buckets.iter().map(|&(_, count)| share(count)).fold(0.0, f64::max);
    let (left, right) = area.horizontal();
    let (floor, ceiling) = area.vertical();
    let x = Axis::log(Unit::Milliseconds, lower_edge(*first), *last, left, right);
    let y = Axis::linear(Unit::Share, max, floor, ceiling);
    let mut drawing = axes(&area, &x, &y);
    for &(edge, number) in &found.buckets {
        let (from, to) = (x.scale.at(lower_edge(edge)), x.scale.at(edge));
        // At least one pixel, so that one value in a million is visible.
        let height = (floor - y.scale.at(share(number))).max(1.0);
        let text = format!(
            "{} to {}: {}",
            Unit::Milliseconds.show(lower_edge(edge)),
            Unit::Milliseconds.show(edge),
            count(number)
        );
        let _ = write!(
            drawing,
            "<rect class=\"bar\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\
             \"><title>{}</title></rect>",
            floor - height,
            (to - from - 0.5).max(0.5),
            escaped(&text)
        );
    }
    let marks = [("p50", found.p50), ("p99", found.p99), ("max", found.max)];
    drawing.push_str(&markers(&marks, &x, &area));
    let rows = found.buckets.iter().map(|&(edge, number)| {
        vec![
            Unit::Milliseconds.show(edge),
            count(number),
            format!("{:.3} %", share(number) * 100.0),
        ]
    });
    Some(Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        note: "Share of all deliveries; bars are 6 % apart.".to_owned(),
        drawing,
        size: (area.width, area.height),
        headings: ["up to", "deliveries", "share"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        ..Figure::default()
    })
}

/// Labelled vertical lines, from left to right; labels that would overlap move one line down.
fn markers(marks: &[(&str, f64)], x: &Axis, area: &Area) -> String {
    let (floor, ceiling) = area.vertical();
    let mut svg = String::new();
    let mut free = [f64::NEG_INFINITY; 3];
    for (name, value) in marks {
        let at = x.scale.at(*value);
        let text = format!("{name} {}", Unit::Milliseconds.show(*value));
        let width = text_width(&text);
        let from = if at + 4.0 + width > area.width { at - 4.0 - width } else { at + 4.0 };
        let row = free.iter().position(|&end| end <= from).unwrap_or(free.len() - 1);
        free[row] = from + width + 4.0;
        let _ = write!(
            svg,
            "<line class=\"marker\" x1=\"{at:.1}\" y1=\"{ceiling}\" x2=\"{at:.1}\" \
             y2=\"{floor}\"/><text class=\"label\" x=\"{from:.1}\" y=\"{:.1}\">{}</text>",
            ceiling + 10.0 + row as f64 * 15.0,
            escaped(&text)
        );
    }
    svg
}

/// Widths of the names and of the values beside the plot of [`ranges`], in pixels.
const NAMES_WIDTH: f64 = 128.0;
const VALUES_WIDTH: f64 = 206.0;

/// Ranges of several distributions on one logarithmic axis: a line from the minimum to the maximum
/// and a bar from p50 to p99. `None` without distributions.
pub fn ranges(
    id: &str,
    title: &str,
    note: &str,
    width: f64,
    distributions: &[(&str, &Distribution)],
) -> Option<Figure> {
    let max = distributions.iter().map(|(_, found)| found.max).reduce(f64::max)?;
    let min = distributions.iter().map(|(_, found)| found.min).fold(f64::INFINITY, f64::min);
    let area = Area::of_rows(distributions.len(), width, NAMES_WIDTH, VALUES_WIDTH);
    let (left, right) = area.horizontal();
    let x = Axis::log(Unit::Milliseconds, min.max(1e-3), max, left, right);
    let mut drawing = row_axes(&area, &x);
    let mut rows = Vec::new();
    for (index, (name, found)) in distributions.iter().enumerate() {
        let middle = area.row_middle(index);
        let [min, p50, p99, max] =
            [found.min, found.p50, found.p99, found.max].map(|ms| x.scale.at(ms));
        let text =
            [found.p50, found.p99, found.max].map(|ms| Unit::Milliseconds.show(ms)).join(" / ");
        let _ = write!(
            drawing,
            "<text class=\"row end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <line class=\"whisker\" x1=\"{min:.1}\" y1=\"{middle}\" x2=\"{max:.1}\" \
             y2=\"{middle}\"/><rect class=\"range\" x=\"{p50:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"12\" rx=\"3\"/><circle class=\"middle\" cx=\"{p50:.1}\" cy=\"{middle}\" \
             r=\"4\"/><text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 10.0,
            middle + 4.0,
            escaped(name),
            middle - 6.0,
            (p99 - p50).max(1.0),
            right + 10.0,
            middle + 4.0,
            escaped(&text)
        );
        let Distribution { count: number, min, p50, p90, p99, max, .. } = found;
        let cells = [*min, *p50, *p90, *p99, *max].map(|ms| Unit::Milliseconds.show(ms));
        rows.push([(*name).to_owned(), count(*number)].into_iter().chain(cells).collect());
    }
    Some(Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        note: note.to_owned(),
        drawing,
        size: (area.width, area.height),
        headings: ["latency of", "values", "min", "p50", "p90", "p99", "max"]
            .map(str::to_owned)
            .to_vec(),
        rows,
        ..Figure::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(ms: f64) -> Distribution {
        Distribution {
            count: 1,
            min: ms,
            mean: ms,
            p50: ms,
            p90: ms,
            p99: ms,
            p999: ms,
            max: ms,
            buckets: vec![(ms, 1)],
        }
    }

    #[test]
    fn every_bucket_is_drawn() {
        let buckets = vec![(1.0, 5), (2.0, 1_000_000), (40.0, 1)];
        let found = Distribution { count: 1_000_006, p50: 2.0, max: 40.0, buckets, ..uniform(2.0) };
        let figure = histogram("a", "A", Area::HALF, &found).expect("a chart");
        assert_eq!(figure.drawing.matches("class=\"bar\"").count(), found.buckets.len());
        assert_eq!(figure.rows.len(), found.buckets.len());
        assert!(!figure.drawing.contains("NaN") && !figure.drawing.contains("inf"));
    }

    #[test]
    fn without_values_there_is_no_chart() {
        assert!(histogram("a", "A", Area::HALF, &Distribution::default()).is_none());
        assert!(ranges("a", "A", "", 900.0, &[]).is_none());
    }

    #[test]
    fn a_single_value_can_be_drawn() {
        let found = uniform(2.0);
        for figure in [
            histogram("a", "A", Area::HALF, &found),
            ranges("a", "A", "", 900.0, &[("one", &found)]),
        ] {
            let drawing = figure.expect("a chart").drawing;
            assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing}");
        }
    }
}
