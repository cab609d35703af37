//! Tables for terminals.

use std::fmt::Write as _;

use throng_units::paint::{Ink, Paint, width};

/// A table with a left-aligned first column and right-aligned others.
pub struct Grid {
    rows: Vec<Vec<String>>,
    paint: Paint,
}

impl Grid {
    /// A table with these headings.
    pub fn new(headings: impl IntoIterator<Item = impl Into<String>>, paint: Paint) -> Grid {
        Grid { rows: vec![headings.into_iter().map(Into::into).collect()], paint }
    }

    /// Adds a row. Cells may be coloured; text from outside must be sanitized.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Appends an empty line and the table; nothing if it has no rows.
    pub fn write(&self, text: &mut String) {
        if self.rows.len() < 2 {
            return;
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widest = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max()
        };
        let widths: Vec<usize> =
            (0..columns).map(|column| widest(column).unwrap_or_default()).collect();
        text.push('\n');
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, column_width)) in row.iter().zip(&widths).enumerate() {
                let space = " ".repeat(column_width - width(cell));
                let _ = match column {
                    0 => write!(line, "{cell}{space}"),
                    _ => write!(line, "  {space}{cell}"),
                };
            }
            let line = line.trim_end();
            let _ = match index {
                0 => writeln!(text, "{}", self.paint.ink(Ink::Bold, line)),
                _ => writeln!(text, "{line}"),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_counting_colours() {
        let mut grid = Grid::new(["name", "value"], Paint::plain());
        let mut text = String::new();
        grid.write(&mut text);
        assert_eq!(text, "");
        grid.row(["a".to_owned(), Paint::always().ink(Ink::BAD, "7").to_string()]);
        grid.row(["longer".to_owned(), "12345678".to_owned()]);
        grid.write(&mut text);
        let plain = text.replace("\x1b[31m", "").replace("\x1b[0m", "");
        assert_eq!(plain, "\nname       value\na              7\nlonger  12345678\n");
    }
}
