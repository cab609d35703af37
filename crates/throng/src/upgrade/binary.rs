//! Which binary takes over, and its start.
//!
//! It is found when the server starts, by the path that started it: a file that is replaced later
//! is the new version, and so is a new target of a symbolic link. Nobody can name another one to
//! the running server.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use throng_handover::message::{MARK, PROTOCOL};

use super::arrival::VARIABLE;
use crate::signal_thread;

/// How a new process is started.
#[derive(Debug, Clone)]
pub(crate) struct SuccessorBinary {
    path: PathBuf,
    /// The name by which this process was called.
    name: OsString,
    arguments: Vec<OsString>,
}

impl SuccessorBinary {
    /// The binary of this process, with its arguments.
    ///
    /// Where the kernel does not say which file this is, because `/proc` is not mounted, it is the
    /// one by whose name the process was called.
    pub(crate) fn of_this_process() -> SuccessorBinary {
        let mut arguments = env::args_os();
        let name = arguments.next().unwrap_or_default();
        let path = binary(&name, env::current_exe().ok());
        SuccessorBinary { path, name, arguments: arguments.collect() }
    }

    /// Starts it, with its end of the channel as standard input.
    pub(super) fn start(&self, channel: OwnedFd) -> io::Result<Child> {
        let mut command = Command::new(&self.path);
        // A later version, which may speak others too, then knows which one to greet with.
        command.arg0(&self.name).args(&self.arguments);
        command.env(VARIABLE, format!("{MARK}/{PROTOCOL}"));
        // The service manager's sockets and variables come through the channel.
        for variable in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::from(channel));
        // One of another version may not expect to find signals blocked.
        signal_thread::unblocked(|| command.spawn())?
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The file of a process that was called by `name`, of which the kernel says that it is `own`.
fn binary(name: &OsString, own: Option<PathBuf>) -> PathBuf {
    match (called(name), own) {
        (Some(path), Some(own)) if is_same(&path, &own) => path,
        (_, Some(own)) => own,
        (path, None) => path.unwrap_or_else(|| PathBuf::from(name)),
    }
}

/// The absolute path by which this process was called; `None` if there is no such file.
fn called(name: &OsString) -> Option<PathBuf> {
    let given = Path::new(name);
    if given.components().count() > 1 || given.is_absolute() {
        return std::path::absolute(given).ok();
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders)
        .map(|folder| folder.join(given))
        .find(|path| path.is_file())
        .and_then(|path| std::path::absolute(path).ok())
}

fn is_same(path: &Path, own: &Path) -> bool {
    match (path.canonicalize(), own.canonicalize()) {
        (Ok(path), Ok(own)) => path == own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_its_own_path() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("throng-1"), folder.path().join("throng"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(called(&link.clone().into_os_string()).as_deref(), Some(&*link));
        assert!(is_same(&link, &file));
        assert!(!is_same(&folder.path().join("other"), &file));
    }

    #[test]
    fn this_process_is_found() {
        let successor = SuccessorBinary::of_this_process();
        assert!(is_same(successor.path(), &env::current_exe().unwrap()));
    }

    #[test]
    fn without_proc_the_name_says_which_file_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["throng", "other"].map(|name| folder.path().join(name));
        std::fs::write(&file, "").unwrap();
        let name = file.clone().into_os_string();
        assert_eq!(binary(&name, None), file);
        assert_eq!(binary(&OsString::from("/no/such/file"), None), Path::new("/no/such/file"));
        assert_eq!(binary(&name, Some(other.clone())), other);
    }
}
