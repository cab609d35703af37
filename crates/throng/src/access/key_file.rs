//! Reads the files with keys that settings name.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use throng_access::keys::JWKS_BYTES_MAX;

use crate::settings::SettingsError;

/// The permission of others to read a file (`o+r`).
const OTHERS_READ: u32 = 0o004;

/// The bytes of a file with keys.
pub(crate) struct KeyFile {
    /// Everything in it.
    pub(crate) bytes: Vec<u8>,
    /// True if every user of the machine can read it.
    pub(crate) is_readable_by_others: bool,
}

/// Reads the file that the table `at` names with `key`.
pub(crate) fn read(at: &str, key: &str, path: &Path) -> Result<KeyFile, SettingsError> {
    let fault = |problem: String| {
        SettingsError(format!("{at}: {key} = {:?} {problem}", path.display().to_string()))
    };
    let mut bytes = Vec::new();
    let cannot_read = |error: std::io::Error| {
        let reason = error.to_string();
        // Remove the error number, which follows the text.
        let reason = reason.split(" (os error").next().unwrap_or_default().to_ascii_lowercase();
        fault(format!("cannot be read: {reason}"))
    };
    let file = File::open(path).map_err(cannot_read)?;
    let mode = file.metadata().map_err(cannot_read)?.permissions().mode();
    // One byte more than allowed tells that there is more.
    let most = JWKS_BYTES_MAX as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(cannot_read)?;
    if bytes.len() as u64 == most {
        return Err(fault(format!("is larger than {} KiB", JWKS_BYTES_MAX >> 10)));
    }
    Ok(KeyFile { bytes, is_readable_by_others: mode & OTHERS_READ != 0 })
}

/// The warning about a file with a secret that every user of the machine can read.
pub(crate) fn exposed(at: &str, path: &Path) -> String {
    let path = path.display();
    format!("{at}: every user of this machine can read the secret in {path}; run: chmod o-r {path}")
}
