//! The first process stays as a small parent of the serving one where its end would be taken for
//! the end of the service: as the first process of a container, which ends with it, and under an
//! init that is not told of the new process.
//!
//! ```text
//! first ──── starts ───> second ──── starts ───> third
//! hands over             serves, hands over      serves
//! executes itself: `throng parent-of SECOND`
//! waits ............... it ends ............... the third is its child now
//! ```
//!
//! It passes signals on and buries the dead. When the process that serves ends, another one that
//! has taken over from it has become a child of this one; if there is none, the parent ends as it
//! did. All that it was before, its connections and logs, goes with the execution.
//!
//! No signal is lost on the way: a process that becomes a parent has
//! [blocked](crate::signal_thread) those that it acted on, which the execution keeps, and a parent
//! reads them as they come.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal as Blocked;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getppid, kill_process, set_child_subreaper, wait,
};

use super::arrival::VARIABLE;
use crate::signal_thread;
use crate::terminal::EXIT_RUNTIME;

/// The word that makes a process such a parent. It is for nobody else, and no command says it.
const WORD: &str = "parent-of";

/// The file of this process, also if its path has another one by now.
const OWN_FILE: &str = "/proc/self/exe";

/// The name of systemd as process 1, which it gives itself.
const SYSTEMD: &str = "systemd";

/// Is there where systemd is the init (sd_booted(3)).
const SYSTEMD_DIRECTORY: &str = "/run/systemd/system";

/// The `si_code` of a signal that the kernel has sent itself (sigaction(2)): of those that are
/// passed on, a terminal's.
const SI_KERNEL: i32 = 0x80;

/// True if this process's end would be taken for the end of the service once another one serves.
///
/// One that has taken over itself has such a parent, or needs none.
pub(super) fn is_needed() -> bool {
    let is_waited_for = match getppid() {
        // Its parent is outside: the container ends with it, whether it is process 1 there or, in a
        // namespace that containers share, another.
        None => true,
        Some(parent) => parent == Pid::INIT && !is_init_told(),
    };
    is_waited_for && env::var_os(VARIABLE).is_none()
}

/// True if process 1 learns which process serves instead: systemd does. `NOTIFY_SOCKET` alone does
/// not say that, for a container with an init of its own may have got it from outside.
fn is_init_told() -> bool {
    // It may be hidden, by `ProtectProc=` in a unit.
    let is_systemd = fs::read_to_string("/proc/1/comm").map_or(true, |name| name.trim() == SYSTEMD);
    env::var_os("NOTIFY_SOCKET").is_some() && is_systemd && Path::new(SYSTEMD_DIRECTORY).is_dir()
}

/// Makes processes children of this one when the process between them ends: so the third one
/// becomes one even if the second ends before this is its parent and nothing else.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(Pid::INIT))?)
}

/// True if this process could become such a parent.
pub(super) fn is_possible() -> bool {
    fs::exists(OWN_FILE).unwrap_or(false)
}

/// Makes this process the parent of the one that serves.
pub(super) fn become_parent_of(server: Pid) -> ! {
    let mut command = Command::new(OWN_FILE);
    let error = command.arg0("throng").arg(WORD).arg(server.to_string()).exec();
    tracing::error!("cannot stay as the parent of process {server}: {error}");
    std::process::exit(EXIT_RUNTIME.into());
}

/// Waits for the server that the words of the command line name, if they make this process a
/// parent.
pub(crate) fn parent(words: impl Iterator<Item = impl AsRef<OsStr>>) -> Option<ExitCode> {
    let words: Vec<_> = words.skip(1).take(2).collect();
    let [word, server] = words.as_slice() else { return None };
    if word.as_ref() != WORD {
        return None;
    }
    let server = server.as_ref().to_str().and_then(|text| text.parse().ok());
    let server = Pid::from_raw(server?)?;
    Some(stay(server).unwrap_or_else(|error| {
        eprintln!("error: the parent of process {server} cannot continue: {error:#}");
        ExitCode::from(EXIT_RUNTIME)
    }))
}

/// Stays until the last process that serves has ended, and returns with what.
fn stay(server: Pid) -> Result<ExitCode> {
    adopt().context("cannot adopt processes")?;
    let signals = Signals::take().context("cannot wait for signals")?;
    let mut watched = Watched::new(server);
    while watched.ended().is_none() {
        let signal = signals.next()?;
        // First: what comes while a process ends is for the one that has taken over from it.
        watched.bury()?;
        if let Some(signal) = signal {
            // It may have ended just now, which is about to be told.
            let _ = kill_process(watched.server, signal);
        }
    }
    Ok(watched.ended().unwrap_or(ExitCode::SUCCESS))
}

/// The signals that a server acts on, and SIGCHLD, as a descriptor.
struct Signals(SignalFd);

impl Signals {
    /// Those that wait, and all that come.
    fn take() -> io::Result<Signals> {
        // Where it is ignored, as whoever has started this may have left it, nobody is buried.
        signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default())?;
        let mut all = signal_thread::signals();
        all.add(Blocked::SIGCHLD);
        all.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for one. Returns it if it is to be passed on.
    fn next(&self) -> io::Result<Option<Signal>> {
        let Some(signal) = self.0.read_signal()? else { return Ok(None) };
        // A terminal sends it to all of its processes.
        let is_of_terminal = signal.ssi_code == SI_KERNEL;
        let passed_on = Signal::from_named_raw(signal.ssi_signo.cast_signed());
        Ok(passed_on.filter(|signal| *signal != Signal::CHILD && !is_of_terminal))
    }
}

/// The process that serves.
struct Watched {
    server: Pid,
    /// The name of its program, which its successor has as well.
    program: Option<String>,
    /// How it has ended, if no other has taken over.
    ended: Option<WaitStatus>,
}

impl Watched {
    fn new(server: Pid) -> Watched {
        let program = child(server).map(|child| child.program);
        let mut watched = Watched { server, program, ended: None };
        // It may have ended before its end could be told.
        let _ = watched.bury();
        watched
    }

    fn ended(&self) -> Option<ExitCode> {
        let status = self.ended?;
        let code = status.exit_status().or(status.terminating_signal().map(|number| 128 + number));
        Some(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_RUNTIME)))
    }

    /// Buries the children that have ended. If the process that serves is one of them, another one
    /// takes its place.
    fn bury(&mut self) -> io::Result<()> {
        while let Some((dead, status)) = wait_for_child()? {
            if dead == self.server {
                match self.successor()? {
                    Some(successor) => self.server = successor,
                    None => self.ended = Some(status),
                }
            }
        }
        Ok(())
    }

    /// The child that has taken over from a process which has ended.
    fn successor(&self) -> io::Result<Option<Pid>> {
        let own = Pid::from_raw(std::process::id().cast_signed());
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(candidate) = number.and_then(Pid::from_raw) else { continue };
            // It may have ended meanwhile.
            let Some(child) = child(candidate) else { continue };
            let is_server = !child.is_dead && Some(&child.program) == self.program.as_ref();
            if child.parent == own && is_server && may_have_taken_over(candidate) {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }
}

/// A child that has ended and that nobody has waited for.
fn wait_for_child() -> io::Result<Option<(Pid, WaitStatus)>> {
    match wait(WaitOptions::NOHANG) {
        Err(rustix::io::Errno::CHILD) => Ok(None),
        waited => Ok(waited?),
    }
}

/// The kernel's facts about a process.
struct Child {
    program: String,
    is_dead: bool,
    parent: Option<Pid>,
}

fn child(process: Pid) -> Option<Child> {
    parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Reads `/proc/PID/stat` (proc_pid_stat(5)): the program is in parentheses, and may have some.
fn parse(stat: &str) -> Option<Child> {
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, program) = before.split_once('(')?;
    let mut fields = after.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    Some(Child { program: program.to_owned(), is_dead, parent })
}

/// True if it was started to take over; where the kernel does not show that, it may have been.
fn may_have_taken_over(process: Pid) -> bool {
    let Ok(variables) = fs::read(format!("/proc/{process}/environ")) else { return true };
    let is_it =
        |one: &[u8]| one.strip_prefix(VARIABLE.as_bytes()).is_some_and(|it| it.starts_with(b"="));
    variables.split(|byte| *byte == 0).any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_word_makes_a_parent() {
        for words in [&["throng"][..], &["throng", "serve"], &["throng", "serve", "7"]] {
            assert!(parent(words.iter()).is_none(), "{words:?}");
        }
        for words in [["throng", WORD, "x"], ["throng", WORD, "0"]] {
            assert!(parent(words.iter()).is_none(), "{words:?}");
        }
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let child = parse("17 (a) (b) S 1 17 17 0 -1 4194560").unwrap();
        assert_eq!((child.program.as_str(), child.parent), ("a) (b", Some(Pid::INIT)));
        assert!(!child.is_dead && parse("17 (a) Z 3 17").unwrap().is_dead);
        assert!(parse("").is_none() && parse("17 (a").is_none());
    }

    #[test]
    fn a_process_that_nobody_has_started_to_take_over_has_not() {
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        assert!(!may_have_taken_over(own) && child(own).is_some());
    }
}
