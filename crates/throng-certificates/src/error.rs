//! Faults of the files, as sentences.

use std::io;
use std::path::Path;

/// One sentence: what is wrong with which file, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateError(pub(crate) String);

impl CertificateError {
    /// `what` names the setting, `predicate` says what is wrong with the file.
    pub(crate) fn of_file(what: &str, path: &Path, predicate: &str) -> CertificateError {
        CertificateError(format!("{what}: {} {predicate}", path.display()))
    }
}

/// The largest file that is read: a bundle of all public authorities has 200 KiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The bytes of the file that the setting `what` names.
pub(crate) fn read(what: &str, path: &Path) -> Result<Vec<u8>, CertificateError> {
    let bytes = std::fs::metadata(path).and_then(|metadata| {
        if metadata.len() > FILE_BYTES_MAX {
            return Err(io::Error::other("it has more than 16 MiB"));
        }
        std::fs::read(path)
    });
    bytes.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            CertificateError(format!("{what}: there is no file {}", path.display()))
        }
        io::ErrorKind::PermissionDenied => CertificateError::of_file(
            what,
            path,
            "cannot be read by the user that the server runs as; give its group the permission",
        ),
        _ => CertificateError(format!("{what}: cannot read {}: {error}", path.display())),
    })
}
