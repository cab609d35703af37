//! Comparisons as tables, for terminals and as HTML.

use std::fmt::Write as _;

use throng_units::format::{self, ABSENT};
use throng_units::paint::{Ink, Paint, sanitized};

use super::measure::NOISE;
use super::{Comparison, ComparisonRow, Verdict};
use crate::grid::Grid;
use crate::html::{escaped, note, scroll_attributes};

/// Below every comparison.
const FOOTNOTE: &str = "Ratios are to the first. ± is half the range: of the runs; of a single \
     run that of its seconds or publishes, or 10 % where it shows none. At least 2.5 % are \
     assumed. A difference within the ranges of both sides is no win.";

impl ComparisonRow {
    /// The value of a side with its range, or a dash.
    pub fn text(&self, side: usize) -> String {
        let Some(Some(value)) = self.values.get(side) else { return ABSENT.to_owned() };
        let text = (self.show)(value.median);
        let half_range = (value.high - value.low) / 2.0 / value.median.abs();
        // A range that is only the assumed noise is not shown.
        if !half_range.is_finite() || half_range <= NOISE * 1.01 {
            return text;
        }
        format!("{text} ±{:.0}%", half_range * 100.0)
    }

    /// The ratio of a side to the first, or a dash.
    pub fn ratio_text(&self, side: usize) -> String {
        format::or_absent(self.ratio(side), |ratio| format!("{ratio:.2}×"))
    }
}

/// The comparison for a terminal.
pub fn table<R>(comparison: &Comparison<R>, paint: Paint) -> String {
    let mut text = String::from("\n");
    for warning in &comparison.warnings {
        let _ = writeln!(text, "{} {}", paint.ink(Ink::WARNING, "warning:"), sanitized(warning));
    }
    let mut grid = Grid::new(headings(comparison).iter().map(|name| sanitized(name)), paint);
    for row in &comparison.rows {
        let mut cells = vec![row.name.to_owned()];
        for side in 0..comparison.sides.len() {
            cells.push(row.text(side));
            if side > 0 {
                let ratio = row.ratio_text(side);
                cells.push(match row.verdict(side) {
                    Verdict::Better => paint.ink(Ink::GOOD, ratio + " better").to_string(),
                    Verdict::Worse => paint.ink(Ink::BAD, ratio + " worse").to_string(),
                    Verdict::Undecided => ratio,
                });
            }
        }
        grid.row(cells);
    }
    grid.write(&mut text);
    let _ = writeln!(text, "\n{}", paint.ink(Ink::Dim, FOOTNOTE));
    text
}

/// The comparison as an HTML table.
pub fn html_table<R>(comparison: &Comparison<R>) -> String {
    let attributes = scroll_attributes("scroll", "Measurements");
    let mut html = format!("<div {attributes}><table><thead><tr>");
    for heading in headings(comparison) {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(&heading));
    }
    html.push_str("</tr></thead><tbody>");
    for row in &comparison.rows {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(row.name));
        for side in 0..comparison.sides.len() {
            let _ = write!(html, "<td>{}</td>", escaped(&row.text(side)));
            if side == 0 {
                continue;
            }
            // The word repeats what the colour says, for those who cannot see it.
            let (class, word) = match row.verdict(side) {
                Verdict::Better => (" class=\"good\"", " better"),
                Verdict::Worse => (" class=\"bad\"", " worse"),
                Verdict::Undecided => ("", ""),
            };
            let ratio = row.ratio_text(side);
            let _ = write!(html, "<td{class}>{}{word}</td>", escaped(&ratio));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html + &note(FOOTNOTE)
}

fn headings<R>(comparison: &Comparison<R>) -> Vec<String> {
    let mut headings = vec!["measurement".to_owned()];
    for (index, side) in comparison.sides.iter().enumerate() {
        headings.push(side.label.clone());
        if index > 0 {
            headings.push("ratio".to_owned());
        }
    }
    headings
}

#[cfg(test)]
mod tests {
    use super::super::{Better, Measure, Range, Side};
    use super::*;

    fn comparison() -> Comparison<Option<f64>> {
        let measure = Measure {
            name: "latency",
            show: format::milliseconds,
            better: Better::Less,
            value: |run: &Option<f64>| *run,
            range: Range::Unknown,
        };
        let side = |label: &str, ms| Side { label: label.to_owned(), runs: vec![ms] };
        let sides = vec![side("one", Some(1.0)), side("<b>", Some(2.0)), side("three", None)];
        Comparison::of(sides, &[measure], vec!["<i>".to_owned()])
    }

    #[test]
    fn both_tables_name_every_side_and_its_ratio() {
        let text = table(&comparison(), Paint::plain());
        let heading = text.lines().find(|line| line.contains("ratio")).expect("headings");
        assert_eq!(heading.matches("ratio").count(), 2);
        assert!(text.contains("warning: <i>") && text.contains("2.00× worse"), "{text}");
        let row = text.lines().find(|line| line.starts_with("latency")).expect("a row");
        assert_eq!(row.matches(ABSENT).count(), 2, "{row}");
        let html = html_table(&comparison());
        assert!(html.contains("<td class=\"bad\">2.00× worse</td>") && !html.contains("<b>"));
    }
}
