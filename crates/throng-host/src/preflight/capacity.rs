//! The limits and free resources of a machine, read before a start.

use rustix::process::{Resource, geteuid, getrlimit};

use super::demand::Demand;
use crate::{cgroup, environment, proc, sysctl};

/// The limits and free resources of a machine. A value that could not be read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The hard descriptor limit that a server started from this process inherits, per table.
    pub descriptors: Option<u64>,
    /// The descriptor limit of this process, after raising it; `None` if the demand has no clients.
    pub own_descriptors: Option<u64>,
    /// The maximum of any descriptor limit (`fs.nr_open`).
    pub nr_open: Option<u64>,
    /// Maximum number of open files on the machine.
    pub files_max: Option<u64>,
    /// Current number of open files on the machine.
    pub files_open: u64,
    /// How many threads can still be started, and by which limit.
    pub threads: Option<Threads>,
    pub local_ports: Option<(u16, u16)>,
    /// Ports excluded from the ephemeral range, in the kernel's form: `8080,28000-28199`.
    pub reserved_ports: Option<String>,
    /// `tcp_tw_reuse`: whether ports in `TIME_WAIT` may be reused. 0 for never, 1 for always, 2 for
    /// loopback only.
    pub tw_reuse: Option<u64>,
    pub firewall: Firewall,
    /// Maximum length of an accept queue.
    pub somaxconn: Option<u64>,
    /// Maximum number of half-open connections of a listener.
    pub syn_backlog: Option<u64>,
    /// `tcp_syncookies`: 0 for off, 1 for a full queue, 2 for always.
    pub syncookies: Option<u64>,
    /// The backlog queue length per CPU, and the number of packets dropped because it was full.
    pub netdev_backlog: Option<(u64, u64)>,
    /// Number of buckets in the hash table of established connections.
    pub established_buckets: Option<u64>,
    /// `tcp_mem`, in pages: no limits apply below the first, memory pressure begins at the second,
    /// allocation fails above the third.
    pub tcp_pages: Option<[u64; 3]>,
    pub memory: Option<AvailableMemory>,
}

/// How many threads can still be started, and by which limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threads {
    pub more: u64,
    pub by: ThreadLimit,
}

/// The limit of the number of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadLimit {
    /// A kernel setting, with its value.
    Setting(&'static str, u64),
    /// A control group, by its folder.
    Group(String),
    /// The user's limit (`ulimit -u`).
    User,
}

/// The state of connection tracking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Firewall {
    #[default]
    Absent,
    /// Connection tracking exists, but cannot be read.
    Unknown,
    /// Connection tracking is loaded; `now` is 0 if no rule uses it.
    Tracking {
        now: u64,
        /// Maximum number of tracked connections.
        most: u64,
        /// Hash buckets of the table.
        buckets: Option<u64>,
    },
}

/// The available memory and what limits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableMemory {
    pub bytes: u64,
    /// The control group that limits it; `None` if the machine does.
    pub group: Option<String>,
}

impl Capacity {
    /// Reads this machine.
    ///
    /// If the demand has clients, raises the descriptor limit of this process as far as they need
    /// and the system permits. Changes nothing else.
    pub fn read(demand: &Demand) -> Capacity {
        let number = |name| sysctl::number(name, 0);
        let page = |nth| sysctl::number("net.ipv4.tcp_mem", nth);
        let pages = || Some([page(0)?, page(1)?, page(2)?]);
        // Read before this process raises its limit: a server inherits the original one.
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let own = demand.clients.as_ref().map(|clients| {
            let threads = clients.tables.threads_least;
            let share = clients.tables.descriptors_with(demand.connections, threads);
            environment::raise_descriptors(share)
        });
        Capacity {
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

/// The value is negative in a namespace that shares the table of the initial one.
fn established_buckets() -> Option<u64> {
    let entries: i64 = sysctl::read("net.ipv4.tcp_ehash_entries")?.parse().ok()?;
    Some(entries.unsigned_abs())
}

fn firewall() -> Firewall {
    // Both settings exist once the kernel module is loaded.
    if !sysctl::exists("net.netfilter.nf_conntrack_max") {
        return Firewall::Absent;
    }
    let most = sysctl::number("net.netfilter.nf_conntrack_max", 0);
    match most.zip(proc::tracked_connections()) {
        Some((most, now)) => Firewall::Tracking {
            now,
            most,
            buckets: sysctl::number("net.netfilter.nf_conntrack_buckets", 0),
        },
        None => Firewall::Unknown,
    }
}

fn memory() -> Option<AvailableMemory> {
    let machine =
        proc::machine_available_bytes().map(|bytes| AvailableMemory { bytes, group: None });
    let group = cgroup::memory_left().map(|left| AvailableMemory {
        bytes: left.amount,
        group: Some(left.group.display().to_string()),
    });
    machine.into_iter().chain(group).min_by_key(|memory| memory.bytes)
}

fn threads() -> Option<Threads> {
    let running = proc::threads()?;
    // Thread ids and process ids share one number space.
    let settings = ["kernel.threads-max", "kernel.pid_max"].into_iter().filter_map(|name| {
        let most = sysctl::number(name, 0)?;
        let by = ThreadLimit::Setting(name, most);
        Some(Threads { more: most.saturating_sub(running), by })
    });
    let group = cgroup::threads_left().map(|left| Threads {
        more: left.amount,
        by: ThreadLimit::Group(left.group.display().to_string()),
    });
    // The limit does not apply to root. Threads of the user's other processes are not counted.
    let user = getrlimit(Resource::Nproc).maximum.filter(|_| !geteuid().is_root());
    let user = user.map(|more| Threads { more, by: ThreadLimit::User });
    settings.chain(group).chain(user).min_by_key(|threads| threads.more)
}
