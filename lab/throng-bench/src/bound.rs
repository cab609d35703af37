//! Another program as a child process that ends with this one, also if this one is killed.
//!
//! The kernel sends a signal to a process whose parent has ended, if the process asked for that
//! itself. So this program is started first, asks, and becomes the other one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::raw_loop;

/// The private subcommand that does it: followed by the id of the parent process, the program and
/// its arguments.
const COMMAND: &str = "exec-bound";

/// This program, even if its file has been replaced or removed since it started.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The exit code if the program cannot be started, as in a shell.
const EXIT_NOT_STARTED: u8 = 127;

/// A command that runs `program`. The child ends with the thread that starts it.
pub(crate) fn command(program: &Path) -> Command {
    // A test program cannot become another one.
    let mut command = Command::new(if cfg!(test) { program } else { OWN_PROGRAM.as_ref() });
    if cfg!(not(test)) {
        command.arg(COMMAND).arg(std::process::id().to_string()).arg(program);
    }
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Becomes the program of these arguments, or the raw loop, if they ask for it. Returns only if
/// they do not, or if that fails.
pub fn become_program(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    match arguments.next()?.to_str()? {
        COMMAND => {}
        raw_loop::COMMAND => return raw_loop::run(arguments),
        _ => return None,
    }
    let (parent, program) = (arguments.next()?, arguments.next()?);
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    let actual = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    // The parent may have ended before the call.
    if let Err(error) = bound {
        eprintln!("{}: {error}", program.display());
    } else if parent.to_str().and_then(|parent| parent.parse().ok()) == Some(actual) {
        let error = Command::new(&program).args(arguments).exec();
        eprintln!("{}: {error}", program.display());
    }
    Some(EXIT_NOT_STARTED.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_command_lines_are_left_alone() {
        for words in [&["throng"][..], &["throng", "serve"], &["throng", COMMAND]] {
            assert!(become_program(words.iter().map(OsString::from)).is_none(), "{words:?}");
        }
    }

    #[test]
    fn a_program_of_another_parent_is_not_started() {
        let words = ["throng", COMMAND, "1", "/nowhere/at/all"].map(OsString::from);
        // The death signal of this thread goes with the thread.
        let code = std::thread::spawn(|| become_program(words)).join().expect("it ends");
        assert!(code.is_some());
    }
}
