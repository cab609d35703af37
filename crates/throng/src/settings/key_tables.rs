//! `[[token-keys]]` and `[[server-keys]]`: the keys of the file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// The keys of a `[[token-keys]]` table, for "did you mean …?".
pub(crate) const TOKEN_KEYS: &[&str] =
    &["id", "algorithm", "secret", "secret-file", "public-key", "public-key-file", "jwks-file"];

/// The keys of a `[[server-keys]]` table, for "did you mean …?".
pub(crate) const SERVER_KEYS: &[&str] = &["name", "hash", "scopes", "channels", "users"];

/// One `[[token-keys]]` table: a key that verifies tokens, or a file with several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct TokenKeyTable {
    /// The `kid` of its tokens. A key without an id verifies tokens with any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// The only algorithm that the key accepts. Without, a secret accepts HS256, and a public key
    /// everything that works with such keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) algorithm: Option<String>,
    /// The secret of HS256, HS384 or HS512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Secret>,
    /// A file with the secret. A line feed at its end does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// A public key in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) public_key: Option<String>,
    /// A file with a public key in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) public_key_file: Option<PathBuf>,
    /// A file with a JSON Web Key set, which may hold secrets, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jwks_file: Option<PathBuf>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

/// One `[[server-keys]]` table: the hash of a key, and what it may be used for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerKeyTable {
    /// The name for logs and metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// `sha256:` and the hash of the key in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<String>,
    /// What it may be used for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scopes: Option<Vec<String>>,
    /// Patterns of the channels that it may be used for. With neither these nor `users`, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) channels: Option<Vec<String>>,
    /// Patterns of the users whose inboxes it may be used for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<Vec<String>>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

impl TokenKeyTable {
    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[token-keys]] number {nth}", name.display());
        let directory = name.parent().unwrap_or(Path::new(""));
        for path in [&mut self.secret_file, &mut self.public_key_file, &mut self.jwks_file] {
            *path = path.as_ref().map(|path| directory.join(path));
        }
    }
}

impl ServerKeyTable {
    /// Whether another table is of the same key and allows the same, wherever it stands.
    pub(crate) fn is_same_key(&self, other: &ServerKeyTable) -> bool {
        ServerKeyTable { at: String::new(), ..self.clone() }
            == ServerKeyTable { at: String::new(), ..other.clone() }
    }

    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[server-keys]] number {nth}", name.display());
    }
}
