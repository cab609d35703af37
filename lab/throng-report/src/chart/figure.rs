//! A chart as an HTML figure: title, note, legend, SVG drawing, and its numbers as a table, which
//! screen readers use instead of the drawing.

use std::fmt::Write as _;

use super::axis::Axis;
use crate::html::{escaped, scroll_attributes, table};

/// The number of line styles in the style sheet (`k0`, `k1` …).
pub(super) const LINE_STYLES: usize = 6;

/// The height of a row, in pixels.
const ROW_HEIGHT: f64 = 34.0;

/// The size and margins of a drawing, in pixels at full size.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    /// Width of the whole drawing.
    pub width: f64,
    /// Height of the whole drawing.
    pub height: f64,
    /// Left margin, which holds the labels of the vertical axis.
    pub left: f64,
    /// Right margin, for values beside the plot.
    pub right: f64,
    /// Top margin, for names of bands.
    pub top: f64,
    /// Bottom margin, which holds the labels of the horizontal axis.
    pub bottom: f64,
}

impl Area {
    /// The full width of the page.
    pub const WIDE: Area =
        Area { width: 960.0, height: 270.0, left: 66.0, right: 14.0, top: 24.0, bottom: 28.0 };
    /// Half the width, for two side by side.
    pub const HALF: Area =
        Area { width: 470.0, height: 270.0, left: 60.0, right: 16.0, top: 16.0, bottom: 28.0 };

    /// The area of a chart with one row for each thing, with margins for names and for values.
    pub(super) fn of_rows(rows: usize, width: f64, left: f64, right: f64) -> Area {
        let height = 40.0 + ROW_HEIGHT * rows as f64;
        Area { width, height, left, right, top: 8.0, bottom: 28.0 }
    }

    /// The middle of a row of [such an area](Self::of_rows).
    pub(super) fn row_middle(&self, row: usize) -> f64 {
        self.top + ROW_HEIGHT * (row as f64 + 0.5)
    }

    /// Left and right edges of the plot.
    pub(super) fn horizontal(&self) -> (f64, f64) {
        (self.left, self.width - self.right)
    }

    /// Bottom and top edges of the plot, in this order: values grow upwards.
    pub(super) fn vertical(&self) -> (f64, f64) {
        (self.height - self.bottom, self.top)
    }
}

/// A chart, ready to render.
#[derive(Debug, Default)]
pub struct Figure {
    /// The element's id, unique on the page.
    pub id: String,
    /// The heading of the chart.
    pub title: String,
    /// How to read the chart; may be empty.
    pub note: String,
    /// Names of the lines; the position selects the line style.
    pub legend: Vec<String>,
    /// The drawing: SVG elements.
    pub drawing: String,
    /// Width and height of the drawing.
    pub size: (f64, f64),
    /// Column headings of the table of numbers.
    pub headings: Vec<String>,
    /// Rows of the table of numbers.
    pub rows: Vec<Vec<String>>,
}

impl Figure {
    /// Renders the chart as an HTML `<figure>`.
    pub fn render(&self) -> String {
        let Figure { id, title, note, .. } = self;
        let (width, height) = self.size;
        let mut html = format!("<figure id=\"{id}\"><figcaption><h3>{}</h3>", escaped(title));
        if !note.is_empty() {
            let _ = write!(html, "<p>{}</p>", escaped(note));
        }
        html.push_str("</figcaption>");
        if self.legend.len() > 1 {
            html.push_str("<ul class=\"legend\" aria-hidden=\"true\">");
            for (style, name) in self.legend.iter().enumerate() {
                let _ = write!(
                    html,
                    "<li><svg width=\"26\" height=\"10\"><line class=\"line k{}\" x1=\"1\" \
                     y1=\"5\" x2=\"25\" y2=\"5\"/></svg>{}</li>",
                    style % LINE_STYLES,
                    escaped(name)
                );
            }
            html.push_str("</ul>");
        }
        let _ = write!(
            html,
            "<p class=\"hint\">Scroll the chart sideways to see all of it.</p>\
             <div {}><svg viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" \
             role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}\
             </title><desc id=\"{id}-d\">{}</desc>{}</svg></div>",
            scroll_attributes("drawing", title),
            escaped(title),
            escaped(&self.description()),
            self.drawing
        );
        if !self.rows.is_empty() {
            let label = format!("Numbers: {title}");
            let _ = write!(
                html,
                "<details class=\"chart-numbers\"><summary>The numbers</summary><div {}>",
                scroll_attributes("scroll", &label)
            );
            html.push_str(&table(&self.headings, &self.rows));
            html.push_str("</div></details>");
        }
        html.push_str("</figure>\n");
        html
    }

    fn description(&self) -> String {
        let lines = if self.legend.is_empty() {
            String::new()
        } else {
            format!("Shown: {}. ", self.legend.join(", "))
        };
        format!("{lines}The numbers are in the table below the chart.")
    }
}

/// Axes with grid lines and labels.
pub(super) fn axes(area: &Area, x: &Axis, y: &Axis) -> String {
    let (left, right) = area.horizontal();
    let (floor, _) = area.vertical();
    let mut svg = String::new();
    for (value, label) in &y.ticks {
        let at = y.scale.at(*value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
             <text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 8.0,
            at + 4.0,
            escaped(label)
        );
    }
    let mut free_from = f64::NEG_INFINITY;
    for (value, label) in &x.ticks {
        let at = x.scale.at(*value);
        let half = text_width(label) / 2.0;
        // Labels at the end of a logarithmic axis may overlap.
        if at - half < free_from {
            continue;
        }
        free_from = at + half + 8.0;
        let _ = write!(
            svg,
            "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{floor}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>\
             <text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            floor + 4.0,
            at.min(area.width - half - 1.0),
            floor + 18.0,
            escaped(label)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{left}\" y1=\"{floor}\" x2=\"{right}\" y2=\"{floor}\"/>"
    );
    svg
}

/// The axis below a chart of rows, with vertical grid lines.
pub(super) fn row_axes(area: &Area, x: &Axis) -> String {
    let (floor, ceiling) = area.vertical();
    let mut svg = String::new();
    for (value, _) in &x.ticks {
        let at = x.scale.at(*value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{ceiling}\" x2=\"{at:.1}\" y2=\"{floor}\"/>"
        );
    }
    svg + &axes(area, x, &Axis { scale: x.scale, ticks: Vec::new() })
}

/// An upper bound of the text's width in pixels; print uses larger letters than the screen.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_title_and_numbers_for_screen_readers() {
        let figure = Figure {
            id: "a".to_owned(),
            title: "Connections".to_owned(),
            legend: vec!["active".to_owned(), "closed".to_owned()],
            headings: vec!["time".to_owned(), "active".to_owned()],
            rows: vec![vec!["0:01".to_owned(), "7".to_owned()]],
            ..Figure::default()
        };
        let html = figure.render();
        assert!(html.contains("aria-labelledby=\"a-t a-d\""));
        assert!(html.contains("<title id=\"a-t\">Connections</title>"));
        assert!(html.contains("<td>7</td>"));
    }
}
