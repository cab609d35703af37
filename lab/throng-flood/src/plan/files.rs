//! Files that options name. They are loaded when the option is read.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use serde::{Serialize, Serializer};
use throng_units::Invalid;

use crate::template::ColumnTable;

/// Defines the types of files: what is loaded, and how. Only the path of a file is ever shown.
macro_rules! files {
    ($(
        $(#[$doc:meta])*
        $name:ident: $content:ty, $load:expr;
    )+) => { $(
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            pub(super) path: String,
            pub(crate) content: Arc<$content>,
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(path: &str) -> Result<$name, Invalid> {
                let loaded = $load(Path::new(path)).map_err(|error| Invalid(error.to_string()))?;
                Ok($name { path: path.to_owned(), content: loaded.into() })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.path)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.path)
            }
        }
    )+ };
}

files! {
    /// A CSV file whose first line names its columns.
    ValueTable: ColumnTable, ColumnTable::read_csv;
    /// A file with one URL per line.
    UrlTable: ColumnTable, ColumnTable::read_urls;
    /// A file with one token per line.
    TokenTable: ColumnTable, ColumnTable::read_tokens;
    /// A file with certificates of authorities, in PEM.
    CertificateFile: [CertificateDer<'static>], throng_trust::certificates;
    /// A file with a secret.
    SecretFile: [u8], throng_settings::read_bytes;
}

/// Only the path.
impl Serialize for CertificateFile {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.path)
    }
}
