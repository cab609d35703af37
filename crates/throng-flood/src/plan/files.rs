//! Files that options name. They are loaded when the option is read.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use throng_units::Invalid;

use crate::template::{ColumnTable, TableError};

/// A CSV file whose first line names its columns, loaded.
#[derive(Debug, Clone)]
pub struct ValueTable(pub Arc<ColumnTable>);

impl FromStr for ValueTable {
    type Err = TableError;

    fn from_str(path: &str) -> Result<ValueTable, TableError> {
        ColumnTable::read_csv(Path::new(path)).map(|table| ValueTable(Arc::new(table)))
    }
}

/// A file with one URL per line, loaded.
#[derive(Debug, Clone)]
pub struct UrlTable(pub Arc<ColumnTable>);

impl FromStr for UrlTable {
    type Err = TableError;

    fn from_str(path: &str) -> Result<UrlTable, TableError> {
        ColumnTable::read_urls(Path::new(path)).map(|table| UrlTable(Arc::new(table)))
    }
}

/// A file with one token per line, loaded.
#[derive(Debug, Clone)]
pub struct TokenTable {
    path: String,
    pub(super) table: Arc<ColumnTable>,
}

impl FromStr for TokenTable {
    type Err = TableError;

    fn from_str(path: &str) -> Result<TokenTable, TableError> {
        let table = Arc::new(ColumnTable::read_tokens(Path::new(path))?);
        Ok(TokenTable { path: path.to_owned(), table })
    }
}

impl fmt::Display for TokenTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// A file with a secret, loaded. Only its path is ever shown.
#[derive(Clone)]
pub struct SecretFile {
    path: String,
    pub(super) bytes: Arc<[u8]>,
}

impl FromStr for SecretFile {
    type Err = Invalid;

    fn from_str(path: &str) -> Result<SecretFile, Invalid> {
        let bytes = std::fs::read(path).map_err(|error| {
            Invalid(match error.kind() {
                std::io::ErrorKind::NotFound => format!("there is no file {path}"),
                _ => format!("cannot read {path}: {error}"),
            })
        })?;
        Ok(SecretFile { path: path.to_owned(), bytes: bytes.into() })
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretFile({:?})", self.path)
    }
}
