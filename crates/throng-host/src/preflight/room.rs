//! What a machine has to give, as read before anything is asked of it.

use rustix::process::{Resource, geteuid, getrlimit};

use super::wanted::Wanted;
use crate::{cgroup, environment, proc, sysctl};

/// What a machine has to give. What could not be read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// Descriptors of a table, as a server that is started from here may have them.
    pub descriptors: Option<u64>,
    /// The same for this process, which may have raised its limit.
    pub own_descriptors: Option<u64>,
    /// The most that the descriptor limit may be raised to.
    pub nr_open: Option<u64>,
    /// Files that may be open in the whole system.
    pub files_max: Option<u64>,
    /// Files that are.
    pub files_open: u64,
    /// Threads that can still be started, and what allows no more.
    pub threads: Option<Threads>,
    /// The kernel's own range of local ports.
    pub local_ports: Option<(u16, u16)>,
    /// Ports that the kernel is told not to give out, as it writes them: `8080,28000-28199`.
    pub reserved_ports: Option<String>,
    /// Whether ports that linger after a connection's end may be taken again: 0, 1, or 2 for
    /// loopback alone.
    pub tw_reuse: Option<u64>,
    /// What the firewall follows, where there is one.
    pub firewall: Firewall,
    /// The longest queue of connections that nobody has accepted yet.
    pub somaxconn: Option<u64>,
    /// Connections of which the last word of the handshake is still awaited.
    pub syn_backlog: Option<u64>,
    /// Whether a full queue answers with cookies: 0, 1, or 2 for always.
    pub syncookies: Option<u64>,
    /// Packets that may wait for a processor, and how many found no room so far.
    pub netdev_backlog: Option<(u64, u64)>,
    /// Buckets of the table in which packets find their connections.
    pub established_buckets: Option<u64>,
    /// Pages of memory of all TCP buffers: below the first all is well, above the second they are
    /// held back, above the third refused.
    pub tcp_pages: Option<[u64; 3]>,
    /// Memory that is free.
    pub memory: Option<Memory>,
}

/// Threads that can still be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threads {
    /// So many more.
    pub more: u64,
    /// What limits them.
    pub by: ThreadLimit,
}

/// What limits threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadLimit {
    /// A kernel setting, with its value.
    Setting(&'static str, u64),
    /// A control group, by its folder.
    Group(String),
    /// The user's limit (`ulimit -u`).
    User,
}

/// What a firewall follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Firewall {
    /// There is none that follows connections.
    #[default]
    Absent,
    /// A firewall may exist, but cannot be read.
    Unknown,
    /// The firewall tracks connections.
    Follows {
        /// Connections tracked now.
        now: u64,
        /// Maximum number of tracked connections.
        most: u64,
        /// Hash buckets of the table.
        buckets: Option<u64>,
    },
}

/// Memory that is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Free memory in bytes.
    pub bytes: u64,
    /// The control group that limits it; `None` if the machine does.
    pub group: Option<String>,
}

impl Room {
    /// Looks at this machine.
    ///
    /// If clients are wanted, raises this process's descriptor limit as far as it may be and they
    /// need; nothing else is changed.
    pub fn look(wanted: &Wanted) -> Room {
        let number = |name| sysctl::number(name, 0);
        let page = |nth| sysctl::number("net.ipv4.tcp_mem", nth);
        let pages = || Some([page(0)?, page(1)?, page(2)?]);
        // Before this process raises its own: others get what it was started with.
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let own = wanted.clients.as_ref().map(|clients| {
            let threads = clients.tables.threads_least;
            let share = clients.tables.descriptors_with(wanted.connections, threads);
            environment::raise_descriptors(share)
        });
        Room {
            descriptors: Some(descriptors),
            own_descriptors: own,
            nr_open: number("fs.nr_open"),
            files_max: number("fs.file-max"),
            files_open: proc::open_files().unwrap_or_default(),
            threads: threads(),
            local_ports: sysctl::local_ports(),
            reserved_ports: sysctl::read("net.ipv4.ip_local_reserved_ports"),
            tw_reuse: number("net.ipv4.tcp_tw_reuse"),
            firewall: firewall(),
            somaxconn: number("net.core.somaxconn"),
            syn_backlog: number("net.ipv4.tcp_max_syn_backlog"),
            syncookies: number("net.ipv4.tcp_syncookies"),
            netdev_backlog: number("net.core.netdev_max_backlog").zip(proc::backlog_drops()),
            established_buckets: established_buckets(),
            tcp_pages: pages(),
            memory: memory(),
        }
    }
}

/// A namespace that shares the table of the first one shows the number with a minus.
fn established_buckets() -> Option<u64> {
    let entries: i64 = sysctl::read("net.ipv4.tcp_ehash_entries")?.parse().ok()?;
    Some(entries.unsigned_abs())
}

fn firewall() -> Firewall {
    // Both are there with the kernel's module; whether anything is followed, the count tells.
    if !sysctl::exists("net.netfilter.nf_conntrack_max") {
        return Firewall::Absent;
    }
    let most = sysctl::number("net.netfilter.nf_conntrack_max", 0);
    match most.zip(proc::tracked_connections()) {
        Some((most, now)) => Firewall::Follows {
            now,
            most,
            buckets: sysctl::number("net.netfilter.nf_conntrack_buckets", 0),
        },
        None => Firewall::Unknown,
    }
}

fn memory() -> Option<Memory> {
    let machine = proc::machine_available_bytes().map(|bytes| Memory { bytes, group: None });
    let group = cgroup::memory_left()
        .map(|left| Memory { bytes: left.amount, group: Some(left.group.display().to_string()) });
    machine.into_iter().chain(group).min_by_key(|memory| memory.bytes)
}

fn threads() -> Option<Threads> {
    let running = proc::threads()?;
    // A thread's number is one of those of processes.
    let settings = ["kernel.threads-max", "kernel.pid_max"].into_iter().filter_map(|name| {
        let most = sysctl::number(name, 0)?;
        let by = ThreadLimit::Setting(name, most);
        Some(Threads { more: most.saturating_sub(running), by })
    });
    let group = cgroup::threads_left().map(|left| Threads {
        more: left.amount,
        by: ThreadLimit::Group(left.group.display().to_string()),
    });
    // Root is not held to its limit. What other processes of the user have is not looked up.
    let user = getrlimit(Resource::Nproc).maximum.filter(|_| !geteuid().is_root());
    let user = user.map(|more| Threads { more, by: ThreadLimit::User });
    settings.chain(group).chain(user).min_by_key(|threads| threads.more)
}
