//! The text of a file of settings, and the places of errors in it.

use std::io;
use std::path::Path;

use throng_units::{Invalid, toml_error};
use toml::Spanned;
use toml::de::DeTable;

/// A file of settings. Errors say its name.
#[derive(Debug)]
pub struct Document {
    pub name: String,
    pub text: String,
}

impl Document {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// One sentence, as [`read_text`] has it.
    pub fn read(path: &Path) -> Result<Document, Invalid> {
        Ok(Document { name: path.display().to_string(), text: read_text(path)? })
    }

    /// The tables of the text; or the position of a syntax error, and what to write.
    pub fn parse(&self) -> Result<Spanned<DeTable<'_>>, (usize, String)> {
        DeTable::parse(&self.text).map_err(|error| {
            let position = error.span().map_or(0, |span| span.start);
            toml_error::explain(&self.text, position, error.message())
        })
    }

    /// The error with the line and column of its position, which is in bytes.
    pub fn at(&self, position: usize, message: &str) -> String {
        let before = &self.text[..self.text.floor_char_boundary(position)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&letter| letter != '\n').count() + 1;
        format!("{}, line {line}, column {column}: {message}", self.name)
    }

    /// The line at a position.
    pub fn line(&self, position: usize) -> &str {
        let position = self.text.floor_char_boundary(position);
        let start = self.text[..position].rfind('\n').map_or(0, |end| end + 1);
        self.text[start..].lines().next().unwrap_or_default()
    }
}

/// The text of a file.
///
/// # Errors
///
/// One sentence: there is no such file, it is not UTF-8, or it cannot be read.
pub fn read_text(path: &Path) -> Result<String, Invalid> {
    let no_text = |_| Invalid(format!("{} is not UTF-8 text", path.display()));
    String::from_utf8(read_bytes(path)?).map_err(no_text)
}

/// The contents of a file.
///
/// # Errors
///
/// One sentence: there is no such file, or it cannot be read.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, Invalid> {
    let name = path.display();
    std::fs::read(path).map_err(|error| {
        Invalid(match error.kind() {
            io::ErrorKind::NotFound => format!("there is no file {name}"),
            _ => format!("cannot read {name}: {error}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_line_and_column() {
        let document = Document { name: "a".into(), text: "x = 1\näö = 2\n".into() };
        assert_eq!(document.at(0, "no"), "a, line 1, column 1: no");
        assert_eq!(document.at(8, "no"), "a, line 2, column 2: no");
        assert_eq!(document.at(7, "no"), "a, line 2, column 1: no", "within a letter");
        assert_eq!((document.line(3), document.line(8)), ("x = 1", "äö = 2"));
        let document = Document { text: "x = a".into(), ..document };
        assert_eq!(document.parse().unwrap_err().0, 4);
    }
}
