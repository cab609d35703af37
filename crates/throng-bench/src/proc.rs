//! Readings from `/proc`: what a server costs, and what the kernel allows.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// CPU time that all threads of the process have had, in nanoseconds.
///
/// Exact while they sleep (a running thread is accounted for at the next tick), so read it between
/// rounds. A thread that has ended takes its share with it.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/task");
    let mut total_ns = 0;
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry?.path().join("schedstat")) else { continue };
        total_ns += first_number(&text).context("schedstat has no number")?;
    }
    Ok(total_ns)
}

/// The process's proportional share of memory, in bytes.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    kib_field(Path::new(&format!("/proc/{pid}/smaps_rollup")), "Pss:")
}

/// Kernel memory in slabs, of the whole machine, in bytes.
pub fn slab_bytes() -> Result<u64> {
    kib_field(Path::new("/proc/meminfo"), "Slab:")
}

/// A kernel setting by its dotted name, if there is one.
pub fn sysctl(name: &str) -> Option<String> {
    fs::read_to_string(sysctl_path(name)).ok().map(|text| text.trim().to_owned())
}

/// Changes a kernel setting.
pub fn set_sysctl(name: &str, value: &str) -> Result<()> {
    fs::write(sysctl_path(name), value).with_context(|| format!("cannot set {name} to {value}"))
}

fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

fn kib_field(path: &Path, field: &str) -> Result<u64> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let kib = parse_kib(&text, field)
        .with_context(|| format!("{} has no field {field}", path.display()))?;
    Ok(kib * 1024)
}

fn parse_kib(text: &str, field: &str) -> Option<u64> {
    first_number(text.lines().find_map(|line| line.strip_prefix(field))?)
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Rss:  10 kB\nPss:     7 kB\nPss_Dirty: 3 kB\n";
        assert_eq!(parse_kib(text, "Pss:"), Some(7));
        assert_eq!(parse_kib(text, "Swap:"), None);
        assert_eq!(first_number("123456 789 5\n"), Some(123_456));
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert!(pss_bytes(pid).expect("Pss") > 0);
        assert!(cpu_ns(pid).is_ok());
        assert!(slab_bytes().expect("Slab") > 0);
        assert!(sysctl("net.core.somaxconn").is_some());
    }
}
