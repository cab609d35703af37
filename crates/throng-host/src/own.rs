//! What this process itself costs, read cheaply enough for once a second: no walk over its pages,
//! nothing that stops its other threads.

use std::collections::HashMap;
use std::fs;

use crate::proc::{first_number, kib_field};

/// The kernel counts the memory of slabs in pages.
const PAGE_BYTES: u64 = 4096;

/// The slabs whose objects are TCP sockets: the socket itself, and the file that it is.
const SOCKET_SLABS: [&str; 3] = ["TCP", "TCPv6", "sock_inode_cache"];

/// Memory of this process that is in use, in bytes: `VmRSS`.
pub fn resident_bytes() -> Option<u64> {
    kib_field("/proc/self/status", "VmRSS:")
}

/// Memory of this process that is nobody else's nor a file's, in bytes: `RssAnon`. The heap and the
/// stacks.
pub fn private_bytes() -> Option<u64> {
    kib_field("/proc/self/status", "RssAnon:")
}

/// Memory of the TCP sockets of the whole machine, without what waits in their buffers, in bytes.
/// Only root may read it.
pub fn socket_slab_bytes() -> Option<u64> {
    parse_slabs(&fs::read_to_string("/proc/slabinfo").ok()?)
}

/// One thread of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// The thread id.
    pub id: u32,
    /// The name, cut to 15 bytes by the kernel.
    pub name: String,
    /// Processor time used so far, in nanoseconds.
    pub cpu_ns: u64,
}

/// The threads of this process. Their names are read once.
#[derive(Debug, Default)]
pub struct Threads {
    names: HashMap<u32, String>,
}

impl Threads {
    /// The current threads, in no order; empty if the kernel does not tell.
    pub fn read(&mut self) -> Vec<Thread> {
        let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let threads: Vec<Thread> = ids.filter_map(|id| self.thread(id)).collect();
        if self.names.len() > threads.len() {
            self.names.retain(|id, _| threads.iter().any(|thread| thread.id == *id));
        }
        threads
    }

    /// `None` if it has ended meanwhile.
    fn thread(&mut self, id: u32) -> Option<Thread> {
        let text = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
        let cpu_ns = first_number(&text)?;
        let name = match self.names.get(&id) {
            Some(name) => name.clone(),
            None => {
                let text = fs::read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
                self.names.entry(id).or_insert_with(|| text.trim().to_owned()).clone()
            }
        };
        Some(Thread { id, name, cpu_ns })
    }
}

/// The bytes of [`SOCKET_SLABS`]; `None` if none of them is there.
fn parse_slabs(text: &str) -> Option<u64> {
    let bytes = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        let pages_per_slab: u64 = fields.nth(4)?.parse().ok()?;
        let slabs: u64 = line.rsplit_once("slabdata")?.1.split_whitespace().nth(1)?.parse().ok()?;
        SOCKET_SLABS.contains(&name).then_some(slabs * pages_per_slab * PAGE_BYTES)
    };
    text.lines().filter_map(bytes).reduce(|sum, bytes| sum + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_told() {
        assert!(private_bytes() > Some(0));
        assert!(resident_bytes() >= private_bytes());
    }

    #[test]
    fn threads_are_told_by_name() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let body = move || {
            tell.send(()).expect("awaited");
            // The other end is dropped when the test has looked.
            let _ = ended.recv();
        };
        let thread = std::thread::Builder::new().name("a-name".into()).spawn(body);
        told.recv().expect("it runs");
        let mut threads = Threads::default();
        let has_it = |threads: Vec<Thread>| threads.iter().any(|thread| thread.name == "a-name");
        assert!(has_it(threads.read()) && has_it(threads.read()));
        drop(end);
        thread.expect("started").join().expect("ran");
        // Other tests start and end theirs: this one is gone.
        assert!(!has_it(threads.read()));
    }

    #[test]
    fn slabs_are_understood() {
        let text = "slabinfo - version: 2.1\n\
            TCP    12 24 2432 13 8 : tunables 0 0 0 : slabdata 2 3 0\n\
            sock_inode_cache 9 9 832 19 4 : tunables 0 0 0 : slabdata 1 1 0\n\
            TCPfoo 12 24 2432 13 8 : tunables 0 0 0 : slabdata 9 9 0\n";
        assert_eq!(parse_slabs(text), Some((3 * 8 + 4) * PAGE_BYTES));
        assert_eq!(parse_slabs("slabinfo - version: 2.1\n"), None);
    }
}
