//! A child process that does not outlive the measurement.
//!
//! Stopped on drop, so also on an error or a panic. Should this process be killed, the kernel ends
//! the child: [`become_bound`] asks for that and then turns into the program, which keeps the
//! process id.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// After `SIGTERM` a server gets this long before it is killed; it drains for at most 2 s.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// How often an ending process is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The hidden subcommand that turns into another program.
pub const BOUND_COMMAND: &str = "bound";

/// A running child, stopped on drop.
pub struct BoundChild(Child);

impl BoundChild {
    /// Starts `program` through this very program, so that it ends with this process.
    ///
    /// To be called on the main thread: the kernel takes the thread's end for the parent's.
    pub fn start(program: &std::path::Path, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(this);
        command.arg(BOUND_COMMAND).arg(program);
        prepare(&mut command);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self(child))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The standard streams that were piped.
    pub fn streams(&mut self) -> &mut Child {
        &mut self.0
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
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
            // It is ours and not yet waited for, so the number cannot mean another process.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Asks the kernel to end this process with its parent, then becomes `program`. Returns only with
/// an error.
pub fn become_bound(program: &std::ffi::OsStr, arguments: &[std::ffi::OsString]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
