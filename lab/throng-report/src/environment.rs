//! The machine and kernel that a run was made on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use throng_units::format;

/// The machine of a run. Comparisons warn if two runs differ here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Kernel release, as in `uname -r`.
    pub kernel: String,
    /// Cores available to this process.
    pub cores: usize,
    /// Model name of the processor; empty if it is unknown.
    pub processor: String,
    /// Total memory of the machine.
    pub memory_bytes: u64,
    /// Hard limit of a process's descriptors.
    pub descriptors_max: u64,
    /// Relevant kernel settings by name.
    pub sysctl: BTreeMap<String, String>,
    /// Version of this program.
    pub throng: String,
    /// Whether clients and server shared this machine: senders then also pay for waking readers.
    pub is_loopback: bool,
    /// The carrier of the clients' connections: `sockets` or `tunnel`.
    pub network: String,
}

impl Environment {
    /// Names and values for a table.
    pub fn rows(&self) -> Vec<(String, String)> {
        let cores = format::counted(self.cores as u64, "core", "cores");
        let processor = match self.processor.as_str() {
            "" => cores,
            name => format!("{name}, {cores}"),
        };
        let rows = [
            ("processor", processor),
            ("memory", format::bytes(self.memory_bytes as f64)),
            ("kernel", self.kernel.clone()),
            ("descriptors of a table", format::count(self.descriptors_max)),
            ("throng", self.throng.clone()),
        ];
        let rows = rows.map(|(name, value)| (name.to_owned(), value));
        rows.into_iter().chain(self.sysctl.clone()).collect()
    }

    /// Names of what differs from `other`.
    pub fn differences<'a>(&'a self, other: &'a Environment) -> Vec<&'a str> {
        let mut names = Vec::new();
        for (is_different, name) in [
            (self.kernel != other.kernel, "kernel"),
            (self.cores != other.cores, "number of cores"),
            (self.processor != other.processor, "processor"),
            (self.memory_bytes != other.memory_bytes, "memory"),
            (self.is_loopback != other.is_loopback, "whether both sides are on one machine"),
            (self.network != other.network, "network of the clients"),
            (self.throng != other.throng, "version of throng"),
        ] {
            if is_different {
                names.push(name);
            }
        }
        let settings = self.sysctl.keys().chain(other.sysctl.keys());
        let differing = settings.filter(|name| self.sysctl.get(*name) != other.sysctl.get(*name));
        names.extend(differing.map(String::as_str));
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_name_shows_its_cores() {
        let value = |processor: &str| {
            let processor = processor.to_owned();
            Environment { cores: 2, processor, ..Environment::default() }.rows()[0].1.clone()
        };
        assert_eq!(value(""), "2 cores");
        assert_eq!(value("Fast"), "Fast, 2 cores");
    }

    #[test]
    fn differences_are_named() {
        let one = Environment {
            cores: 2,
            sysctl: [("a".to_owned(), "1".to_owned())].into(),
            ..Environment::default()
        };
        let other = Environment::default();
        assert_eq!(one.differences(&other), ["number of cores", "a"]);
        assert!(one.differences(&one).is_empty());
    }
}
