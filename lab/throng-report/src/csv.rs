//! CSV rows for spreadsheets. A missing value is an empty cell.

use std::fmt::{Display, Write as _};

/// Builds one line.
#[derive(Debug, Default)]
pub struct CsvRow {
    line: String,
}

impl CsvRow {
    /// Appends a number.
    pub fn value(&mut self, value: impl Display) -> &mut CsvRow {
        // Writing to a string does not fail.
        let _ = write!(self.line, "{value},");
        self
    }

    /// Appends a number, or an empty cell.
    pub fn optional(&mut self, value: Option<impl Display>) -> &mut CsvRow {
        match value {
            Some(value) => self.value(value),
            None => self.value(""),
        }
    }

    /// Appends text, quoted if necessary. Text that a spreadsheet would evaluate as a formula gets
    /// an apostrophe, because names may come from other people's files.
    pub fn text(&mut self, text: &str) -> &mut CsvRow {
        let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
        if text.contains([',', '"', '\n', '\r']) {
            self.value(format_args!("\"{guard}{}\"", text.replace('"', "\"\"")))
        } else {
            self.value(format_args!("{guard}{text}"))
        }
    }

    /// The line with its line break.
    pub fn end(mut self) -> String {
        self.line.pop();
        self.line.push('\n');
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_and_never_a_formula() {
        let mut row = CsvRow::default();
        row.text("a \"b\", c").text("=1+1").text("plain").value(7).optional(None::<u8>);
        assert_eq!(row.end(), "\"a \"\"b\"\", c\",'=1+1,plain,7,\n");
    }
}
