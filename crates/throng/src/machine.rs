//! What this machine allows, read from `/proc` and `/sys`. What cannot be read is not spoken of.

use std::fs;

/// A socket's own memory in the kernel, measured at rest, and the worker's beside it.
const CONNECTION_BYTES: u64 = 5 * 1024 + 128;

/// A burst of new connections, as when all clients come back at once, wants such a queue.
const SOMAXCONN_WANTED: u64 = 4096;

/// What the kernel allows.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The longest queue of connections that nobody has accepted yet.
    pub somaxconn: Option<u64>,
    /// Pages of memory that all TCP buffers together may take before the kernel holds them back.
    pub tcp_pages_max: Option<u64>,
    /// Memory that is free for this process.
    pub available_bytes: Option<u64>,
    /// Open files in the whole system.
    pub files_max: Option<u64>,
    /// Connections that the firewall follows.
    pub conntrack_max: Option<u64>,
}

/// The limit is there with the kernel's module; whether anything is followed, the count tells.
fn conntrack_max() -> Option<u64> {
    number("/proc/sys/net/netfilter/nf_conntrack_count", 0).filter(|&count| count > 0)?;
    number("/proc/sys/net/netfilter/nf_conntrack_max", 0)
}

impl Machine {
    /// Looks at this machine.
    pub fn look() -> Machine {
        Machine {
            somaxconn: number("/proc/sys/net/core/somaxconn", 0),
            tcp_pages_max: number("/proc/sys/net/ipv4/tcp_mem", 1),
            available_bytes: available_bytes(),
            files_max: number("/proc/sys/fs/file-max", 0),
            conntrack_max: conntrack_max(),
        }
    }

    /// What stands in the way of so many connections: one line each, with what to do.
    pub fn warnings(&self, connections: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(somaxconn) = self.somaxconn.filter(|&found| found < SOMAXCONN_WANTED) {
            warnings.push(format!(
                "only {somaxconn} connections may wait to be accepted: \
                 sysctl -w net.core.somaxconn={SOMAXCONN_WANTED}"
            ));
        }
        // A message on its way takes a page of each connection that it goes to.
        if self.tcp_pages_max.is_some_and(|pages| pages < connections) {
            let (low, high) = (connections * 3 / 4, connections * 3 / 2);
            warnings.push(format!(
                "a message to everyone may exceed the memory for TCP: \
                 sysctl -w net.ipv4.tcp_mem='{low} {connections} {high}'"
            ));
        }
        if self.files_max.is_some_and(|files| files < connections + connections / 16) {
            let wanted = connections + connections / 8;
            warnings.push(format!(
                "the system allows fewer open files than that: sysctl -w fs.file-max={wanted}"
            ));
        }
        if self.conntrack_max.is_some_and(|most| most < connections) {
            let wanted = connections + connections / 8;
            warnings.push(format!(
                "the firewall follows fewer connections than that: \
                 sysctl -w net.netfilter.nf_conntrack_max={wanted}"
            ));
        }
        let wanted_bytes = connections * CONNECTION_BYTES;
        if let Some(bytes) = self.available_bytes.filter(|&bytes| bytes < wanted_bytes) {
            let fit = bytes / CONNECTION_BYTES / 1000 * 1000;
            warnings.push(format!(
                "so many connections take {}, and {} are free: --max-connections {}",
                gibibytes(wanted_bytes),
                gibibytes(bytes),
                fit.max(1000)
            ));
        }
        warnings
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// The nth number in a file.
fn number(path: &str, nth: usize) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_whitespace().nth(nth)?.parse().ok()
}

/// What the machine has, or what is left to our container if that is less.
fn available_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_bytes(&text));
    let group = number("/sys/fs/cgroup/memory.max", 0).map(|most| {
        most.saturating_sub(number("/sys/fs/cgroup/memory.current", 0).unwrap_or_default())
    });
    machine.into_iter().chain(group).min()
}

fn meminfo_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_room_is_not_complained_about() {
        let machine = Machine {
            somaxconn: Some(4096),
            tcp_pages_max: Some(100_000),
            available_bytes: Some(8 << 30),
            files_max: Some(u64::MAX),
            conntrack_max: None,
        };
        assert_eq!(machine.warnings(40_000), [""; 0]);
        assert_eq!(Machine::default().warnings(u64::from(u32::MAX)), [""; 0]);
    }

    #[test]
    fn every_shortage_is_named_with_what_to_do() {
        let machine = Machine {
            somaxconn: Some(128),
            tcp_pages_max: Some(100_000),
            available_bytes: Some(1 << 30),
            files_max: Some(800_000),
            conntrack_max: Some(262_144),
        };
        let warnings = machine.warnings(1_000_000);
        for (warning, expected) in warnings.iter().zip([
            "sysctl -w net.core.somaxconn=4096",
            "sysctl -w net.ipv4.tcp_mem='750000 1000000 1500000'",
            "sysctl -w fs.file-max=1125000",
            "sysctl -w net.netfilter.nf_conntrack_max=1125000",
            "take 4.9 GiB, and 1.0 GiB are free: --max-connections 204000",
        ]) {
            assert!(warning.ends_with(expected), "{warning}");
        }
        assert_eq!(warnings.len(), 5);
    }

    #[test]
    fn reads_what_is_free() {
        let text = "MemTotal:  24684092 kB\nMemAvailable:   24232876 kB\n";
        assert_eq!(meminfo_bytes(text), Some(24_232_876 * 1024));
        assert_eq!(meminfo_bytes("MemTotal: 1 kB"), None);
    }
}
