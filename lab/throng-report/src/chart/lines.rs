//! Lines over time or size.

use std::fmt::Write as _;

use throng_units::format::or_absent;

use super::axis::Axis;
use super::figure::{Area, Figure, LINE_STYLES, axes, text_width};
use crate::html::escaped;
use crate::unit::Unit;

/// Points per line: more than this would only make the page larger.
const POINTS_MAX: usize = 320;

/// Rows of the table of numbers.
const ROWS_MAX: usize = 70;

/// Values over time or size.
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// X (seconds since the start, or a size) and the value there, if it was measured.
    pub points: Vec<(f64, Option<f64>)>,
}

impl Line {
    /// Whether the line has a value.
    fn is_measured(&self) -> bool {
        self.points.iter().any(|(_, value)| value.is_some())
    }
}

/// How several points are merged into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The maximum, which keeps peaks.
    Max,
    /// The mean, for rates.
    Mean,
}

/// The horizontal axis, from zero to the largest x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XAxis {
    /// Column heading in the table of numbers.
    name: &'static str,
    /// Unit of x.
    unit: Unit,
    /// Logarithmic, from the smallest x.
    is_log: bool,
    /// Whether the points are few separate steps, each drawn as a dot.
    is_stepped: bool,
}

impl XAxis {
    /// Seconds since the start.
    pub const TIME: XAxis =
        XAxis { name: "time", unit: Unit::Clock, is_log: false, is_stepped: false };

    /// A few sizes, counted in things called `name`.
    pub const fn steps(name: &'static str) -> XAxis {
        XAxis { name, unit: Unit::Count, is_log: false, is_stepped: true }
    }

    /// The same, logarithmic.
    pub const fn log(self) -> XAxis {
        XAxis { is_log: true, ..self }
    }

    fn axis(self, values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Axis {
        let max = values.clone().fold(0.0, f64::max).max(1.0);
        if self.is_log {
            Axis::log(self.unit, values.fold(max, f64::min), max, from, to)
        } else {
            Axis::linear(self.unit, max, from, to)
        }
    }
}

/// A time span that is drawn as a strip behind the lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Shown at the top of the strip if it fits.
    pub name: String,
    /// First and last x.
    pub span: (f64, f64),
}

/// A chart of lines.
pub struct Lines<'a> {
    /// As in [`Figure::id`].
    pub id: &'a str,
    /// As in [`Figure::title`].
    pub title: &'a str,
    /// As in [`Figure::note`].
    pub note: &'a str,
    /// Unit of the values.
    pub unit: Unit,
    /// The horizontal axis.
    pub x_axis: XAxis,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
    /// How points are merged where there are too many to draw.
    pub reduce: Reduce,
    /// Strips behind the lines.
    pub bands: &'a [Band],
    /// Size of the drawing.
    pub area: Area,
    /// The lines; the first one is drawn on top.
    pub lines: Vec<Line>,
}

impl<'a> Lines<'a> {
    /// A chart over the time of a run: linear, as wide as the page, without a note and bands. Lines
    /// without a value are left out.
    pub fn over_time(id: &'a str, title: &'a str, unit: Unit, lines: Vec<Line>) -> Lines<'a> {
        Lines {
            id,
            title,
            note: "",
            unit,
            x_axis: XAxis::TIME,
            is_log: false,
            reduce: Reduce::Max,
            bands: &[],
            area: Area::WIDE,
            lines: lines.into_iter().filter(Line::is_measured).collect(),
        }
    }

    /// The chart; `None` if no value was measured.
    pub fn figure(&self) -> Option<Figure> {
        let values = || self.lines.iter().flat_map(|line| &line.points).filter_map(|(_, y)| *y);
        let max = values().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            return None;
        }
        let times = self.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
        let (left, right) = self.area.horizontal();
        let (floor, ceiling) = self.area.vertical();
        let x = self.x_axis.axis(times, left, right);
        let y = if self.is_log {
            let min = values().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
            Axis::log(self.unit, min, max, floor, ceiling)
        } else {
            Axis::linear(self.unit, max, floor, ceiling)
        };
        let mut drawing = bands(self.bands, &x, &self.area);
        drawing.push_str(&axes(&self.area, &x, &y));
        let drawn: Vec<Vec<_>> =
            self.lines.iter().map(|line| thinned(&line.points, POINTS_MAX, self.reduce)).collect();
        // In reverse, so that the first line is on top.
        for (style, points) in drawn.iter().enumerate().rev() {
            let places = points
                .iter()
                .map(|&(time, value)| value.map(|value| (x.scale.at(time), y.scale.at(value))));
            drawing.push_str(&path(places.clone(), style));
            if self.x_axis.is_stepped {
                places.flatten().for_each(|place| drawing.push_str(&dot(place, style)));
            }
        }
        drawing.push_str(&self.tooltips(&drawn, &x));
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

    /// An invisible strip for each x; its tooltip shows the values there.
    fn tooltips(&self, drawn: &[Vec<(f64, Option<f64>)>], x: &Axis) -> String {
        let mut svg = String::new();
        let Some(longest) = drawn.iter().max_by_key(|points| points.len()) else { return svg };
        let (floor, ceiling) = self.area.vertical();
        let mut from = x.scale.start();
        for (index, (time, _)) in longest.iter().enumerate() {
            let next = longest
                .get(index + 1)
                .map_or(x.scale.end(), |(next, _)| (x.scale.at(*time) + x.scale.at(*next)) / 2.0);
            let mut text = self.x_axis.unit.show(*time);
            for (line, points) in self.lines.iter().zip(drawn) {
                if let Some(value) = points.get(index).and_then(|(_, value)| *value) {
                    let _ = write!(text, "\n{}: {}", line.name, self.unit.show(value));
                }
            }
            let _ = write!(
                svg,
                "<rect class=\"hover\" x=\"{from:.1}\" y=\"{ceiling}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{}</title></rect>",
                (next - from).max(0.0),
                floor - ceiling,
                escaped(&text)
            );
            from = next;
        }
        svg
    }

    fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut headings = vec![self.x_axis.name.to_owned()];
        headings.extend(self.lines.iter().map(|line| line.name.clone()));
        let thin: Vec<_> =
            self.lines.iter().map(|line| thinned(&line.points, ROWS_MAX, self.reduce)).collect();
        let Some(longest) = thin.iter().max_by_key(|points| points.len()) else {
            return (headings, Vec::new());
        };
        let rows = longest.iter().enumerate().map(|(index, (time, _))| {
            let values = thin.iter().map(|points| {
                let value = points.get(index).and_then(|(_, value)| *value);
                or_absent(value, |value| self.unit.show(value))
            });
            std::iter::once(self.x_axis.unit.show(*time)).chain(values).collect()
        });
        (headings, rows.collect())
    }
}

/// Strips behind the lines, labelled where the name fits.
fn bands(bands: &[Band], x: &Axis, area: &Area) -> String {
    let (floor, ceiling) = area.vertical();
    let mut svg = String::new();
    for (index, band) in bands.iter().enumerate() {
        let (from, to) = (x.scale.at(band.span.0), x.scale.at(band.span.1));
        let name = escaped(&band.name);
        let _ = write!(
            svg,
            "<rect class=\"band b{}\" x=\"{from:.1}\" y=\"{ceiling}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{name}</title></rect>",
            index % 2,
            (to - from).max(0.0),
            floor - ceiling
        );
        if text_width(&band.name) + 8.0 <= to - from {
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

/// A polyline; a `None` interrupts it.
pub(super) fn path(places: impl Iterator<Item = Option<(f64, f64)>>, style: usize) -> String {
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
                // A line through a single point is invisible.
                if run == 1 {
                    lone.push_str(&dot(last, style));
                }
                run = 0;
            }
        }
    }
    format!("<path class=\"line k{}\" d=\"{data}\"/>{lone}", style % LINE_STYLES)
}

fn dot((x, y): (f64, f64), style: usize) -> String {
    let style = style % LINE_STYLES;
    format!("<circle class=\"dot k{style}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>")
}

/// Merges neighbouring points, equally many each, so that at most `max` remain.
fn thinned(points: &[(f64, Option<f64>)], max: usize, reduce: Reduce) -> Vec<(f64, Option<f64>)> {
    let group = points.len().div_ceil(max).max(1);
    let groups = points.chunks(group).map(|group| {
        let values = || group.iter().filter_map(|(_, value)| *value);
        let count = values().count();
        let value = match reduce {
            _ if count == 0 => None,
            Reduce::Max => values().reduce(f64::max),
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
        Lines::over_time("a", "A", Unit::Count, Vec::new())
    }

    fn chart(points: Vec<(f64, Option<f64>)>) -> Option<Figure> {
        Lines { lines: vec![Line { name: "<a>".to_owned(), points }], ..empty() }.figure()
    }

    #[test]
    fn without_values_there_is_no_chart() {
        assert!(chart(Vec::new()).is_none());
        assert!(chart(vec![(1.0, None)]).is_none());
    }

    #[test]
    fn steps_are_drawn_as_dots_on_either_axis() {
        let chart = |x_axis| {
            let points = [1e3, 1e4, 1e6].map(|x| (x, Some(x / 1e3)));
            let line = Line { name: "a".to_owned(), points: points.to_vec() };
            let unit = Unit::Milliseconds;
            let lines = Lines { x_axis, unit, lines: vec![line], ..empty() };
            lines.figure().expect("a chart").drawing
        };
        let at = |drawing: &str| -> Vec<f64> {
            let places = drawing.split("cx=\"").skip(1).filter_map(|rest| rest.split('"').next());
            places.filter_map(|place| place.parse().ok()).collect()
        };
        let (left, right) = Area::WIDE.horizontal();
        let third = (right - left) / 3.0;
        let log = at(&chart(XAxis::steps("clients").log()));
        let expected = [left, left + third, right];
        assert!(
            log.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.1),
            "{log:?}"
        );
        let linear = at(&chart(XAxis::steps("clients")));
        assert!(linear[1] < left + third / 10.0 && linear[2] == right, "{linear:?}");
        assert!(at(&chart(XAxis::TIME)).is_empty());
        // All steps are the same one if there is one client.
        let line = Line { name: "a".to_owned(), points: vec![(1.0, Some(1.0)); 2] };
        let x_axis = XAxis::steps("clients").log();
        assert!(Lines { x_axis, lines: vec![line], ..empty() }.figure().is_some());
    }

    #[test]
    fn a_missing_value_interrupts_the_line() {
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
        let peaks = thinned(&points, POINTS_MAX, Reduce::Max);
        assert!(peaks.len() <= POINTS_MAX);
        assert_eq!(peaks.iter().filter(|(_, value)| *value == Some(99.0)).count(), 1);
        let mean = thinned(&points, 10, Reduce::Mean);
        assert!(mean.iter().all(|(_, value)| value.is_some_and(|value| value < 1.1)));
        assert_eq!(thinned(&points[..5], 10, Reduce::Mean), points[..5]);
    }
}
