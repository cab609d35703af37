//! Options from a TOML file.
//!
//! Every error has its line and column, and says what would be right; all are reported at once. An
//! unknown key is an error, because a misspelt option would otherwise silently not apply.

use std::fmt;
use std::path::{Path, PathBuf};

use throng_units::toml_error;
use toml::de::DeTable;

use super::model::{Plan, PlanError};
use super::option_table::Table;
use super::options::{Options, PublishOptions, SourceOptions, TargetOptions, TokenOptions};
use super::phases;

use super::toml_reader::{KnownTables, TomlReader, position};

/// The key of the list of phases.
const PHASES: &str = "phases";

/// All tables, to say where a misplaced key belongs.
const KNOWN: KnownTables = &[
    ("", Options::KEYS),
    ("", &[PHASES]),
    ("[target]", TargetOptions::KEYS),
    ("[publish]", PublishOptions::KEYS),
    ("[sources]", SourceOptions::KEYS),
    ("[tokens]", TokenOptions::KEYS),
    ("[[phases]]", phases::KEYS),
];

/// A plan file that was read.
#[derive(Debug)]
pub(crate) struct PlanFile {
    path: PathBuf,
    text: String,
}

/// A file that is not a plan: one line per error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileError(pub Vec<String>);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for FileError {}

/// Reads the options in a file. The file itself locates errors that are found in them later.
pub(crate) fn load(path: &Path) -> Result<(Options, PlanFile), FileError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        FileError(vec![match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no file {name}"),
            std::io::ErrorKind::InvalidData => format!("{name} is not UTF-8 text"),
            _ => format!("cannot read {name}: {error}"),
        }])
    })?;
    parse(path, text)
}

/// Reads the options in the text of a file. Other files named in it are relative to `path`.
pub(crate) fn parse(path: &Path, text: String) -> Result<(Options, PlanFile), FileError> {
    let file = PlanFile { path: path.to_owned(), text };
    let refuse = |errors: &[(usize, String)]| {
        FileError(errors.iter().map(|(position, message)| file.at(*position, message)).collect())
    };
    let document = DeTable::parse(&file.text).map_err(|error| {
        let position = error.span().map_or(0, |span| span.start);
        refuse(&[toml_error::explain(&file.text, position, error.message())])
    })?;
    let table = document.get_ref();
    let reader = TomlReader::new(KNOWN, path.parent().unwrap_or(Path::new("")));
    let section = reader.section(table, &[Options::KEYS, &[PHASES]].concat());
    let mut options = Options::read(&section);
    if options.target.urls.is_some() && options.target.data.is_some() {
        let message = "urls: there is a file of data already; give it a column of URLs instead";
        reader.error(position(table, "target.urls").unwrap_or_default(), message);
    }
    options.phases = phases::read(&section, PHASES, options.target.streams());
    let errors = reader.errors();
    if errors.is_empty() { Ok((options, file)) } else { Err(refuse(&errors)) }
}

impl Plan {
    /// The plan in the text of a file, or all errors in it. Other files named in it are relative to
    /// `path`.
    pub fn from_toml(path: &Path, text: String) -> Result<Plan, String> {
        let (options, file) = parse(path, text).map_err(|error| error.to_string())?;
        options.into_plan().map_err(|errors| {
            let lines: Vec<_> = errors.iter().map(|error| file.describe(error)).collect();
            lines.join("\n")
        })
    }
}

impl PlanFile {
    /// The error with its line and column, or with those of the closest table around it.
    pub(crate) fn describe(&self, error: &PlanError) -> String {
        // The text was parsed before.
        let document = DeTable::parse(&self.text).ok();
        match document.and_then(|document| position(document.get_ref(), &error.key)) {
            Some(position) => {
                let name = error.key.rsplit('.').find(|part| part.parse::<usize>().is_err());
                self.at(position, &format!("{}: {}", name.unwrap_or_default(), error.message))
            }
            None => format!("{}: {}", self.path.display(), error.message),
        }
    }

    fn at(&self, position: usize, message: &str) -> String {
        let before = &self.text[..self.text.floor_char_boundary(position)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&letter| letter != '\n').count() + 1;
        format!("{}, line {line}, column {column}: {message}", self.path.display())
    }
}

#[cfg(test)]
mod tests;
