//! Processor time and memory of processes, and processor time of the whole machine: of both sides
//! and of kernel threads, which belong to no process.
//!
//! The times of other programs and of the idle machine are subtracted. A missing value of a
//! process is an error here, unlike in throng-host.

use std::time::Duration;

use anyhow::{Context, Result};
use throng_host::proc;
use throng_host::processors::{Processors, Programs};

/// Processor time of a process, in nanoseconds. It is exact while the threads sleep.
pub(crate) fn cpu_ns(pid: u32) -> Result<u64> {
    proc::cpu_ns(pid).with_context(|| format!("cannot read the CPU time of process {pid}"))
}

/// Proportional set size of a process, in bytes.
pub(crate) fn pss_bytes(pid: u32) -> Result<u64> {
    proc::pss_bytes(pid).with_context(|| format!("cannot read the memory of process {pid}"))
}

/// Kernel memory in slabs for the whole machine, in bytes.
pub(crate) fn slab_bytes() -> Result<u64> {
    proc::slab_bytes().context("/proc/meminfo has no field Slab")
}

/// Processor times of the machine at one moment.
pub(crate) struct Machine {
    processors: Processors,
    others: Programs,
}

/// Processor time between two moments.
pub(crate) struct Used {
    /// Of both sides and the kernel.
    pub(crate) ours: Duration,
    /// Of other programs.
    pub(crate) others: Duration,
    /// The names of other programs, busiest first.
    pub(crate) names: Vec<String>,
    elapsed: Duration,
}

impl Machine {
    /// Reads the processor times of the machine and of programs other than this process and
    /// `server`. `None` where `/proc` does not have them.
    pub(crate) fn read(server: u32) -> Option<Self> {
        let others = Programs::others(&[std::process::id(), server]);
        Some(Self { processors: Processors::read()?, others })
    }

    /// The processor time since an earlier moment. `None` if the processors differ.
    pub(crate) fn since(&self, earlier: &Self) -> Option<Used> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let others = self.others.time().saturating_sub(earlier.others.time());
        Some(Used {
            ours: busy.saturating_sub(others),
            others,
            names: self.others.busiest_since(&earlier.others),
            elapsed: self.processors.elapsed_since(&earlier.processors),
        })
    }
}

impl Used {
    /// The time of both sides, without what the machine uses in the same time while idle.
    pub(crate) fn without_idle(&self, idle: &Self) -> Duration {
        let share = self.elapsed.as_secs_f64() / idle.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        self.ours.saturating_sub(idle.ours.mul_f64(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(ours_ms: u64, elapsed_ms: u64) -> Used {
        let (others, names) = (Duration::ZERO, Vec::new());
        let [ours, elapsed] = [ours_ms, elapsed_ms].map(Duration::from_millis);
        Used { ours, others, names, elapsed }
    }

    #[test]
    fn the_idle_time_is_scaled_to_the_duration_of_the_work() {
        let work = used(1000, 4000);
        assert_eq!(work.without_idle(&used(100, 2000)), Duration::from_millis(800));
        assert_eq!(work.without_idle(&used(900, 2000)), Duration::ZERO);
    }

    #[test]
    fn this_machine_can_be_read() {
        let before = Machine::read(std::process::id()).expect("the kernel tells");
        let after = Machine::read(std::process::id()).expect("again");
        let used = after.since(&before).expect("the same processors");
        assert!(used.without_idle(&used) <= used.ours);
    }
}
