//! Lines over time or size, and over percentiles.

use std::fmt::Write as _;

use super::figure::{Area, Figure, KINDS, escaped, frame, text_width};
use super::scale::{Axis, Unit};
use crate::report::{Distribution, PhaseReport};

/// More points than pixels would only make the page larger.
const POINTS_MAX: usize = 320;

/// Rows of the table behind a chart.
const ROWS_MAX: usize = 70;

/// A value for each moment, or each size; there may be none.
pub struct Line {
    /// What it is.
    pub name: String,
    /// Seconds since the start (or whatever is across), and the value then.
    pub points: Vec<(f64, Option<f64>)>,
}

/// How several values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The largest: for what must not be smoothed away.
    Most,
    /// The average: for what flows.
    Mean,
}

/// What is across a chart, from zero to the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Across {
    /// Heading of its column in the table.
    name: &'static str,
    /// What its values are.
    unit: Unit,
    /// From the smallest instead, and each step to the right is ten times as much.
    is_log: bool,
    /// Whether there are a few steps, each of which is a dot, and not a course of moments.
    are_steps: bool,
}

impl Across {
    /// Seconds since the start.
    pub const TIME: Across =
        Across { name: "time", unit: Unit::Clock, is_log: false, are_steps: false };

    /// Steps of something that is counted.
    pub const fn steps(name: &'static str) -> Across {
        Across { name, unit: Unit::Count, is_log: false, are_steps: true }
    }

    /// On a logarithmic axis.
    pub const fn log(self) -> Across {
        Across { is_log: true, ..self }
    }

    fn axis(self, values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Axis {
        let most = values.clone().fold(0.0, f64::max).max(1.0);
        match self.is_log {
            true => Axis::log(self.unit, values.fold(most, f64::min), most, from, to),
            false => Axis::linear(self.unit, most, from, to),
        }
    }
}

/// A chart of lines.
pub struct Lines<'a> {
    /// Unique on the page.
    pub id: &'a str,
    /// What is shown.
    pub title: &'a str,
    /// What one should know to read it.
    pub note: &'a str,
    /// What the values are.
    pub unit: Unit,
    /// What is across.
    pub across: Across,
    /// Whether each step up is ten times as much.
    pub is_log: bool,
    /// How moments are taken together where there are more than can be drawn.
    pub reduce: Reduce,
    /// Drawn behind the lines, with their names.
    pub phases: &'a [PhaseReport],
    /// Its measures.
    pub area: Area,
    /// What is drawn.
    pub lines: Vec<Line>,
}

impl Lines<'_> {
    /// The chart; none if there is nothing to draw.
    pub fn figure(&self) -> Option<Figure> {
        let values = || self.lines.iter().flat_map(|line| &line.points).filter_map(|(_, y)| *y);
        let most = values().fold(f64::NEG_INFINITY, f64::max);
        if most == f64::NEG_INFINITY {
            return None;
        }
        let times = self.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
        let (left, right) = self.area.across();
        let (floor, ceiling) = self.area.upwards();
        let x = self.across.axis(times, left, right);
        let y = if self.is_log {
            let least = values().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
            Axis::log(self.unit, least, most, floor, ceiling)
        } else {
            Axis::linear(self.unit, most, floor, ceiling)
        };
        let mut drawing = bands(self.phases, &x, &self.area);
        drawing.push_str(&frame(&self.area, &x, &y));
        let drawn: Vec<Vec<_>> =
            self.lines.iter().map(|line| thinned(&line.points, POINTS_MAX, self.reduce)).collect();
        // What is named first lies on top.
        for (kind, points) in drawn.iter().enumerate().rev() {
            let places = points
                .iter()
                .map(|&(time, value)| value.map(|value| (x.scale.at(time), y.scale.at(value))));
            drawing.push_str(&path(places.clone(), kind));
            if self.across.are_steps {
                places.flatten().for_each(|place| drawing.push_str(&dot(place, kind)));
            }
        }
        drawing.push_str(&self.hovers(&drawn, &x));
        let (headings, rows) = self.table();
        Some(Figure {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            note: self.note.to_owned(),
            legend: self.lines.iter().map(|line| line.name.clone()).collect(),
            drawing,
            size: (self.area.width, self.area.height),
            headings,
            rows,
        })
    }

    /// A strip for each moment, which shows its values when pointed at.
    fn hovers(&self, drawn: &[Vec<(f64, Option<f64>)>], x: &Axis) -> String {
        let mut svg = String::new();
        let Some(longest) = drawn.iter().max_by_key(|points| points.len()) else { return svg };
        let (floor, ceiling) = self.area.upwards();
        let mut from = x.scale.start();
        for (nth, (time, _)) in longest.iter().enumerate() {
            let next = longest
                .get(nth + 1)
                .map_or(x.scale.end(), |(next, _)| (x.scale.at(*time) + x.scale.at(*next)) / 2.0);
            let mut told = self.across.unit.show(*time);
            for (line, points) in self.lines.iter().zip(drawn) {
                if let Some(value) = points.get(nth).and_then(|(_, value)| *value) {
                    let _ = write!(told, "\n{}: {}", line.name, self.unit.show(value));
                }
            }
            let _ = write!(
                svg,
                "<rect class=\"hover\" x=\"{from:.1}\" y=\"{ceiling}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{}</title></rect>",
                (next - from).max(0.0),
                floor - ceiling,
                escaped(&told)
            );
            from = next;
        }
        svg
    }

    fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut headings = vec![self.across.name.to_owned()];
        headings.extend(self.lines.iter().map(|line| line.name.clone()));
        let thin: Vec<_> =
            self.lines.iter().map(|line| thinned(&line.points, ROWS_MAX, self.reduce)).collect();
        let Some(longest) = thin.iter().max_by_key(|points| points.len()) else {
            return (headings, Vec::new());
        };
        let rows = longest.iter().enumerate().map(|(nth, (time, _))| {
            let values = thin.iter().map(|points| {
                let value = points.get(nth).and_then(|(_, value)| *value);
                throng_units::format::or_absent(value, |value| self.unit.show(value))
            });
            std::iter::once(self.across.unit.show(*time)).chain(values).collect()
        });
        (headings, rows.collect())
    }
}

/// Percentile curves of one or more distributions: the further right, the rarer.
pub fn percentile_curve(
    id: &str,
    title: &str,
    area: Area,
    distributions: &[(String, &Distribution)],
) -> Option<Figure> {
    let drawn: Vec<_> = distributions
        .iter()
        .map(|(name, distribution)| (name, distribution, distribution.tail()))
        .filter(|(_, _, tail)| !tail.is_empty())
        .collect();
    let count = drawn.iter().map(|(_, distribution, _)| distribution.count).max()?;
    let most = drawn.iter().map(|(_, distribution, _)| distribution.max).fold(0.0, f64::max);
    let least = drawn.iter().map(|(_, distribution, _)| distribution.min);
    let (left, right) = area.across();
    let (floor, ceiling) = area.upwards();
    let x = Axis::percentiles(count, left, right);
    let y = Axis::log(
        Unit::Milliseconds,
        least.fold(f64::INFINITY, f64::min).max(1e-3),
        most,
        floor,
        ceiling,
    );
    let mut drawing = frame(&area, &x, &y);
    let mut rows = Vec::new();
    for (kind, (name, distribution, tail)) in drawn.iter().enumerate().rev() {
        let start = (1.0, distribution.min);
        let places = std::iter::once(&start).chain(tail);
        drawing.push_str(&path(
            places.map(|&(above, ms)| Some((x.scale.at(above), y.scale.at(ms)))),
            kind,
        ));
        let Distribution { p50, p90, p99, p999, max, .. } = distribution;
        let cells = [*p50, *p90, *p99, *p999, *max].map(|ms| Unit::Milliseconds.show(ms));
        rows.insert(0, std::iter::once((*name).clone()).chain(cells).collect());
    }
    Some(Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        note: "Each step to the right is ten times as rare.".to_owned(),
        legend: drawn.iter().map(|(name, ..)| (*name).clone()).collect(),
        drawing,
        size: (area.width, area.height),
        headings: ["of", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned).to_vec(),
        rows,
    })
}

/// Phases as strips behind the lines, named where there is room.
fn bands(phases: &[PhaseReport], x: &Axis, area: &Area) -> String {
    let (floor, ceiling) = area.upwards();
    let mut svg = String::new();
    for (nth, phase) in phases.iter().enumerate() {
        let (from, to) = (x.scale.at(phase.from_s), x.scale.at(phase.to_s));
        let name = escaped(&phase.name);
        let _ = write!(
            svg,
            "<rect class=\"band b{}\" x=\"{from:.1}\" y=\"{ceiling}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{name}</title></rect>",
            nth % 2,
            (to - from).max(0.0),
            floor - ceiling
        );
        if text_width(&phase.name) + 8.0 <= to - from {
            let _ = write!(
                svg,
                "<text class=\"phase\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
                from + 4.0,
                ceiling - 7.0
            );
        }
    }
    svg
}

/// A line through the places; it is interrupted where there is none.
fn path(places: impl Iterator<Item = Option<(f64, f64)>>, kind: usize) -> String {
    let mut data = String::new();
    let mut lone = String::new();
    let mut run = 0;
    let mut last = (0.0, 0.0);
    for place in places.chain([None]) {
        match place {
            Some((x, y)) => {
                let letter = if run == 0 { 'M' } else { 'L' };
                let _ = write!(data, "{letter}{x:.1} {y:.1}");
                run += 1;
                last = (x, y);
            }
            None => {
                // A line through one point would not be seen.
                if run == 1 {
                    lone.push_str(&dot(last, kind));
                }
                run = 0;
            }
        }
    }
    format!("<path class=\"line k{}\" d=\"{data}\"/>{lone}", kind % KINDS)
}

fn dot((x, y): (f64, f64), kind: usize) -> String {
    let kind = kind % KINDS;
    format!("<circle class=\"dot k{kind}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>")
}

/// At most so many points, each standing for as many seconds as the others.
fn thinned(points: &[(f64, Option<f64>)], most: usize, reduce: Reduce) -> Vec<(f64, Option<f64>)> {
    let group = points.len().div_ceil(most).max(1);
    let groups = points.chunks(group).map(|group| {
        let values = || group.iter().filter_map(|(_, value)| *value);
        let count = values().count();
        let value = match reduce {
            _ if count == 0 => None,
            Reduce::Most => values().reduce(f64::max),
            Reduce::Mean => Some(values().sum::<f64>() / count as f64),
        };
        (group.last().map_or(0.0, |(time, _)| *time), value)
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Lines<'static> {
        Lines {
            id: "a",
            title: "A",
            note: "",
            unit: Unit::Count,
            across: Across::TIME,
            is_log: false,
            reduce: Reduce::Most,
            phases: &[],
            area: Area::WIDE,
            lines: Vec::new(),
        }
    }

    fn chart(points: Vec<(f64, Option<f64>)>) -> Option<Figure> {
        Lines { lines: vec![Line { name: "<a>".to_owned(), points }], ..empty() }.figure()
    }

    #[test]
    fn nothing_measured_is_no_chart() {
        assert!(chart(Vec::new()).is_none());
        assert!(chart(vec![(1.0, None)]).is_none());
        assert!(percentile_curve("a", "A", Area::HALF, &[]).is_none());
        let empty = Distribution::default();
        assert!(percentile_curve("a", "A", Area::HALF, &[(String::new(), &empty)]).is_none());
    }

    #[test]
    fn steps_are_dots_and_may_be_on_a_logarithmic_axis() {
        let chart = |across| {
            let points = [1e3, 1e4, 1e6].map(|x| (x, Some(x / 1e3)));
            let line = Line { name: "a".to_owned(), points: points.to_vec() };
            let unit = Unit::Milliseconds;
            let lines = Lines { across, unit, lines: vec![line], ..empty() };
            lines.figure().expect("a chart").drawing
        };
        let at = |drawing: &str| -> Vec<f64> {
            let places = drawing.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next());
            places.filter_map(|place| place.parse().ok()).collect()
        };
        let (left, right) = Area::WIDE.across();
        let third = (right - left) / 3.0;
        let log = at(&chart(Across::steps("clients").log()));
        let due = [left, left + third, right];
        assert!(log.iter().zip(due).all(|(found, due)| (found - due).abs() < 0.1), "{log:?}");
        let linear = at(&chart(Across::steps("clients")));
        assert!(linear[1] < left + third / 10.0 && linear[2] == right, "{linear:?}");
        assert!(at(&chart(Across::TIME)).is_empty());
        // All steps are the same one if there is one client.
        let line = Line { name: "a".to_owned(), points: vec![(1.0, Some(1.0)); 2] };
        let across = Across::steps("clients").log();
        assert!(Lines { across, lines: vec![line], ..empty() }.figure().is_some());
    }

    #[test]
    fn what_is_missing_interrupts_the_line() {
        let points =
            vec![(1.0, Some(1.0)), (2.0, None), (3.0, Some(1.0)), (4.0, Some(2.0)), (5.0, None)];
        let figure = chart(points).expect("a chart");
        assert_eq!(figure.drawing.matches("<circle").count(), 1);
        let start = figure.drawing.find("class=\"line").expect("a line");
        assert_eq!(figure.drawing[start..].matches('M').count(), 2);
        assert_eq!(figure.rows[1], ["0:02", "–"]);
        assert!(!figure.render().contains("<a>"));
    }

    #[test]
    fn a_long_run_is_thinned_and_keeps_its_peak() {
        let points = (0..86_400).map(|at| {
            let value = if at == 40_000 { 99.0 } else { 1.0 };
            (f64::from(at), Some(value))
        });
        let points: Vec<_> = points.collect();
        let most = thinned(&points, POINTS_MAX, Reduce::Most);
        assert!(most.len() <= POINTS_MAX);
        assert_eq!(most.iter().filter(|(_, value)| *value == Some(99.0)).count(), 1);
        let mean = thinned(&points, 10, Reduce::Mean);
        assert!(mean.iter().all(|(_, value)| value.is_some_and(|value| value < 1.1)));
        assert_eq!(thinned(&points[..5], 10, Reduce::Mean), points[..5]);
    }
}
