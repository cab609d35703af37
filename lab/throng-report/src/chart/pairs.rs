//! Two values of each thing, side by side on a logarithmic axis.

use std::fmt::Write as _;

use throng_units::format::or_absent;

use super::axis::Axis;
use super::figure::{Area, Figure, row_axes, text_width};
use crate::html::escaped;
use crate::unit::Unit;

/// Width of the values beside the plot, in pixels.
const VALUES_WIDTH: f64 = 190.0;

/// Largest share of the drawing's width for the names.
const NAMES_SHARE_MAX: f64 = 0.42;

/// Two values of one thing, in the chart's unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Name of the row.
    pub name: String,
    /// The first value, if it was measured.
    pub one: Option<f64>,
    /// The second value, if it was measured.
    pub other: Option<f64>,
}

/// A chart of pairs.
pub struct Pairs<'a> {
    /// As in [`Figure::id`].
    pub id: &'a str,
    /// As in [`Figure::title`].
    pub title: &'a str,
    /// As in [`Figure::note`].
    pub note: &'a str,
    /// Unit of the values.
    pub unit: Unit,
    /// Names of the first and the second values.
    pub names: [&'a str; 2],
    /// Width of the drawing, in pixels.
    pub width: f64,
    /// The rows, from top to bottom.
    pub pairs: Vec<Pair>,
}

impl Pairs<'_> {
    /// The chart; `None` if no value is above zero.
    pub fn figure(&self) -> Option<Figure> {
        let values = || self.pairs.iter().flat_map(|pair| [pair.one, pair.other]).flatten();
        let drawable = || values().filter(|value| value.is_finite() && *value > 0.0);
        let max = drawable().reduce(f64::max)?;
        let min = drawable().fold(f64::INFINITY, f64::min);
        let area = self.area();
        let (left, right) = area.horizontal();
        let x = Axis::log(self.unit, min, max, left, right);
        let mut drawing = row_axes(&area, &x);
        for (index, pair) in self.pairs.iter().enumerate() {
            drawing.push_str(&self.row(pair, area.row_middle(index), &area, &x));
        }
        let show = |value| or_absent(value, |value| self.unit.show(value));
        let rows =
            self.pairs.iter().map(|pair| vec![pair.name.clone(), show(pair.one), show(pair.other)]);
        Some(Figure {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            note: self.note.to_owned(),
            legend: self.names.map(str::to_owned).to_vec(),
            drawing,
            size: (area.width, area.height),
            headings: ["measurement", self.names[0], self.names[1]].map(str::to_owned).to_vec(),
            rows: rows.collect(),
        })
    }

    fn area(&self) -> Area {
        let names = self.pairs.iter().map(|pair| text_width(&pair.name)).fold(0.0, f64::max);
        let left = (names + 20.0).min(self.width * NAMES_SHARE_MAX);
        Area::of_rows(self.pairs.len(), self.width, left, VALUES_WIDTH)
    }

    /// One row: the name, both values as connected dots, and both as text.
    fn row(&self, pair: &Pair, middle: f64, area: &Area, x: &Axis) -> String {
        let (left, right) = area.horizontal();
        let place = |value: Option<f64>| {
            value.filter(|value| value.is_finite() && *value > 0.0).map(|value| x.scale.at(value))
        };
        let (one, other) = (place(pair.one), place(pair.other));
        let show = |value| or_absent(value, |value| self.unit.show(value));
        let text = format!("{} / {}", show(pair.one), show(pair.other));
        let mut svg = format!(
            "<text class=\"row end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 10.0,
            middle + 4.0,
            escaped(&fitting(&pair.name, left - 12.0)),
        );
        if let (Some(one), Some(other)) = (one, other) {
            let (from, to) = (one.min(other), one.max(other));
            let _ = write!(
                svg,
                "<line class=\"whisker\" x1=\"{from:.1}\" y1=\"{middle}\" x2=\"{to:.1}\" \
                 y2=\"{middle}\"/>"
            );
        }
        // The first value is drawn last, on top.
        for (style, at) in [(1, other), (0, one)] {
            let Some(at) = at else { continue };
            let _ = write!(
                svg,
                "<circle class=\"dot k{style}\" cx=\"{at:.1}\" cy=\"{middle}\" r=\"5\"/>"
            );
        }
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            right + 12.0,
            middle + 4.0,
            escaped(&text)
        );
        svg
    }
}

/// The name, shortened to fit `width` pixels.
fn fitting(name: &str, width: f64) -> String {
    if text_width(name) <= width {
        return name.to_owned();
    }
    let letters = name.chars().count();
    let kept = (0..letters)
        .rev()
        .map(|kept| name.chars().take(kept).chain(['…']).collect::<String>())
        .find(|shorter| text_width(shorter) <= width);
    kept.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(pairs: &[(Option<f64>, Option<f64>)]) -> Option<Figure> {
        let pair = |&(one, other): &(Option<f64>, Option<f64>)| Pair {
            name: "<memory> of a subscriber with a name that is far too long to be shown"
                .to_owned(),
            one,
            other,
        };
        Pairs {
            id: "a",
            title: "A",
            note: "",
            unit: Unit::Bytes,
            names: ["ours", "published"],
            width: 600.0,
            pairs: pairs.iter().map(pair).collect(),
        }
        .figure()
    }

    #[test]
    fn every_measured_value_is_drawn() {
        let figure = chart(&[(Some(100.0), Some(46_080.0)), (None, Some(7.0)), (Some(0.0), None)]);
        let figure = figure.expect("a chart");
        assert_eq!(figure.drawing.matches("<circle").count(), 3);
        assert_eq!(figure.drawing.matches("whisker").count(), 1);
        assert_eq!(figure.rows[0][1..], ["100 B", "45.0 KiB"]);
        assert_eq!(figure.rows[1][1], "–");
        assert!(figure.drawing.contains('…') && !figure.drawing.contains("<memory>"));
        assert!(!figure.drawing.contains("NaN") && !figure.drawing.contains("inf"));
    }

    #[test]
    fn without_values_there_is_no_chart() {
        assert!(chart(&[]).is_none());
        assert!(chart(&[(None, None), (Some(0.0), Some(f64::NAN))]).is_none());
    }
}
