//! Readings from `/proc`: what a process and the kernel use, and who listens where.
//!
//! Processes may be anybody's: numbers are what the kernel tells, `None` where it tells nothing
//! (the process has gone, or belongs to another user).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// The kernel counts the processor time of threads that have ended in such steps.
const TICK_NS: u64 = 10_000_000;

/// The kernel counts the memory of sockets in pages.
const PAGE_BYTES: u64 = 4096;

/// State `LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Processor time that all threads of the process have had, in nanoseconds.
///
/// Exact while they sleep (a running thread is accounted for at the next tick). The time of threads
/// that have ended is exact to 20 ms.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let whole_ns = stat_ticks(&stat)? * TICK_NS;
    let mut living_ns = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        living_ns += first_number(&text).unwrap_or_default();
    }
    // The whole is cut to ticks but has the threads that ended; the living ones are exact.
    Some(whole_ns.max(living_ns))
}

/// The process's proportional share of memory, in bytes.
pub fn pss_bytes(pid: u32) -> Option<u64> {
    kib_field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// The processes and their descendants, each once: a server may be a master and its workers.
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

/// Whether there is such a process.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The name of the process's program, as the kernel keeps it.
pub fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned())
}

/// Kernel memory in slabs, of the whole machine, in bytes.
pub fn slab_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "Slab:")
}

/// Memory of the machine, in bytes.
pub fn memory_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "MemTotal:")
}

/// Memory of the machine that is free for new use, in bytes; a control group may have less.
pub fn machine_available_bytes() -> Option<u64> {
    kib_field("/proc/meminfo", "MemAvailable:")
}

/// Threads of the whole machine.
pub fn threads() -> Option<u64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Packets that found no room in a processor's queue since the machine started.
pub fn backlog_drops() -> Option<u64> {
    parse_drops(&fs::read_to_string("/proc/net/softnet_stat").ok()?)
}

/// Connections that the firewall follows now.
pub fn tracked_connections() -> Option<u64> {
    number("/proc/sys/net/netfilter/nf_conntrack_count")
}

/// Files that are open in the whole system.
pub fn open_files() -> Option<u64> {
    number("/proc/sys/fs/file-nr")
}

/// What TCP uses in the whole system (of this network namespace).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Sockets of IPv4 in use.
    pub in_use: u64,
    /// Connections whose port lingers after their end.
    pub time_wait: u64,
    /// Bytes charged for what waits in buffers, of both IPv4 and IPv6.
    pub buffer_bytes: u64,
}

/// What has gone wrong with handshakes since the start of this network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// Connections that found a listener's queue full.
    pub listen_overflows: u64,
    /// First packets of a connection that were sent again.
    pub syn_retransmits: u64,
}

/// The counters of handshakes.
pub fn handshakes() -> Option<Handshakes> {
    parse_handshakes(&fs::read_to_string("/proc/net/netstat").ok()?)
}

/// Each group has a line of names and one of numbers, which begin alike.
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

/// What TCP uses now.
pub fn sockets() -> Option<Sockets> {
    parse_sockets(&fs::read_to_string("/proc/net/sockstat").ok()?)
}

/// The processes that listen on a TCP port of this machine, by number, ascending.
///
/// Threads with private descriptor tables are looked into too. Processes of other users are seen
/// only by root.
pub fn listeners(port: u16) -> Vec<u32> {
    let inodes: Vec<String> = socket_tables()
        .iter()
        .flat_map(|table| listening_inodes(table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
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

/// Whether anybody listens on a TCP port of this machine, of this user or another one.
pub fn is_listened_on(port: u16) -> bool {
    socket_tables().iter().any(|table| !listening_inodes(table, port).is_empty())
}

/// The listening sockets of `/proc/net/tcp`. They come first there, and with a million connections
/// behind them the whole would take seconds to write and hundreds of megabytes to hold.
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

/// Whether a process may listen where we connect to: it has our network namespace, or one that we
/// cannot see. Elsewhere may be a server with a million descriptors, which would take seconds.
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

/// The sockets of `/proc/net/tcp` that listen on `port`.
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

/// User and system time of `/proc/<pid>/stat`; the name before them may have spaces and brackets.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    Some(user + fields.next()?.parse::<u64>().ok()?)
}

fn parse_sockets(text: &str) -> Option<Sockets> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name| {
        let pair = words.chunks_exact(2).find(|pair| pair[0] == name)?;
        pair[1].parse::<u64>().ok()
    };
    Some(Sockets {
        in_use: value("inuse")?,
        time_wait: value("tw")?,
        buffer_bytes: value("mem")? * PAGE_BYTES,
    })
}

/// The second column of each processor's line, in hexadecimal.
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
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
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
        assert!(pss_bytes(pid) > Some(0));
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
    fn a_child_belongs_to_the_family() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let own = std::process::id();
        let is_found = family(&[own]).contains(&child.id());
        let both = family(&[own, child.id()]);
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(is_found);
        assert_eq!(both.iter().filter(|&&pid| pid == child.id()).count(), 1, "{both:?}");
    }

    #[test]
    fn the_time_of_threads_that_ended_is_kept() {
        let pid = std::process::id();
        let before_ns = cpu_ns(pid).expect("read");
        let work = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(60) {}
        };
        std::thread::spawn(work).join().expect("ran");
        let after_ns = cpu_ns(pid).expect("read");
        // On a busy machine the thread had less; but what was seen before does not go away.
        assert!(after_ns + 2 * TICK_NS >= before_ns, "{before_ns} {after_ns}");
    }

    #[test]
    fn whoever_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        assert_eq!(listeners(port), [std::process::id()]);
        assert!(is_listened_on(port));
        drop(listener);
        assert!(!is_listened_on(port));
    }

    #[test]
    fn whoever_listens_in_a_private_table_is_found() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = crate::private_table::spawn("listener".to_owned(), move |unshared| {
            unshared.expect("the kernel allows it");
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            tell.send(listener.local_addr().expect("an address").port()).expect("awaited");
            // The other end is dropped when the test has looked.
            let _ = ended.recv();
        });
        let port = told.recv().expect("told");
        let found = listeners(port);
        drop(end);
        thread.expect("started").join().expect("ran");
        assert_eq!(found, [std::process::id()]);
    }

    #[test]
    fn tables_of_the_kernel_are_understood() {
        let table = "  sl  local_address rem_address   st\n\
             0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 771 1\n\
             1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  0 0 772 1\n";
        assert_eq!(listening_inodes(table, 8080), ["771"]);
        assert!(listening_inodes(table, 80).is_empty());
        assert_eq!(
            parse_sockets("sockets: used 9\nTCP: inuse 3 orphan 0 tw 2 alloc 4 mem 5\n"),
            Some(Sockets { in_use: 3, time_wait: 2, buffer_bytes: 5 * 4096 })
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
