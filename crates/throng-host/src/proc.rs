//! Readings from `/proc`: resources of processes and of the kernel, and listening processes.
//!
//! A reading is `None` if the file is absent or not readable: the process has ended, or belongs to
//! another user.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use rustix::param::page_size;

/// Length of a clock tick. `/proc/PID/stat` counts CPU time in ticks.
const TICK_NS: u64 = 10_000_000;

/// State `LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// CPU time of all threads of the process, including threads that have ended, in nanoseconds.
///
/// Exact for sleeping threads; the kernel accounts for a running one at its next tick. The time of
/// ended threads is exact to 20 ms.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let total_ns = stat_ticks(&stat)? * TICK_NS;
    let mut living_ns = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        living_ns += first_number(&text).unwrap_or_default();
    }
    // The total is rounded down to ticks and includes ended threads; `schedstat` is exact.
    Some(total_ns.max(living_ns))
}

/// Proportional set size (Pss) of the process, in bytes.
pub fn pss_bytes(pid: u32) -> Option<u64> {
    kib_field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Memory of a process, pages that several processes map in proportion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// All of it, in bytes: [`pss_bytes`].
    pub bytes: u64,
    /// That of it which is shared memory ([`shared_memory_bytes`]).
    pub shared_bytes: u64,
}

/// The process's mapped memory by kind.
pub fn mapped(pid: u32) -> Option<Mapped> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let bytes = parse_kib(&text, "Pss:")?;
    Some(Mapped { bytes, shared_bytes: parse_kib(&text, "Pss_Shmem:")? })
}

/// Shared memory of the whole machine, in bytes: of memfds and tmpfs, whether a process maps it or
/// not.
pub fn shared_memory_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "Shmem:")
}

/// The processes and all their descendants, without duplicates. A server may fork workers.
///
/// A child may be missing while threads or other children end: the kernel walks lists that change
/// meanwhile (proc_tid_children(5)).
pub fn family(pids: &[u32]) -> Vec<u32> {
    let mut family = Vec::new();
    add_new(&mut family, pids.iter().copied());
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            add_new(&mut family, children.split_whitespace().filter_map(|pid| pid.parse().ok()));
        }
    }
    family
}

fn add_new(family: &mut Vec<u32>, pids: impl Iterator<Item = u32>) {
    for pid in pids {
        if !family.contains(&pid) {
            family.push(pid);
        }
    }
}

/// True if a process with this id exists.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The command name of the process, truncated to 15 bytes by the kernel.
pub fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned())
}

/// Slab memory of the kernel, in bytes.
pub fn slab_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "Slab:")
}

/// Total memory of the machine, in bytes.
pub fn memory_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "MemTotal:")
}

/// Available memory of the machine, in bytes (`MemAvailable`). A control group may allow less.
pub(crate) fn machine_available_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "MemAvailable:")
}

/// Number of threads on the machine.
pub fn threads() -> Option<u64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Packets dropped because a CPU's backlog queue was full, since boot.
pub(crate) fn backlog_drops() -> Option<u64> {
    parse_drops(&fs::read_to_string("/proc/net/softnet_stat").ok()?)
}

/// Number of connections in the conntrack table.
pub(crate) fn tracked_connections() -> Option<u64> {
    number("/proc/sys/net/netfilter/nf_conntrack_count")
}

/// Number of open files on the machine.
pub(crate) fn open_files() -> Option<u64> {
    number("/proc/sys/fs/file-nr")
}

/// TCP usage of this network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketCounts {
    /// IPv4 sockets in use.
    pub in_use: u64,
    /// Sockets in state `TIME_WAIT`.
    pub time_wait: u64,
    /// Memory of socket buffers in bytes, IPv4 and IPv6 together.
    pub buffer_bytes: u64,
}

/// TCP handshake problems since the creation of this network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// Connections dropped because an accept queue was full.
    pub listen_overflows: u64,
    /// Retransmitted SYN packets.
    pub syn_retransmits: u64,
}

/// The handshake counters of this network namespace.
pub fn handshakes() -> Option<Handshakes> {
    parse_handshakes(&fs::read_to_string("/proc/net/netstat").ok()?)
}

/// Parses `/proc/net/netstat`: each group has a line of names and a line of values, with the same
/// prefix.
fn parse_handshakes(netstat: &str) -> Option<Handshakes> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let of = |wanted: &str| {
        let at = names.split_whitespace().position(|name| name == wanted)?;
        numbers.split_whitespace().nth(at)?.parse().ok()
    };
    Some(Handshakes {
        listen_overflows: of("ListenOverflows")?,
        syn_retransmits: of("TCPSynRetrans")?,
    })
}

/// The current TCP usage of this network namespace.
pub fn sockets() -> Option<SocketCounts> {
    parse_sockets(&fs::read_to_string("/proc/net/sockstat").ok()?, page_size() as u64)
}

/// How often the tables of sockets are read before a socket counts as absent.
const TABLE_READS: usize = 3;

/// The ids of the processes that listen on a TCP port of this machine, ascending.
///
/// Includes sockets in private descriptor tables. Only root sees processes of other users.
pub fn listeners(port: u16) -> Vec<u32> {
    let inodes = listening(port);
    let inodes: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    if inodes.is_empty() {
        return Vec::new();
    }
    let nearby: Vec<u32> = numbers_in("/proc").filter(|&pid| is_on_our_network(pid)).collect();
    let mut found: Vec<u32> = nearby
        .iter()
        .copied()
        .filter(|pid| has_open(&format!("/proc/{pid}/fd"), &inodes))
        .collect();
    if found.is_empty() {
        found.extend(nearby.iter().filter(|pid| {
            let tasks = format!("/proc/{pid}/task");
            numbers_in(&tasks).any(|task| has_open(&format!("{tasks}/{task}/fd"), &inodes))
        }));
    }
    found.sort_unstable();
    found
}

/// True if any process, of any user, listens on a TCP port of this machine.
pub fn is_listened_on(port: u16) -> bool {
    !listening(port).is_empty()
}

/// The inodes of the sockets that listen on a TCP port.
///
/// The kernel hands out the tables a page at a time, and may leave out a socket while others come
/// and go between two pages. So if none is found, the tables are read again.
fn listening(port: u16) -> Vec<String> {
    let read = || -> Vec<String> {
        let tables = socket_tables();
        let inodes = tables.iter().flat_map(|table| listening_inodes(table, port));
        inodes.map(str::to_owned).collect()
    };
    let found = std::iter::repeat_with(read).take(TABLE_READS).find(|inodes| !inodes.is_empty());
    found.unwrap_or_default()
}

/// The headers and listening sockets of `/proc/net/tcp` and `tcp6`.
///
/// Stops after the listening sockets, which come first: with a million connections the whole file
/// takes seconds to read and hundreds of megabytes to hold.
fn socket_tables() -> Vec<String> {
    let paths = ["/proc/net/tcp", "/proc/net/tcp6"];
    let listening = |path| {
        let lines = BufReader::new(File::open(path).ok()?).lines().map_while(Result::ok);
        let is_read_on = |(nth, line): &(usize, String)| *nth == 0 || is_listening(line);
        let lines: Vec<String> =
            lines.enumerate().take_while(is_read_on).map(|(_, line)| line).collect();
        Some(lines.join("\n"))
    };
    paths.into_iter().filter_map(listening).collect()
}

fn is_listening(line: &str) -> bool {
    line.split_whitespace().nth(3) == Some(LISTEN)
}

fn numbers_in(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// True if a process may be in our network namespace: it is, or its namespace cannot be read.
/// Skips other namespaces because a server with a million descriptors there would take seconds to
/// scan.
fn is_on_our_network(pid: u32) -> bool {
    let network = |pid: &dyn std::fmt::Display| fs::read_link(format!("/proc/{pid}/ns/net"));
    match (network(&"self"), network(&pid)) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        _ => true,
    }
}

fn has_open(folder: &str, names: &[String]) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| names.iter().any(|name| target.as_os_str() == name.as_str()))
    })
}

/// The inodes of the sockets in `/proc/net/tcp` that listen on `port`.
fn listening_inodes(table: &str, port: u16) -> Vec<&str> {
    let port = format!(":{port:04X}");
    let listening = |line: &'_ str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        (local.ends_with(&port) && state == LISTEN).then_some(())
    };
    let lines = table.lines().skip(1).filter(|line| listening(line).is_some());
    lines.filter_map(|line| line.split_whitespace().nth(9)).collect()
}

/// User plus system time of `/proc/PID/stat`, in ticks. The command name before the numbers may
/// contain spaces and brackets.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    Some(user + fields.next()?.parse::<u64>().ok()?)
}

/// The kernel counts the memory of sockets in pages.
fn parse_sockets(text: &str, page_bytes: u64) -> Option<SocketCounts> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name| {
        let pair = words.chunks_exact(2).find(|pair| pair[0] == name)?;
        pair[1].parse::<u64>().ok()
    };
    Some(SocketCounts {
        in_use: value("inuse")?,
        time_wait: value("tw")?,
        buffer_bytes: value("mem")? * page_bytes,
    })
}

/// The sum of the second column, which has one hexadecimal number per CPU.
fn parse_drops(softnet: &str) -> Option<u64> {
    let drops = softnet.lines().map(|line| {
        let field = line.split_whitespace().nth(1)?;
        u64::from_str_radix(field, 16).ok()
    });
    drops.sum()
}

pub(crate) fn kib_field(path: &str, field: &str) -> Option<u64> {
    parse_kib(&fs::read_to_string(path).ok()?, field)
}

fn parse_kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(first_number(line)? * 1024)
}

fn number(path: &str) -> Option<u64> {
    first_number(&fs::read_to_string(path).ok()?)
}

pub(crate) fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn fields_match_by_their_full_name() {
        let text = "Rss:  10 kB\nPss:     7 kB\nPss_Dirty: 3 kB\n";
        assert_eq!(parse_kib(text, "Pss:"), Some(7 * 1024));
        assert_eq!(parse_kib(text, "Swap:"), None);
        assert_eq!(first_number("123456 789 5\n"), Some(123_456));
        assert_eq!(first_number("max\n"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert!(exists(pid) && !exists(u32::MAX));
        assert!(pss_bytes(pid) > Some(0) && shared_memory_bytes().is_some());
        assert!(mapped(pid).is_some_and(|it| it.bytes > it.shared_bytes));
        assert!(cpu_ns(pid).is_some());
        assert!(cpu_ns(u32::MAX).is_none());
        assert!(name(pid).is_some());
        assert_eq!(family(&[pid, pid])[0], pid);
        assert_eq!(family(&[pid, pid]).iter().filter(|&&each| each == pid).count(), 1);
        assert!(slab_bytes() > Some(0));
        assert!(machine_available_bytes() <= memory_bytes());
        assert!(threads() > Some(0) && backlog_drops().is_some());
        assert!(sockets().is_some());
    }

    #[test]
    fn a_family_includes_children_once() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let own = std::process::id();
        // Other tests end threads and children, so one reading may miss it.
        let is_found = (0..100).any(|_| family(&[own]).contains(&child.id()));
        let both = family(&[own, child.id()]);
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(is_found);
        assert_eq!(both.iter().filter(|&&pid| pid == child.id()).count(), 1, "{both:?}");
    }

    #[test]
    fn cpu_time_includes_ended_threads() {
        let pid = std::process::id();
        let before_ns = cpu_ns(pid).expect("read");
        let work = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(60) {}
        };
        std::thread::spawn(work).join().expect("ran");
        let after_ns = cpu_ns(pid).expect("read");
        // On a busy machine the thread gets less than 60 ms, but the total never decreases.
        assert!(after_ns + 2 * TICK_NS >= before_ns, "{before_ns} {after_ns}");
    }

    #[test]
    fn a_listening_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        // A child that another test is starting has the listener for a moment, even a closed one.
        let own = [std::process::id()];
        assert!((0..1000).any(|_| listeners(port) == own), "{:?}", listeners(port));
        assert!(is_listened_on(port));
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        assert!(!is_listened_on(client.local_addr().expect("an address").port()));
    }

    #[test]
    fn a_listener_in_a_private_table_is_found() {
        let (port_sender, port_receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = crate::private_table::spawn("listener".to_owned(), move |unshared| {
            unshared.expect("the kernel allows it");
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            port_sender.send(listener.local_addr().expect("an address").port()).expect("awaited");
            // Returns an error once the test drops the sender.
            let _ = ended.recv();
        });
        let port = port_receiver.recv().expect("a port");
        let found = listeners(port);
        drop(end);
        thread.expect("started").join().expect("ran");
        assert_eq!(found, [std::process::id()]);
    }

    #[test]
    fn proc_files_are_parsed() {
        let table = "  sl  local_address rem_address   st\n\
             0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 771 1\n\
             1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  0 0 772 1\n";
        assert_eq!(listening_inodes(table, 8080), ["771"]);
        assert!(listening_inodes(table, 80).is_empty());
        assert_eq!(
            parse_sockets("sockets: used 9\nTCP: inuse 3 orphan 0 tw 2 alloc 4 mem 5\n", 65_536),
            Some(SocketCounts { in_use: 3, time_wait: 2, buffer_bytes: 5 * 65_536 })
        );
        assert_eq!(parse_drops("0a1 2 3\n0b1 0f 0\n"), Some(17));
        assert_eq!(parse_drops("0a1\n"), None);
        assert_eq!(
            parse_handshakes(
                "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPSynRetrans\n\
                 TcpExt: 1 2 3 4\nIpExt: InNoRoutes\nIpExt: 5\n"
            ),
            Some(Handshakes { listen_overflows: 2, syn_retransmits: 4 })
        );
        assert_eq!(parse_handshakes("TcpExt: A\nTcpExt: 1\n"), None);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 12 30 0 0 20 0 1";
        assert_eq!(stat_ticks(stat), Some(42));
    }
}
