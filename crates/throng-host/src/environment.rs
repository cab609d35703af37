//! Description of the machine, for reports; and the descriptor limit of this process.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{proc, sysctl};

/// Kernel settings that affect the number and the speed of connections.
const SETTINGS: [&str; 17] = [
    "fs.file-max",
    "fs.nr_open",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_max",
];

/// The machine and its kernel settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Kernel release, as in `uname -r`.
    pub kernel: String,
    pub cores: usize,
    /// Model name of the processor; empty if the kernel does not report one.
    pub processor: String,
    pub memory_bytes: u64,
    /// Hard limit of a process's descriptors.
    pub descriptors_max: u64,
    /// Relevant kernel settings that exist here, by name.
    pub sysctl: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the properties of this machine.
    pub fn read() -> Environment {
        let settings = SETTINGS.into_iter().filter_map(|name| {
            let value = sysctl::read(name).filter(|value| !value.is_empty())?;
            Some((name.to_owned(), value.replace('\t', " ")))
        });
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Environment {
            kernel: sysctl::read("kernel.osrelease").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: processor(&cpuinfo).unwrap_or_default(),
            memory_bytes: proc::memory_bytes().unwrap_or_default(),
            descriptors_max: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            sysctl: settings.collect(),
        }
    }
}

/// Raises the soft descriptor limit of this process to the hard one, and returns the result.
///
/// If the hard limit is below `needed`, raises it as well, up to `fs.nr_open`, where the process
/// has the privilege. Never lowers a limit.
pub fn raise_descriptors(needed: u64) -> u64 {
    let found = getrlimit(Resource::Nofile);
    let hard = found.maximum.unwrap_or(u64::MAX);
    if hard < needed {
        let most = sysctl::number("fs.nr_open", 0).unwrap_or(hard).min(needed);
        let raised = Rlimit { current: Some(most), maximum: Some(most) };
        if most > hard && setrlimit(Resource::Nofile, raised).is_ok() {
            return most;
        }
    }
    let raised = Rlimit { current: found.maximum, maximum: found.maximum };
    // On an error the limit is unchanged, and the function returns the limit that applies.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The model name of the first processor. The key depends on the architecture, and may be absent.
fn processor(cpuinfo: &str) -> Option<String> {
    ["model name", "Hardware", "Model"].into_iter().find_map(|key| {
        let value = cpuinfo.lines().find_map(|line| line.strip_prefix(key))?;
        Some(value.trim_start_matches(['\t', ' ', ':']).trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_cores_and_memory() {
        let environment = Environment::read();
        assert!(!environment.kernel.is_empty());
        assert!(environment.cores > 0);
        assert!(environment.memory_bytes > 1 << 20);
        assert!(environment.sysctl.contains_key("net.core.somaxconn"));
        assert!(environment.sysctl.values().all(|value| !value.contains('\t')));
    }

    #[test]
    fn the_model_name_of_the_processor_is_found() {
        assert_eq!(processor("x: 1\nmodel name\t: Fast 9\n").as_deref(), Some("Fast 9"));
        assert_eq!(processor("Features\t: fp\n"), None);
    }

    #[test]
    fn a_descriptor_limit_is_never_lowered() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(raise_descriptors(1) >= before);
    }
}
