//! `[[certificates]]`: further certificates of the server.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The keys of a `[[certificates]]` table, for "did you mean …?".
pub(crate) const CERTIFICATES: &[&str] = &["cert", "key"];

/// One `[[certificates]]` table: a certificate for the names that stand in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CertificateTable {
    /// A file with the certificate and its chain, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// A file with its key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

impl CertificateTable {
    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[certificates]] number {nth}", name.display());
        let directory = name.parent().unwrap_or(Path::new(""));
        for path in [&mut self.cert, &mut self.key] {
            *path = path.as_ref().map(|path| directory.join(path));
        }
    }
}
