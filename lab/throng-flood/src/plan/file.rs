//! Options from a TOML file.
//!
//! Every error has its line and column, and says what would be right; all are reported at once. An
//! unknown key is an error, because a misspelt option would otherwise silently not apply.

use std::fmt;
use std::path::Path;

use throng_settings::{Document, KnownTables, Reader, position, read_text};

use super::model::{Plan, PlanError};
use super::option_table::Table;
use super::options::{Options, PublishOptions, SourceOptions, TargetOptions, TokenOptions};
use super::phases;

/// The key of the list of phases.
const PHASES: &str = "phases";

/// All tables, to say where a misplaced key belongs.
fn known() -> KnownTables {
    let tables: [(&str, &[&str]); 6] = [
        ("", &[Options::KEYS, &[PHASES]].concat()),
        ("[target]", TargetOptions::KEYS),
        ("[publish]", PublishOptions::KEYS),
        ("[sources]", SourceOptions::KEYS),
        ("[tokens]", TokenOptions::KEYS),
        ("[[phases]]", phases::KEYS),
    ];
    let owned = |keys: &[&str]| keys.iter().copied().map(str::to_owned).collect();
    tables.into_iter().map(|(table, keys)| (table.to_owned(), owned(keys))).collect()
}

/// A plan file that was read.
#[derive(Debug)]
pub(crate) struct PlanFile(Document);

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
    let text = read_text(path).map_err(|error| FileError(vec![error.0]))?;
    parse(path, text)
}

/// Reads the options in the text of a file. Other files named in it are relative to `path`.
pub(crate) fn parse(path: &Path, text: String) -> Result<(Options, PlanFile), FileError> {
    let file = Document { name: path.display().to_string(), text };
    let refuse = |errors: &[(usize, String)]| {
        FileError(errors.iter().map(|(position, message)| file.at(*position, message)).collect())
    };
    let document = file.parse().map_err(|error| refuse(&[error]))?;
    let table = document.get_ref();
    let reader = Reader::new(known(), path.parent().unwrap_or(Path::new("")));
    let section = reader.section(table, &[Options::KEYS, &[PHASES]].concat());
    let mut options = Options::read(&section);
    if options.target.urls.is_some() && options.target.data.is_some() {
        let message = "urls: there is a file of data already; give it a column of URLs instead";
        reader.error(position(table, "target.urls").unwrap_or_default(), message);
    }
    options.phases = phases::read(&section, PHASES, options.target.streams());
    let errors = reader.errors();
    if !errors.is_empty() {
        return Err(refuse(&errors));
    }
    Ok((options, PlanFile(file)))
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
        let document = self.0.parse().ok();
        match document.and_then(|document| position(document.get_ref(), &error.key)) {
            Some(position) => {
                let name = error.key.rsplit('.').find(|part| part.parse::<usize>().is_err());
                self.0.at(position, &format!("{}: {}", name.unwrap_or_default(), error.message))
            }
            None => format!("{}: {}", self.0.name, error.message),
        }
    }
}

#[cfg(test)]
mod tests;
