//! `throng data backup`: asks a server that runs on this machine for a copy of its directory.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use throng_units::paint::sanitized;

use crate::control_socket::{ControlConnection, Request};
use crate::settings::Sources;

const EXAMPLES: &str = "\
The server itself writes the copy. The directory must be outside the data directory, in a place that
the server may write to, with room for the data and 64 MiB more. A server with PrivateTmp= in its
unit has a /tmp of its own: use another place. Publishers do not wait for the copy, and it has every
message acknowledged before. A server can start on it directly, and issues no id twice. Then move it
to another machine, so that losing this one does not lose both. Finds the server as `throng reload`
does. Run it as the server's user or root. An interrupted backup leaves no copy.

Examples, with the data in /var/lib/throng/data:
  throng data backup /var/lib/throng/backup
  throng data backup --config /etc/throng.toml /var/lib/throng/backup";

/// Arguments of `throng data backup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BackupArguments {
    /// The directory to create; it must be empty or not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// File and flags with settings, which say which server it is.
    #[command(flatten)]
    sources: Sources,
}

/// Asks the server for a backup.
pub(super) fn backup(arguments: BackupArguments) -> Result<ExitCode> {
    let BackupArguments { directory, sources } = arguments;
    let path = std::path::absolute(directory)?;
    let directory = path.to_str().context("the path of a backup must be UTF-8")?.to_owned();
    let before = store(&path);
    ControlConnection::open(sources)?.ask_and(&Request::Backup { directory }, || {
        ensure!(
            is_here(&before, &store(&path)),
            "the server has made the backup where only it sees it: here {} has none, so the server \
             has a file system of its own there, as PrivateTmp= in its unit gives it for /tmp; \
             name a directory that both see",
            sanitized(&path.display().to_string())
        );
        Ok(())
    })
}

/// The device and inode of the storage in a directory; `None` if there is none.
fn store(directory: &Path) -> io::Result<Option<(u64, u64)>> {
    match fs::metadata(directory.join("store")) {
        Ok(found) => Ok(Some((found.dev(), found.ino()))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// True if a storage has been made between two looks. One that may not look, such as root on some
/// file systems of networks, believes the server.
fn is_here(
    before: &io::Result<Option<(u64, u64)>>,
    after: &io::Result<Option<(u64, u64)>>,
) -> bool {
    match (before, after) {
        (_, Ok(None)) => false,
        (Ok(before), Ok(after)) => before != after,
        (_, Err(_)) | (Err(_), Ok(Some(_))) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_here_if_its_storage_is_new() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("backup");
        let before = store(&path);
        assert!(!is_here(&before, &store(&path)));
        fs::create_dir_all(path.join("store")).expect("it is made");
        assert!(is_here(&before, &store(&path)));
        // There was one, and the server saw none.
        let before = store(&path);
        assert!(!is_here(&before, &store(&path)));
        let closed = || Err(ErrorKind::PermissionDenied.into());
        assert!(is_here(&before, &closed()) && is_here(&closed(), &before));
    }
}
