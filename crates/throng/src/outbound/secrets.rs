//! The secrets of callouts: in the file of settings, in files of their own, or in variables.

use std::path::Path;

use throng_outbound::{SECRETS_MAX, Secret};

use crate::access::key_file;
use crate::settings::{CalloutTable, SettingsError};

/// Variables with this prefix are settings.
const RESERVED: &str = "THRONG_";

/// The secrets of a table, one or two.
///
/// # Errors
///
/// One sentence, without a part of a secret.
pub(super) fn of(table: &CalloutTable) -> Result<Vec<Secret>, SettingsError> {
    let (texts, source): (Vec<String>, &str) =
        match (&*table.secrets, &table.secrets_file, &table.secrets_variable) {
            (listed, None, None) => {
                (listed.iter().map(|secret| secret.0.clone()).collect(), "secrets")
            }
            ([], Some(path), None) => (in_file(table, path)?, "secrets-file"),
            ([], None, Some(name)) => (in_variable(table, name)?, "secrets-variable"),
            _ => {
                let message =
                    "has more than one of secrets-file, secrets-variable and secrets; keep one";
                return Err(fault(table, message));
            }
        };
    if !(1..=SECRETS_MAX).contains(&texts.len()) {
        let message = "needs one or two `secrets`, which sign its requests; \
                       `echo whsec_$(openssl rand -base64 32)` makes one";
        return Err(fault(table, message));
    }
    let parse = |text: &String| {
        text.parse().map_err(|error| fault(table, &format!("has a fault in {source}: {error}")))
    };
    texts.iter().map(parse).collect()
}

/// The warning that others can read the file of a table's secrets.
pub(super) fn warning(table: &CalloutTable) -> Option<String> {
    let path = table.secrets_file.as_deref()?;
    let file = key_file::read(&table.at, "secrets-file", path).ok()?;
    file.is_readable_by_others.then(|| key_file::exposed(&table.at, path))
}

/// One on each line.
fn in_file(table: &CalloutTable, path: &Path) -> Result<Vec<String>, SettingsError> {
    let file = key_file::read(&table.at, "secrets-file", path)?;
    Ok(words(&String::from_utf8_lossy(&file.bytes)))
}

/// Separated by spaces.
fn in_variable(table: &CalloutTable, name: &str) -> Result<Vec<String>, SettingsError> {
    if name.starts_with(RESERVED) {
        let message = format!(
            "has secrets-variable = {name:?}, and variables with {RESERVED} are settings; give \
             the variable another name"
        );
        return Err(fault(table, &message));
    }
    // A name with these cannot be looked up.
    let is_possible = !name.is_empty() && !name.contains(['=', '\0']);
    match is_possible.then(|| std::env::var_os(name)).flatten() {
        Some(value) => Ok(words(&value.to_string_lossy())),
        None => {
            let message = format!(
                "has secrets-variable = {name:?}, and there is no such variable; set it where the \
                 server starts"
            );
            Err(fault(table, &message))
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn fault(table: &CalloutTable, message: &str) -> SettingsError {
    SettingsError(format!("{} {message}", table.at))
}
