//! Options from a TOML file.
//!
//! Every error has its line and column, and says what would be right; all are reported at once. An
//! unknown key is an error, because a misspelt option would otherwise silently not apply.

use std::path::Path;

use throng_settings::{Document, Reader, position, read_text};

use super::model::{Plan, PlanError};
use super::option_table::Table;
use super::options::Options;
use super::phases;

/// The key of the list of phases.
const PHASES: &str = "phases";

/// A plan file that was read.
#[derive(Debug)]
pub(crate) struct PlanFile(Document);

/// Reads the options in a file. The file itself locates errors that are found in them later.
///
/// # Errors
///
/// One line for each.
pub(crate) fn load(path: &Path) -> Result<(Options, PlanFile), Vec<String>> {
    parse(path, read_text(path).map_err(|error| vec![error.0])?)
}

/// Reads the options in the text of a file. Other files named in it are relative to `path`.
pub(crate) fn parse(path: &Path, text: String) -> Result<(Options, PlanFile), Vec<String>> {
    let file = Document { name: path.display().to_string(), text };
    let refuse = |errors: &[(usize, String)]| {
        errors.iter().map(|(position, message)| file.at(*position, message)).collect::<Vec<_>>()
    };
    let document = file.parse().map_err(|error| refuse(&[error]))?;
    let table = document.get_ref();
    let keys = [Options::KEYS, &[PHASES]].concat();
    // All tables, to say where a misplaced key belongs.
    let tables = Options::TABLES.iter().map(|(table, keys)| (format!("[{table}]"), *keys));
    let known = std::iter::once((String::new(), &keys[..]))
        .chain(tables)
        .chain([(format!("[[{PHASES}]]"), phases::KEYS)])
        .map(|(table, keys)| (table, keys.iter().copied().map(str::to_owned).collect()));
    let reader = Reader::new(known.collect(), path.parent().unwrap_or(Path::new("")));
    let section = reader.section(table, &keys);
    let mut options = Options::read(&section);
    if options.target.urls.is_some() && options.target.data.is_some() {
        let message = "urls: there is a file of data already; give it a column of URLs instead";
        reader.error(position(table, "target.urls").unwrap_or_default(), message);
    }
    options.phases = phases::read(&section, PHASES, options.target.followed());
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
        let (options, file) = parse(path, text).map_err(|errors| errors.join("\n"))?;
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
