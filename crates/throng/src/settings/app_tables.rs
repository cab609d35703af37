//! `[[apps]]`: applications whose clients speak the Pusher protocol.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// The keys of a table, for "did you mean …?".
pub(crate) const APPS: &[&str] = &["id", "key", "secret", "secret-file", "prefix"];

/// One `[[apps]]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct AppTable {
    /// The number in the paths of its HTTP API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// The public key, which its clients show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The secret, with which the application signs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Secret>,
    /// A file with the secret. A line feed at its end does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// The beginning of the names of its channels and users on this server, with a slash at its
    /// end. Without, the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

impl AppTable {
    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[apps]] number {nth}", name.display());
        let directory = name.parent().unwrap_or(Path::new(""));
        self.secret_file = self.secret_file.as_ref().map(|path| directory.join(path));
    }

    /// The beginning of its names on this server.
    pub(crate) fn prefix(&self) -> String {
        let id = || format!("{}/", self.id.as_deref().unwrap_or_default());
        self.prefix.clone().unwrap_or_else(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_accepts_every_key() {
        for key in APPS {
            let line = format!("{key} = 'a'");
            let read = toml::from_str::<AppTable>(&line);
            assert!(read.is_ok_and(|table| table != AppTable::default()), "{line}");
        }
    }
}
