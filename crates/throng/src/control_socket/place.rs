//! Where the control socket is.
//!
//! Without a path in the settings its name is the address that the server listens on, so that the
//! servers of a machine do not meet, and it is in the first of these directories that exists or can
//! be made, belongs to the user, and is closed to others:
//!
//! 1. `$RUNTIME_DIRECTORY`, which systemd sets for a unit with `RuntimeDirectory=`;
//! 2. `/run/throng`, which is the same directory for the commands of an administrator;
//! 3. `$XDG_RUNTIME_DIR/throng`;
//! 4. `/tmp/throng-UID`.
//!
//! Commands look into all of them.

use std::env;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Bits of a directory's mode that let others in.
const OTHERS: u32 = 0o077;

/// Everybody may write into the directory.
const SHARED: u32 = 0o002;

/// The name of the socket of a server that listens on `listen`.
pub(super) fn name(listen: SocketAddr) -> String {
    format!("{listen}.sock")
}

/// The directories in which a socket may be, in order.
pub(super) fn directories() -> Vec<PathBuf> {
    let variable = |name: &str| {
        let paths = env::var_os(name)?;
        env::split_paths(&paths).find(|path| path.is_absolute())
    };
    let mut directories = Vec::new();
    directories.extend(variable("RUNTIME_DIRECTORY"));
    directories.push("/run/throng".into());
    directories.extend(variable("XDG_RUNTIME_DIR").map(|path| path.join("throng")));
    directories.push(format!("/tmp/throng-{}", user()).into());
    directories
}

/// The user of this process.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The network namespace of this process: the number that `/proc` shows. `None` if it shows none.
pub(crate) fn network() -> Option<u64> {
    fs::metadata("/proc/self/ns/net").map(|found| found.ino()).ok()
}

/// Makes the directory, unless it exists, and checks that it is closed to others.
///
/// # Errors
///
/// Why it cannot be used, in a few words.
pub(super) fn prepare(directory: &Path) -> Result<(), String> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    let found = fs::symlink_metadata(directory).map_err(|error| error.to_string())?;
    match flaw(&found, user()) {
        None => Ok(()),
        Some(flaw) => Err(flaw),
    }
}

/// Why a directory cannot have the socket of a server of `user`.
fn flaw(found: &Metadata, user: u32) -> Option<String> {
    let mode = found.mode() & 0o777;
    if !found.is_dir() {
        Some("it is no directory".into())
    } else if found.uid() != user {
        Some(format!("it belongs to the user {}, and the server runs as {user}", found.uid()))
    } else if mode & OTHERS != 0 {
        Some(format!("its mode is {mode:04o}, which admits others; make it 0700"))
    } else {
        None
    }
}

/// True if `path` is a socket in a directory that this user may trust: a directory of the user, or
/// for root also another user's, unless anybody could have put it there.
pub(super) fn is_trusted(path: &Path) -> bool {
    let Ok(socket) = fs::symlink_metadata(path) else { return false };
    let Some(directory) = path.parent() else { return false };
    let Ok(found) = fs::symlink_metadata(directory) else { return false };
    let is_shared = || {
        let above = directory.parent().and_then(|above| fs::metadata(above).ok());
        above.is_none_or(|above| above.mode() & SHARED != 0)
    };
    let is_of_user = found.uid() == user() || (user() == 0 && !is_shared());
    socket.file_type().is_socket() && found.is_dir() && is_of_user
}

/// True if there is a directory that this user may not look into.
pub(super) fn is_closed(directory: &Path) -> bool {
    fs::read_dir(directory).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

pub(super) fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_directory_is_made_for_its_user_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("control");
        prepare(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        prepare(&directory).unwrap();
    }

    #[test]
    fn a_directory_that_lets_others_in_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(prepare(temporary.path()).unwrap_err().contains("mode is 0755"));
        let found = fs::symlink_metadata(temporary.path()).unwrap();
        assert!(flaw(&found, user() + 1).unwrap().contains("belongs to the user"));
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert_eq!(prepare(&link).unwrap_err(), "it is no directory");
    }

    #[test]
    fn only_sockets_are_trusted() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join(name("[::1]:8080".parse().unwrap()));
        fs::write(&path, "").unwrap();
        assert!(!is_trusted(&path) && sockets(temporary.path()) == [path.clone()]);
        fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_trusted(&path));
    }
}
