//! A child process that does not outlive this one.
//!
//! It is stopped on drop, also after an error or a panic. If this process is killed, the kernel
//! ends the child: [`become_bound`] requests that, and then executes the program, which keeps the
//! process id.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// The time between `SIGTERM` and `SIGKILL`. A server drains for at most 2 s.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// How often the end of a process is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The hidden subcommand that becomes another program.
pub(crate) const BOUND_COMMAND: &str = "bound";

/// A running child, stopped on drop.
pub(crate) struct BoundChild(Child);

impl BoundChild {
    /// Starts `program` through this program, so that it ends with this process. Call it on the
    /// main thread: the kernel takes the end of the calling thread for the end of
    /// the parent.
    pub(crate) fn start(
        program: &std::path::Path,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find the file of this program")?;
        let mut command = Command::new(this);
        command.arg(BOUND_COMMAND).arg(program);
        prepare(&mut command);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self(child))
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// The child with its piped standard streams.
    pub(crate) fn streams(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Its exit status, once it has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    fn stop(&mut self) -> io::Result<()> {
        if self.0.try_wait()?.is_some() {
            return Ok(());
        }
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if self.0.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for BoundChild {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // It was not waited for, so that its process id is not reused.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Makes the kernel end this process with its parent, and executes `program`. Returns only an
/// error.
pub(crate) fn become_bound(
    program: &std::ffi::OsStr,
    arguments: &[std::ffi::OsString],
) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
