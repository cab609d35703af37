//! A report as sections, written to a terminal or as one self-contained HTML page.
//!
//! The page is a template with the report as JSON in it, and a script that builds the tables and
//! draws the charts in the browser. It loads nothing, and can be mailed and printed.
//!
//! # Invariants
//!
//! - The JSON has no `<`, so that no text in it ends the element around it.
//! - The script makes text nodes of texts, so that none is markup.
//! - The Content-Security-Policy forbids outside assets.

use std::fmt::Write as _;

use serde::Serialize;
use throng_units::paint::{Ink, Paint, sanitized, width};

use crate::chart::Chart;
use crate::grid::Grid;

const TEMPLATE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// A whole report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Page {
    pub head: Section,
    /// Time spans that the script draws as strips behind plots over time.
    pub bands: Vec<Band>,
    /// A section whose parts are all empty is not shown.
    pub sections: Vec<Section>,
    /// The command that made it, with its version.
    pub made_by: String,
}

/// A heading and what is below it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Section {
    pub title: String,
    /// May be empty.
    pub subtitle: String,
    pub verdict: Option<Cell>,
    pub parts: Vec<Part>,
}

/// A part of a section.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Names and values.
    Facts(Vec<(String, String)>),
    /// Reasons to doubt the measurements, one sentence each.
    Warnings(Vec<String>),
    /// The key measurements.
    Tiles(Vec<Tile>),
    Table(Table),
    /// A remark on the part before it.
    Note(String),
    /// A paragraph; only on a page, as all that follow.
    Text(String),
    /// Names and values.
    Details(Vec<(String, String)>),
    /// Charts side by side.
    Charts(Vec<Chart>),
    /// A table that the reader unfolds.
    Folded(Table),
    /// Lines of a file.
    Listing(String),
}

/// A table whose first column names the rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Table {
    /// May be empty.
    pub title: String,
    pub headings: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

/// A value in a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

/// How a value is to be taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

/// A key measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tile {
    pub name: &'static str,
    pub value: Cell,
    /// Further figures.
    pub more: String,
}

/// A time span of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Band {
    pub name: String,
    pub from_s: f64,
    pub to_s: f64,
}

impl Page {
    /// A page that names `command` and its version as its maker.
    pub fn new(command: &str, head: Section, sections: Vec<Section>) -> Page {
        let made_by = format!("{command} {}", env!("CARGO_PKG_VERSION"));
        Page { head, sections, made_by, ..Page::default() }
    }

    /// The report for a terminal of about 100 columns: a heading, then the parts of all sections.
    pub fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        self.head.write(&mut text, paint);
        let parts = self.sections.iter().flat_map(|section| &section.parts);
        parts.for_each(|part| part.write(&mut text, paint));
        text
    }

    /// The HTML page.
    pub fn html(&self) -> String {
        // Serializing fails only for maps whose keys are not strings; pages have none.
        let json = serde_json::to_string(self).unwrap_or_default().replace('<', "\\u003c");
        TEMPLATE.replacen("{{script}}", SCRIPT, 1).replacen("{{page}}", &json, 1)
    }
}

impl Section {
    /// A section with a heading, without subtitle and verdict.
    pub fn new(title: impl Into<String>, parts: Vec<Part>) -> Section {
        Section { title: title.into(), parts, ..Section::default() }
    }

    /// Writes the heading and the parts for a terminal of about 100 columns.
    pub fn write(&self, text: &mut String, paint: Paint) {
        let (title, subtitle) = (sanitized(&self.title), sanitized(&self.subtitle));
        let line = format!("{}  {subtitle}", paint.ink(Ink::Bold, title));
        let _ = writeln!(text, "\n{}", line.trim_end());
        if let Some(verdict) = &self.verdict {
            let _ = writeln!(text, "{}", verdict.painted(paint));
        }
        self.parts.iter().for_each(|part| part.write(text, paint));
    }
}

impl Part {
    fn write(&self, text: &mut String, paint: Paint) {
        match self {
            Part::Facts(facts) => {
                let names = || facts.iter().map(|(name, _)| sanitized(name));
                let columns = names().map(|name| width(&name)).max().unwrap_or_default();
                for (name, (_, value)) in names().zip(facts) {
                    let name = paint.ink(Ink::Bold, format!("{name:<columns$}"));
                    let _ = writeln!(text, "{name}  {}", sanitized(value));
                }
            }
            Part::Warnings(warnings) => {
                for warning in warnings {
                    let label = paint.ink(Ink::WARNING, "warning:");
                    let _ = writeln!(text, "{label} {}", sanitized(warning));
                }
            }
            Part::Tiles(tiles) => tiles_text(text, tiles, paint),
            Part::Table(table) => table.write(text, paint),
            Part::Note(note) => {
                let _ = writeln!(text, "{}", paint.ink(Ink::Dim, sanitized(note)));
            }
            Part::Text(_)
            | Part::Details(_)
            | Part::Charts(_)
            | Part::Folded(_)
            | Part::Listing(_) => {}
        }
    }
}

fn tiles_text(text: &mut String, tiles: &[Tile], paint: Paint) {
    let widest = |of: fn(&Tile) -> &str| tiles.iter().map(|tile| width(of(tile))).max();
    let names = widest(|tile| tile.name).unwrap_or_default();
    let values = widest(|tile| &tile.value.text).unwrap_or_default();
    text.push('\n');
    for Tile { name, value, more } in tiles {
        let name = paint.ink(Ink::Bold, format!("{name:<names$}"));
        let space = " ".repeat(values - width(&value.text));
        let line = format!("{name}  {space}{}  {}", value.painted(paint), sanitized(more));
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

impl Table {
    /// A table without a heading of its own.
    pub fn new(headings: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> Table {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Table { headings, rows: rows.into_iter().collect(), ..Table::default() }
    }

    /// The same with a heading.
    pub fn titled(self, title: impl Into<String>) -> Table {
        Table { title: title.into(), ..self }
    }

    fn write(&self, text: &mut String, paint: Paint) {
        if !self.title.is_empty() {
            let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, sanitized(&self.title)));
        }
        let mut grid = Grid::new(self.headings.iter().map(|heading| sanitized(heading)), paint);
        for row in &self.rows {
            grid.row(row.iter().map(|cell| cell.painted(paint)));
        }
        grid.write(text);
    }
}

impl Cell {
    /// A value as it should be.
    pub fn good(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Good }
    }

    /// A value that should not be.
    pub fn bad(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Bad }
    }

    /// Bad if `is_bad` is set.
    pub fn bad_if(is_bad: bool, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: if is_bad { Tone::Bad } else { Tone::Plain } }
    }

    fn painted(&self, paint: Paint) -> String {
        let text = sanitized(&self.text);
        match self.tone {
            Tone::Plain => text,
            Tone::Good => paint.ink(Ink::GOOD, text).to_string(),
            Tone::Bad => paint.ink(Ink::BAD, text).to_string(),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "</script><img src=x onerror=alert(1)><!-- \x1b[2J {{page}}";

    fn evil() -> Page {
        let words = || EVIL.to_owned();
        let table = || Table::new(&[EVIL], [vec![Cell::bad(EVIL)]]).titled(EVIL);
        let parts = vec![
            Part::Facts(vec![(words(), words())]),
            Part::Warnings(vec![words()]),
            Part::Tiles(vec![Tile { name: "a", value: EVIL.into(), more: words() }]),
            Part::Table(table()),
            Part::Note(words()),
            Part::Text(words()),
            Part::Folded(table()),
            Part::Listing(words()),
        ];
        let head = Section { subtitle: words(), ..Section::new(EVIL, parts.clone()) };
        Page::new("throng flood", head, vec![Section::new(EVIL, parts)])
    }

    #[test]
    fn no_text_of_a_page_is_markup() {
        let html = evil().html();
        assert!(!html.contains("<img") && !html.contains("<!--"));
        assert_eq!(html.matches("</script>").count(), 2);
        let json = html.split("id=\"page\">").nth(1).and_then(|rest| rest.split('<').next());
        let page: serde_json::Value = serde_json::from_str(json.expect("JSON")).expect("valid");
        assert_eq!(page["head"]["title"], EVIL);
        assert_eq!(page["sections"][0]["parts"][0]["facts"][0][1], EVIL);
    }

    #[test]
    fn a_page_loads_nothing() {
        let html = evil().html();
        for outside in ["href=", "<link", "url(", "@import", "fetch(", " src=\"", "innerHTML"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn no_text_controls_the_terminal() {
        let mut text = evil().text(Paint::plain());
        evil().sections[0].write(&mut text, Paint::plain());
        assert!(!text.contains('\x1b') && text.contains("\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn the_terminal_shows_tables_and_aligned_tiles() {
        let tiles = [("Lost", "0", ""), ("Deliveries", "1,000", "of 1,000")]
            .map(|(name, value, more)| Tile { name, value: value.into(), more: more.to_owned() });
        let table = Table::new(&["of", "p50"], [vec!["all".into(), Cell::bad("9 ms")]]);
        let parts = vec![Part::Tiles(tiles.to_vec()), Part::Table(table), Part::Text("no".into())];
        let section = Section {
            subtitle: "20 s".to_owned(),
            verdict: Some(Cell::good("done")),
            ..Section::new("Run", parts)
        };
        let mut text = String::new();
        section.write(&mut text, Paint::plain());
        assert_eq!(
            text,
            "\nRun  20 s\ndone\n\nLost            0\nDeliveries  1,000  of 1,000\n\n\
             of    p50\nall  9 ms\n"
        );
    }
}
