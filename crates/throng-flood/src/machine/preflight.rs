//! How many connections a choice of sources, ports, threads and machine allows: said before a run
//! starts, not found out in the middle of it.
//!
//! Some limits are hard: beyond them a connect fails. They refuse the run. Others spoil figures or
//! endanger the machine at worst: they are warned of. What cannot be read is taken to allow all.

use throng_machine::sysctl;
use throng_machine::{environment, proc};

use crate::report::figures::{bytes, count, counted};

/// Descriptors of a thread beside its connections: what it inherits, its epoll, its waker.
pub const DESCRIPTORS_SLACK: u64 = 128;

/// Source addresses that the generator can take by itself on loopback.
const LOOPBACK_ADDRESSES: u64 = 250 * 250;

/// Widest range of local ports without those below 1024.
const PORTS_WIDEST: (u16, u16) = (1024, 65_535);

/// A socket at rest in the kernel, with its epoll entry: measured 3.9 to 5.0 KiB.
const SOCKET_BYTES: (u64, u64) = (3_900, 5_100);

/// The generator's own share of a client, and as much for a frugal server.
const USER_BYTES: u64 = 64;

/// Connections that the firewall follows take this much at least.
const CONNTRACK_BYTES: u64 = 256;

/// What a run is about to ask of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The most clients there will be.
    pub clients: u64,
    /// Client threads, each with a descriptor table of its own.
    pub threads: u64,
    /// Local addresses to connect from; `None` if as many of 127.x are taken as are needed.
    pub addresses: Option<u64>,
    /// Local ports to use from each; `None` for the kernel's choice.
    pub ports: Option<(u16, u16)>,
    /// Ports of the target.
    pub target_ports: u64,
    /// Connects under way at once.
    pub in_flight: u64,
    /// Whether the target is on this machine, which then holds both ends of each connection.
    pub is_loopback: bool,
    /// Whether messages are published: each delivery waits in a buffer until it is read.
    pub is_publishing: bool,
}

/// What the machine has to give.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// Descriptors of a table.
    pub descriptors: Option<u64>,
    /// The kernel's own range of local ports.
    pub local_ports: Option<(u16, u16)>,
    /// Ports of the range in use that the kernel does not give out.
    pub reserved_ports: u64,
    /// Files that can still be opened in the whole system.
    pub files: Option<u64>,
    /// Connections that the firewall can still follow.
    pub tracked: Option<u64>,
    /// The longest queue of connections that nobody has accepted yet.
    pub somaxconn: Option<u64>,
    /// Connections of which the last word of the handshake is still awaited.
    pub syn_backlog: Option<u64>,
    /// Pages of memory that all TCP buffers may take before the kernel holds them back.
    pub tcp_pages: Option<u64>,
    /// Memory that is free.
    pub memory_bytes: Option<u64>,
}

/// What the choice allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    /// As many as were wanted.
    pub wanted: u64,
    /// So many connections are possible.
    pub allowed: u64,
    /// What allows no more, in a few words.
    pub because: String,
    /// Commands that raise what is too low, in the order in which they matter.
    pub help: Vec<String>,
    /// Sentences on what may spoil the figures.
    pub warnings: Vec<String>,
}

/// A hard limit.
struct Limit {
    allows: u64,
    because: String,
    help: Vec<String>,
}

/// Client threads for so many clients: as descriptors ask for, and no fewer than `threads_least`.
pub fn threads_for(clients: u64, descriptors: u64, threads_least: u64) -> u64 {
    let each = descriptors.saturating_sub(DESCRIPTORS_SLACK).max(1);
    clients.div_ceil(each).max(threads_least).max(1)
}

impl Room {
    /// Raises the descriptor limit as far as it may be, and looks at this machine.
    pub fn look(wanted: &Wanted) -> Room {
        let number = |name| sysctl::number(name, 0);
        let each = wanted.clients.div_ceil(wanted.threads.max(1)) + DESCRIPTORS_SLACK;
        let local_ports = sysctl::local_ports();
        let reserved = local_ports.filter(|_| wanted.ports.is_none());
        let reserved = reserved.map_or(0, |(low, high)| sysctl::reserved_ports(low, high));
        Room {
            descriptors: Some(environment::raise_descriptors(each)),
            local_ports,
            reserved_ports: reserved as u64,
            files: number("fs.file-max")
                .map(|most| most.saturating_sub(proc::open_files().unwrap_or_default())),
            // The limit is there with the module; whether anything is followed, the count tells.
            tracked: number("net.netfilter.nf_conntrack_max")
                .zip(proc::tracked_connections().filter(|&count| count > 0))
                .map(|(most, count)| most.saturating_sub(count)),
            somaxconn: number("net.core.somaxconn"),
            syn_backlog: number("net.ipv4.tcp_max_syn_backlog"),
            tcp_pages: sysctl::number("net.ipv4.tcp_mem", 1),
            memory_bytes: proc::available_bytes(),
        }
    }

    /// What this room allows of what is wanted.
    pub fn check(&self, wanted: &Wanted) -> Preflight {
        let limits = [
            self.ports(wanted),
            self.descriptors(wanted),
            self.files(wanted),
            self.tracked(wanted),
            self.memory(wanted),
        ];
        let limits: Vec<Limit> = limits.into_iter().flatten().collect();
        let lowest = limits.iter().min_by_key(|limit| limit.allows);
        let mut short: Vec<&Limit> =
            limits.iter().filter(|limit| limit.allows < wanted.clients).collect();
        short.sort_by_key(|limit| limit.allows);
        Preflight {
            wanted: wanted.clients,
            allowed: lowest.map_or(u64::MAX, |limit| limit.allows),
            because: lowest.map_or_else(String::new, |limit| limit.because.clone()),
            help: short.iter().flat_map(|limit| limit.help.iter().cloned()).collect(),
            warnings: self.warnings(wanted),
        }
    }

    fn ports(&self, wanted: &Wanted) -> Option<Limit> {
        let (low, high) = wanted.ports.or(self.local_ports)?;
        let reserved = if wanted.ports.is_some() { 0 } else { self.reserved_ports };
        let ports = (u64::from(high.saturating_sub(low)) + 1).saturating_sub(reserved);
        let addresses = wanted.addresses.unwrap_or(LOOPBACK_ADDRESSES);
        let targets = wanted.target_ports.max(1);
        let allows = addresses.saturating_mul(ports).saturating_mul(targets);
        let because = format!(
            "{} × {} × {}",
            counted(addresses, "local address", "local addresses"),
            counted(ports, "local port", "local ports"),
            counted(targets, "target port", "target ports"),
        );
        let mut help = Vec::new();
        let (lowest, highest) = PORTS_WIDEST;
        let widest = u64::from(highest - lowest) + 1;
        if wanted.ports.is_none() && ports < widest {
            let value = format!("{lowest} {highest}");
            help.push(sysctl::command("net.ipv4.ip_local_port_range", &value));
        }
        let each = widest.max(ports) * targets;
        if each * addresses < wanted.clients {
            let needed = wanted.clients.div_ceil(each);
            help.push(format!("give {needed} local addresses, or more target ports"));
        }
        Some(Limit { allows, because, help })
    }

    fn descriptors(&self, wanted: &Wanted) -> Option<Limit> {
        let each = self.descriptors?.saturating_sub(DESCRIPTORS_SLACK);
        let allows = each.saturating_mul(wanted.threads);
        let because = format!(
            "{} × {} descriptors",
            counted(wanted.threads, "client thread", "client threads"),
            count(each)
        );
        let threads = threads_for(wanted.clients, self.descriptors?, wanted.threads);
        let share = wanted.clients.div_ceil(wanted.threads.max(1)) + DESCRIPTORS_SLACK;
        Some(Limit {
            allows,
            because,
            help: vec![format!("take {threads} threads, or ulimit -Hn {share}")],
        })
    }

    fn files(&self, wanted: &Wanted) -> Option<Limit> {
        let files = self.files?;
        let ends = wanted.ends();
        let needed = wanted.clients * ends;
        let because = format!(
            "{} more files in the whole system{}",
            count(files),
            if ends > 1 { ", and both ends of a connection are here" } else { "" }
        );
        let value = (needed + needed / 8).to_string();
        Some(Limit {
            allows: files / ends,
            because,
            help: vec![sysctl::command("fs.file-max", &value)],
        })
    }

    fn tracked(&self, wanted: &Wanted) -> Option<Limit> {
        let allows = self.tracked?;
        let value = (wanted.clients + wanted.clients / 8).to_string();
        Some(Limit {
            allows,
            because: format!("{} more connections that the firewall can follow", count(allows)),
            help: vec![sysctl::command("net.netfilter.nf_conntrack_max", &value)],
        })
    }

    /// Refused only if even the least that a connection takes is not there: the rest is a guess.
    fn memory(&self, wanted: &Wanted) -> Option<Limit> {
        let free = self.memory_bytes?;
        let (least, _) = self.connection_bytes(wanted);
        let because =
            format!("{} of free memory, {} a connection", bytes(free as f64), bytes(least as f64));
        Some(Limit {
            allows: free / least,
            because,
            help: vec!["take a machine with more memory, or several".to_owned()],
        })
    }

    fn connection_bytes(&self, wanted: &Wanted) -> (u64, u64) {
        let tracked = if self.tracked.is_some() { CONNTRACK_BYTES } else { 0 };
        let (least, most) = SOCKET_BYTES;
        let ends = wanted.ends();
        (ends * least + USER_BYTES + tracked, ends * (most + USER_BYTES) + tracked)
    }

    fn warnings(&self, wanted: &Wanted) -> Vec<String> {
        let mut warnings = Vec::new();
        let in_flight = wanted.in_flight.min(wanted.clients);
        // Only a listener of this machine has our settings.
        let queues = [
            ("net.core.somaxconn", self.somaxconn, "wait to be accepted"),
            ("net.ipv4.tcp_max_syn_backlog", self.syn_backlog, "be in their handshake"),
        ];
        for (name, found, what) in queues {
            let Some(found) = found.filter(|&found| wanted.is_loopback && found < in_flight) else {
                continue;
            };
            warnings.push(format!(
                "{} connections may be under way at once and {} may {what}: one that is turned \
                 away tries again after a second; {} helps.",
                count(in_flight),
                count(found),
                sysctl::command(name, &in_flight.next_power_of_two().to_string()),
            ));
        }
        let pages = wanted.clients;
        if wanted.is_publishing && self.tcp_pages.is_some_and(|found| found < pages) {
            let value = format!("{} {pages} {}", pages / 4 * 3, pages / 2 * 3);
            warnings.push(format!(
                "A message to all takes a page of each connection until it is read, {} pages, \
                 and TCP as a whole is held back at {}: {} helps.",
                count(pages),
                count(self.tcp_pages.unwrap_or_default()),
                sysctl::command("net.ipv4.tcp_mem", &value),
            ));
        }
        let (least, most) = self.connection_bytes(wanted);
        let fits = |each: u64| self.memory_bytes.is_none_or(|free| free / each >= wanted.clients);
        if fits(least) && !fits(most) {
            warnings.push(format!(
                "So many connections may take {} and {} are free: the machine may run out of \
                 memory.",
                bytes((most * wanted.clients) as f64),
                bytes(self.memory_bytes.unwrap_or_default() as f64),
            ));
        }
        warnings
    }
}

impl Wanted {
    /// Ends of each connection that are on this machine.
    fn ends(&self) -> u64 {
        1 + u64::from(self.is_loopback)
    }
}

impl Preflight {
    /// What the choice allows, in one line.
    pub fn summary(&self) -> String {
        if self.allowed == u64::MAX {
            return format!("room for {} connections and more", count(self.wanted));
        }
        format!("room for {} connections: {}", count(self.allowed), self.because)
    }

    /// Why the run cannot start, and what helps; `None` if it can.
    pub fn refusal(&self) -> Option<String> {
        if self.allowed >= self.wanted {
            return None;
        }
        let mut text = format!(
            "{} are wanted and there is room for {}: {}.",
            counted(self.wanted, "connection", "connections"),
            count(self.allowed),
            self.because
        );
        if !self.help.is_empty() {
            text.push_str(" What helps:");
            for help in &self.help {
                text.push_str("\n  ");
                text.push_str(help);
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(clients: u64) -> Wanted {
        Wanted {
            clients,
            threads: 64,
            addresses: None,
            ports: None,
            target_ports: 1,
            in_flight: 1_000,
            is_loopback: true,
            is_publishing: true,
        }
    }

    fn room() -> Room {
        Room {
            descriptors: Some(20_000),
            local_ports: Some((32_768, 60_999)),
            reserved_ports: 0,
            files: Some(u64::MAX / 2),
            tracked: None,
            somaxconn: Some(4096),
            syn_backlog: Some(4096),
            tcp_pages: Some(2_000_000),
            memory_bytes: Some(20 << 30),
        }
    }

    #[test]
    fn a_million_fits_where_there_is_room() {
        let found = room().check(&wanted(1_000_000));
        assert_eq!(found.refusal(), None);
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        assert_eq!(
            found.summary(),
            "room for 1,271,808 connections: 64 client threads × 19,872 descriptors"
        );
    }

    #[test]
    fn too_few_ports_is_one_sentence_with_what_helps() {
        let from_outside = Wanted { addresses: Some(1), is_loopback: false, ..wanted(1_000_000) };
        let text = room().check(&from_outside).refusal().expect("refused");
        assert_eq!(
            text,
            "1,000,000 connections are wanted and there is room for 28,232: 1 local address × \
             28,232 local ports × 1 target port. What helps:\n  sysctl -w \
             net.ipv4.ip_local_port_range=\"1024 65535\"\n  give 16 local addresses, or more \
             target ports"
        );
        let more = Wanted { addresses: Some(16), target_ports: 3, ..from_outside };
        assert_eq!(room().check(&more).refusal(), None);
        let few = Wanted { ports: Some((10_000, 10_999)), addresses: Some(2), ..wanted(10_000) };
        let text = room().check(&few).refusal().expect("refused");
        assert!(text.contains("2 local addresses × 1,000 local ports"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }

    #[test]
    fn every_hard_limit_is_named_with_its_setting() {
        let small = Room {
            descriptors: Some(1_024),
            files: Some(100_000),
            tracked: Some(262_144),
            memory_bytes: Some(1 << 30),
            ..room()
        };
        let text = small.check(&wanted(1_000_000)).refusal().expect("refused");
        assert!(
            text.starts_with("1,000,000 connections are wanted and there is room for 50,000: ")
        );
        for help in [
            "take 1117 threads, or ulimit -Hn 15753",
            "sysctl -w fs.file-max=2250000",
            "sysctl -w net.netfilter.nf_conntrack_max=1125000",
            "take a machine with more memory",
        ] {
            assert!(text.contains(help), "{help} is not in {text}");
        }
    }

    #[test]
    fn what_spoils_figures_is_warned_of() {
        let small = Room {
            somaxconn: Some(128),
            syn_backlog: Some(256),
            tcp_pages: Some(98_152),
            memory_bytes: Some(9 << 30),
            ..room()
        };
        let found = small.check(&wanted(1_000_000));
        assert_eq!(found.refusal(), None);
        let all = found.warnings.join("\n");
        for expected in [
            "sysctl -w net.core.somaxconn=1024",
            "sysctl -w net.ipv4.tcp_max_syn_backlog=1024",
            "sysctl -w net.ipv4.tcp_mem=\"750000 1000000 1500000\"",
            "may run out of memory",
        ] {
            assert!(all.contains(expected), "{expected} is not in {all}");
        }
        // A target elsewhere has queues of its own.
        let outside = Wanted { is_loopback: false, addresses: Some(100), ..wanted(1_000_000) };
        assert!(!small.check(&outside).warnings.join("").contains("somaxconn"));
    }

    #[test]
    fn what_is_not_known_is_not_spoken_of() {
        let found = Room::default().check(&wanted(u64::from(u32::MAX)));
        assert_eq!(found.refusal(), None);
        assert!(found.warnings.is_empty());
        assert!(found.summary().starts_with("room for 4,294,967,295 connections and more"));
    }

    #[test]
    fn this_machine_has_room_for_a_few() {
        let few = wanted(100);
        let found = Room::look(&few).check(&few);
        assert_eq!(found.refusal(), None);
    }

    #[test]
    fn threads_are_as_many_as_descriptors_ask_for() {
        assert_eq!(threads_for(1_000_000, 20_000, 2), 51);
        assert_eq!(threads_for(10, 20_000, 2), 2);
        assert_eq!(threads_for(10, 0, 0), 10);
    }
}
