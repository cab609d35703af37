//! A chart with everything that belongs to it: title, note, legend, drawing, and the table behind
//! it for those who do not see the drawing or want its numbers.

use std::fmt::Write as _;

use super::scale::Axis;
use crate::report::page::scrolls;

/// Colours and dashes that the style sheet knows.
pub const KINDS: usize = 6;

/// A drawing of these measures, in pixels at full size.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    /// Of the whole drawing.
    pub width: f64,
    /// Of the whole drawing.
    pub height: f64,
    /// Room for the names beside the vertical axis.
    pub left: f64,
    /// Room on the right.
    pub right: f64,
    /// Room above.
    pub top: f64,
    /// Room for the names below the horizontal axis.
    pub bottom: f64,
}

impl Area {
    /// Across the page.
    pub const WIDE: Area =
        Area { width: 960.0, height: 270.0, left: 66.0, right: 14.0, top: 24.0, bottom: 28.0 };
    /// Two beside each other.
    pub const HALF: Area =
        Area { width: 470.0, height: 270.0, left: 60.0, right: 16.0, top: 16.0, bottom: 28.0 };

    /// Left and right edges of what is drawn in.
    pub fn across(&self) -> (f64, f64) {
        (self.left, self.width - self.right)
    }

    /// Lower and upper edges of what is drawn in: values grow upwards.
    pub fn upwards(&self) -> (f64, f64) {
        (self.height - self.bottom, self.top)
    }
}

/// A chart.
#[derive(Debug, Default)]
pub struct Figure {
    /// Unique on the page.
    pub id: String,
    /// What is shown.
    pub title: String,
    /// What one should know to read it; may be empty.
    pub note: String,
    /// Names of the lines; each is drawn in the colour and dash of its place.
    pub legend: Vec<String>,
    /// What is drawn, as SVG elements.
    pub drawing: String,
    /// Width and height of the drawing.
    pub size: (f64, f64),
    /// Headings of the table behind the chart.
    pub headings: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl Figure {
    /// The chart as HTML.
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
            for (kind, name) in self.legend.iter().enumerate() {
                let _ = write!(
                    html,
                    "<li><svg width=\"26\" height=\"10\"><line class=\"line k{}\" x1=\"1\" \
                     y1=\"5\" x2=\"25\" y2=\"5\"/></svg>{}</li>",
                    kind % KINDS,
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
            scrolls("drawing", &escaped(title)),
            escaped(title),
            escaped(&self.description()),
            self.drawing
        );
        if !self.rows.is_empty() {
            let label = format!("Numbers: {}", escaped(title));
            let _ = write!(
                html,
                "<details class=\"chart-numbers\"><summary>The numbers</summary><div {}>",
                scrolls("scroll", &label)
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

/// A table; the first column names its rows.
pub fn table<H: AsRef<str>>(headings: &[H], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<table><thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(heading.as_ref()));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = match column {
                0 => write!(html, "<th scope=\"row\">{cell}</th>"),
                _ => write!(html, "<td>{cell}</td>"),
            };
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    html
}

/// Grid lines and the names beside them.
pub fn frame(area: &Area, x: &Axis, y: &Axis) -> String {
    let (left, right) = area.across();
    let (floor, _) = area.upwards();
    let mut svg = String::new();
    for (value, name) in &y.ticks {
        let at = y.scale.at(*value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
             <text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 8.0,
            at + 4.0,
            escaped(name)
        );
    }
    let mut free_from = f64::NEG_INFINITY;
    for (value, name) in &x.ticks {
        let at = x.scale.at(*value);
        let half = text_width(name) / 2.0;
        // The last names of a logarithmic scale may be too close to each other.
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
            escaped(name)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{left}\" y1=\"{floor}\" x2=\"{right}\" y2=\"{floor}\"/>"
    );
    svg
}

/// About so many pixels, at most, in the letters of a drawing: in print they are larger.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.2
}

/// Text as it may stand in HTML, in elements and in attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // What may not stand in a page at all.
            control if control.is_control() && control != '\n' => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_write_no_html() {
        assert_eq!(
            escaped("<img src='x' onerror=\"a\">&\0"),
            "&lt;img src=&#39;x&#39; onerror=&quot;a&quot;&gt;&amp;\u{fffd}"
        );
        let html = table(&["<b>"], &[vec!["<i>".to_owned(), "<u>".to_owned()]]);
        for wrong in ["<b>", "<i>", "<u>"] {
            assert!(!html.contains(wrong));
        }
    }

    #[test]
    fn a_chart_can_be_read_without_being_seen() {
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
