//! Upgrades of a server, and what they cost.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use throng_host::proc;

/// How often memory is read during an upgrade.
const LOOK: Duration = Duration::from_millis(5);

/// The process that serves, which upgrades replace.
#[derive(Debug, Clone)]
pub(super) struct Serving {
    process: Arc<AtomicU32>,
    /// Another process may be taking over.
    is_changing: Arc<AtomicBool>,
}

impl Serving {
    pub(super) fn new(process: u32) -> Serving {
        Serving { process: Arc::new(AtomicU32::new(process)), is_changing: Arc::default() }
    }

    /// The process that serves now.
    pub(super) fn process(&self) -> u32 {
        self.process.load(Ordering::SeqCst)
    }

    /// True if the server is there although this process of it has ended.
    pub(super) fn outlives(&self, process: u32) -> bool {
        self.is_changing.load(Ordering::SeqCst)
            || (self.process() != process && is_running(self.process()))
    }
}

/// True if a process runs; one that nobody has waited for may have ended.
pub(super) fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    // The state follows the name, which is in parentheses.
    let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Upgrades a server.
#[derive(Debug)]
pub(crate) struct Upgrades {
    pub(super) program: PathBuf,
    /// Arguments of `throng upgrade`, which tell it the server.
    pub(super) arguments: Vec<OsString>,
    pub(super) serving: Serving,
}

/// An upgrade that has succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upgrade {
    /// How long nothing was delivered, as the server says.
    pub(crate) pause_ms: f64,
    /// Memory of the server before, and the most that both processes together took; `None` if it
    /// could not be read.
    pub(crate) before_bytes: Option<f64>,
    pub(crate) during_bytes: Option<f64>,
}

impl Upgrades {
    /// Upgrades the server, and waits until another process serves.
    pub(crate) fn upgrade(&self) -> Result<Upgrade, String> {
        let before = self.serving.process();
        let memory = Memory::before(before);
        self.serving.is_changing.store(true, Ordering::SeqCst);
        let (output, during_bytes) = watched(before, memory.as_ref(), || self.run());
        let before_bytes = memory.map(|memory| memory.bytes as f64);
        let upgraded = output.and_then(|output| {
            outcome(&output).ok_or_else(|| format!("the server was not upgraded: {output}"))
        });
        let upgraded = upgraded.map(|(process, pause_ms)| {
            self.serving.process.store(process, Ordering::SeqCst);
            Upgrade { pause_ms, before_bytes, during_bytes }
        });
        self.serving.is_changing.store(false, Ordering::SeqCst);
        upgraded
    }

    /// Runs `throng upgrade`. Returns what it prints.
    fn run(&self) -> Result<String, String> {
        let output = Command::new(&self.program).args(&self.arguments).output();
        let output = output.map_err(|error| format!("throng upgrade: {error}"))?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }
}

/// The process that has taken over, and the pause in milliseconds.
fn outcome(output: &str) -> Option<(u32, f64)> {
    let (before, after) = output.split_once(" has taken over after a pause of ")?;
    let process = before.rsplit_once("process ")?.1.parse().ok()?;
    Some((process, after.split_once(" ms")?.0.parse().ok()?))
}

/// Runs `work`. Returns also the most memory that the process and its children took meanwhile.
fn watched<T>(process: u32, memory: Option<&Memory>, work: impl FnOnce() -> T) -> (T, Option<f64>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = None;
            while let Some(memory) = memory.filter(|_| !is_over.load(Ordering::Relaxed)) {
                let bytes = memory.of(&proc::family(&[process])) as f64;
                most = Some(f64::max(most.unwrap_or(0.0), bytes));
                thread::sleep(LOOK);
            }
            most
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        (done, watching.join().unwrap_or_default())
    })
}

/// Reads the memory of a server's processes. That includes shared memory which none of them maps,
/// as that of frozen state: what the machine has got of it since the beginning.
#[derive(Debug)]
struct Memory {
    /// Memory of the server at the beginning.
    bytes: u64,
    /// Shared memory that was there then and that the server did not map.
    others_bytes: u64,
}

impl Memory {
    /// Memory of a server that consists of this process; `None` if it cannot be read.
    fn before(process: u32) -> Option<Memory> {
        let (shared, mapped) = (proc::shared_memory_bytes()?, proc::mapped(process)?);
        let others_bytes = shared.saturating_sub(mapped.shared_bytes);
        Some(Memory { bytes: mapped.bytes, others_bytes })
    }

    /// Memory of these processes now.
    fn of(&self, processes: &[u32]) -> u64 {
        let mapped = processes.iter().filter_map(|&process| proc::mapped(process));
        let (all, shared): (u64, u64) =
            mapped.fold((0, 0), |sum, it| (sum.0 + it.bytes, sum.1 + it.shared_bytes));
        let own = proc::shared_memory_bytes().unwrap_or_default().saturating_sub(self.others_bytes);
        all + own.saturating_sub(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_what_the_command_says() {
        let output = "process 12 starts: /usr/bin/throng\nit is ready\n\
                      process 12 has taken over after a pause of 34 ms";
        assert_eq!(outcome(output), Some((12, 34.0)));
        assert_eq!(outcome("error: the upgrade has failed"), None);
    }

    #[test]
    fn memory_is_that_of_the_family_and_processes_end() {
        let own = std::process::id();
        let memory = Memory::before(own);
        let (done, bytes) = watched(own, memory.as_ref(), || thread::sleep(3 * LOOK));
        assert!(bytes.is_some_and(|bytes| bytes > 0.0));
        assert_eq!(done, ());
        assert!(is_running(own) && !is_running(u32::MAX));
        let serving = Serving::new(own);
        assert!(!serving.outlives(own) && serving.outlives(u32::MAX));
    }
}
