//! What a server costs. Without one of these readings nothing can be measured, so that what
//! throng-host leaves out is an error here.

use anyhow::{Context, Result};
use throng_host::proc;

/// CPU time that the process has had, in nanoseconds: exact between rounds, while threads sleep.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    proc::cpu_ns(pid).with_context(|| format!("cannot read the CPU time of process {pid}"))
}

/// The process's proportional share of memory, in bytes.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    proc::pss_bytes(pid).with_context(|| format!("cannot read the memory of process {pid}"))
}

/// Kernel memory in slabs, of the whole machine, in bytes.
pub fn slab_bytes() -> Result<u64> {
    proc::slab_bytes().context("/proc/meminfo has no field Slab")
}
