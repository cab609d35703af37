//! Files whose line `i` belongs to client `i`: CSV with a header, or a list of URLs.

use std::path::Path;

use throng_settings::read_text;
use throng_units::{Invalid, no_scheme};

/// Larger files do not fit the offsets.
const BYTES_MAX: usize = u32::MAX as usize;

/// Placeholders with a meaning of their own, so that no column can have their names.
pub(super) const PLACEHOLDERS: [&str; 5] = ["i", "stream", "streams", "run", "payload"];

/// The cells of a file.
#[derive(Debug)]
pub(crate) struct ColumnTable {
    columns: Vec<String>,
    /// All cells, concatenated.
    text: String,
    /// The end of each cell, row by row.
    ends: Vec<u32>,
}

impl ColumnTable {
    /// Reads a CSV file. The first line names the columns.
    pub(crate) fn read_csv(path: &Path) -> Result<ColumnTable, Invalid> {
        ColumnTable::csv(&path.display().to_string(), &read(path)?)
    }

    /// Reads a file with one URL per line, as the column `url`.
    pub(crate) fn read_urls(path: &Path) -> Result<ColumnTable, Invalid> {
        ColumnTable::urls(&path.display().to_string(), &read(path)?)
    }

    /// Parses CSV text.
    pub(crate) fn csv(name: &str, text: &str) -> Result<ColumnTable, Invalid> {
        let refuse = |line: usize, what: &str| Invalid(format!("{name}, line {line}: {what}"));
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = Records { rest: text, line: 1 };
        let Some((line, head)) = reader.next_record().map_err(|line| refuse(line, OPEN_QUOTE))?
        else {
            return Err(Invalid(format!("{name} is empty")));
        };
        let columns: Vec<String> = head.iter().map(|cell| cell.trim().to_owned()).collect();
        for (position, column) in columns.iter().enumerate() {
            if !is_name(column) {
                let what = "is not a name for a column: letters, digits, - and _";
                return Err(refuse(line, &format!("{column:?} {what}")));
            }
            if PLACEHOLDERS.contains(&column.as_str()) {
                let what = format!("{{{column}}} means something else already; rename the column");
                return Err(refuse(line, &what));
            }
            if columns[..position].contains(column) {
                return Err(refuse(line, &format!("the column {column:?} is there twice")));
            }
        }
        let mut table = ColumnTable::new(columns);
        while let Some((line, cells)) = reader.next_record().map_err(|at| refuse(at, OPEN_QUOTE))? {
            if cells.len() != table.columns.len() {
                let (found, wanted) = (cells.len(), table.columns.len());
                return Err(refuse(line, &format!("{found} columns instead of {wanted}")));
            }
            cells.iter().for_each(|cell| table.push(cell));
        }
        table.checked(name)
    }

    /// Parses a list of URLs.
    pub(crate) fn urls(name: &str, text: &str) -> Result<ColumnTable, Invalid> {
        let fault = |line: &str| (!line.contains("://")).then(|| no_scheme(line).0);
        ColumnTable::lines(name, text, "url", fault)
    }

    /// Reads a file with one token per line, as the column `token`.
    pub(crate) fn read_tokens(path: &Path) -> Result<ColumnTable, Invalid> {
        ColumnTable::tokens(&path.display().to_string(), &read(path)?)
    }

    /// Parses a list of tokens (RFC 6750). Errors do not show them.
    fn tokens(name: &str, text: &str) -> Result<ColumnTable, Invalid> {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        ColumnTable::lines(name, text, "token", |line: &str| {
            let refused = "is no token: letters, digits, - . _ ~ + / and =";
            (!line.bytes().all(is_of_token)).then(|| refused.to_owned())
        })
    }

    /// Parses lines, each a value of the only column. Empty ones and comments (`#`) are skipped.
    fn lines(
        name: &str,
        text: &str,
        column: &str,
        fault: impl Fn(&str) -> Option<String>,
    ) -> Result<ColumnTable, Invalid> {
        let mut table = ColumnTable::new(vec![column.to_owned()]);
        for (line, number) in text.lines().map(str::trim).zip(1_usize..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(fault) = fault(line) {
                return Err(Invalid(format!("{name}, line {number}: {fault}")));
            }
            table.push(line);
        }
        table.checked(name)
    }

    fn new(columns: Vec<String>) -> ColumnTable {
        ColumnTable { columns, text: String::new(), ends: Vec::new() }
    }

    /// The number of lines, without the header.
    pub(crate) fn rows(&self) -> usize {
        self.ends.len() / self.columns.len()
    }

    /// The index of a column.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// The names of all columns.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(String::as_str)
    }

    /// A cell, whose row and column must exist.
    pub(crate) fn cell(&self, row: usize, column: usize) -> &str {
        let cell = row * self.columns.len() + column;
        let from = if cell == 0 { 0 } else { self.ends[cell - 1] };
        &self.text[from as usize..self.ends[cell] as usize]
    }

    fn push(&mut self, cell: &str) {
        self.text.push_str(cell);
        // `read` has rejected larger files, and a cell is never longer than its source.
        self.ends.push(u32::try_from(self.text.len()).unwrap_or(u32::MAX));
    }

    fn checked(self, name: &str) -> Result<ColumnTable, Invalid> {
        if self.ends.is_empty() {
            Err(Invalid(format!("{name} has no line for any client")))
        } else {
            Ok(self)
        }
    }
}

fn read(path: &Path) -> Result<String, Invalid> {
    let text = read_text(path)?;
    if text.len() > BYTES_MAX {
        return Err(Invalid(format!("{} is larger than 4 GiB", path.display())));
    }
    Ok(text)
}

/// True if a name can stand between braces.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

const OPEN_QUOTE: &str = "a quotation mark is not closed, or text follows a closed one";

/// Parses RFC 4180: quoted cells may contain commas, line breaks and doubled quotes.
struct Records<'a> {
    rest: &'a str,
    line: usize,
}

impl Records<'_> {
    /// The next record that is not an empty line, with its line number; or the line of an error.
    fn next_record(&mut self) -> Result<Option<(usize, Vec<String>)>, usize> {
        while self.take_line_end() {}
        if self.rest.is_empty() {
            return Ok(None);
        }
        let line = self.line;
        let mut cells = Vec::new();
        loop {
            cells.push(self.cell().ok_or(line)?);
            if let Some(after) = self.rest.strip_prefix(',') {
                self.rest = after;
                continue;
            }
            let is_over = self.take_line_end() || self.rest.is_empty();
            return if is_over { Ok(Some((line, cells))) } else { Err(line) };
        }
    }

    fn take_line_end(&mut self) -> bool {
        let after = self.rest.strip_prefix("\r\n").or_else(|| self.rest.strip_prefix('\n'));
        if let Some(after) = after {
            (self.rest, self.line) = (after, self.line + 1);
        }
        after.is_some()
    }

    fn cell(&mut self) -> Option<String> {
        let Some(mut quoted) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let (cell, rest) = self.rest.split_at(end);
            let is_line_end = rest.is_empty() || rest.starts_with('\n');
            self.rest = rest;
            let cell = if is_line_end { cell.strip_suffix('\r').unwrap_or(cell) } else { cell };
            return Some(cell.to_owned());
        };
        let mut cell = String::new();
        loop {
            let end = quoted.find('"')?;
            cell.push_str(&quoted[..end]);
            quoted = &quoted[end + 1..];
            match quoted.strip_prefix('"') {
                Some(after) => {
                    cell.push('"');
                    quoted = after;
                }
                None => break,
            }
        }
        self.line += cell.matches('\n').count();
        self.rest = quoted;
        Some(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(table: &ColumnTable) -> Vec<Vec<&str>> {
        let row = |row| (0..table.columns.len()).map(|column| table.cell(row, column)).collect();
        (0..table.rows()).map(row).collect()
    }

    #[test]
    fn csv_is_parsed() {
        let text = "\u{feff}user,token\r\nann,\"a,b\"\r\n\r\n\"b\"\"o\",\"two\nlines\"\n,\nlast,x";
        let table = ColumnTable::csv("t", text).unwrap();
        assert_eq!(
            rows(&table),
            [["ann", "a,b"], ["b\"o", "two\nlines"], ["", ""], ["last", "x"]].map(Vec::from)
        );
    }

    #[test]
    fn invalid_files_are_explained() {
        for (text, expected) in [
            ("", "t is empty"),
            ("user\n", "t has no line for any client"),
            ("user,1a\nx,y", "t, line 1: \"1a\" is not a name for a column"),
            ("user,user\nx,y", "t, line 1: the column \"user\" is there twice"),
            ("stream\nx", "t, line 1: {stream} means something else already"),
            ("a,b\nx,y\nz", "t, line 3: 1 columns instead of 2"),
            ("a,b\n\"x\n\n\",y\nz", "t, line 5: 1 columns instead of 2"),
            ("a\n\"x", "t, line 2: a quotation mark is not closed"),
            ("a\n\"x\"y", "t, line 2: a quotation mark is not closed"),
        ] {
            let error = ColumnTable::csv("t", text).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let error = ColumnTable::read_csv(Path::new("no/such.csv")).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "there is no file no/such.csv");
    }

    #[test]
    fn files_of_tokens_are_parsed() {
        let table = ColumnTable::tokens("t", "aa.b-_.c\n\n x.y.z \n").unwrap();
        assert_eq!((table.rows(), table.cell(1, 0)), (2, "x.y.z"));
        let error = ColumnTable::tokens("t", "a.b.c\nsecret token\n").unwrap_err().to_string();
        assert!(error.starts_with("t, line 2: is no token"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(ColumnTable::tokens("t", "\n").is_err());
    }

    #[test]
    fn files_of_urls_are_parsed() {
        let table = ColumnTable::urls("u", "http://a/1\n# two\n\n  http://a/2 \r\n").unwrap();
        assert_eq!(rows(&table), [["http://a/1"], ["http://a/2"]].map(Vec::from));
        let error = ColumnTable::urls("u", "http://a/1\n/2\n").map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("u, line 2: \"/2\" has no scheme; did you mean \"http://2\"?"),
            "{error}"
        );
        assert!(ColumnTable::urls("u", "# nothing\n").is_err());
    }
}
