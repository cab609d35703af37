//! Memory and CPU time of this process. Cheap enough to read every second: no reading walks the
//! page tables or stops other threads.

use std::collections::HashMap;
use std::fs;

use rustix::param::page_size;

use crate::proc::{first_number, kib_field};

/// The slab caches of TCP sockets: the socket and its inode.
const SOCKET_SLABS: [&str; 3] = ["TCP", "TCPv6", "sock_inode_cache"];

/// Resident memory of this process, in bytes (`VmRSS`).
pub fn resident_bytes() -> Option<u64> {
    kib_field("/proc/self/status", "VmRSS:")
}

/// Anonymous memory of this process (heap and stacks), in bytes (`RssAnon`).
pub fn private_bytes() -> Option<u64> {
    kib_field("/proc/self/status", "RssAnon:")
}

/// Slab memory of all TCP sockets of the machine, in bytes, without buffered data. Needs root.
pub fn socket_slab_bytes() -> Option<u64> {
    parse_slabs(&fs::read_to_string("/proc/slabinfo").ok()?, page_size() as u64)
}

/// One thread of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnThread {
    pub id: u32,
    /// The name, truncated to 15 bytes by the kernel.
    pub name: String,
    /// CPU time since its start, in nanoseconds.
    pub cpu_ns: u64,
}

/// Reads the threads of this process. Caches their names, which do not change.
#[derive(Debug, Default)]
pub struct OwnThreads {
    names: HashMap<u32, String>,
}

impl OwnThreads {
    /// The current threads, in no particular order; empty if `/proc` cannot be read. One may be
    /// missing while others end, and one that has been joined may still be there.
    pub fn read(&mut self) -> Vec<OwnThread> {
        let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let threads: Vec<OwnThread> = ids.filter_map(|id| self.thread(id)).collect();
        if self.names.len() > threads.len() {
            self.names.retain(|id, _| threads.iter().any(|thread| thread.id == *id));
        }
        threads
    }

    /// `None` if the thread has ended since the listing.
    fn thread(&mut self, id: u32) -> Option<OwnThread> {
        let text = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
        let cpu_ns = first_number(&text)?;
        let name = match self.names.get(&id) {
            Some(name) => name.clone(),
            None => {
                let text = fs::read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
                self.names.entry(id).or_insert_with(|| text.trim().to_owned()).clone()
            }
        };
        Some(OwnThread { id, name, cpu_ns })
    }
}

/// The total size of [`SOCKET_SLABS`], whose memory the kernel counts in pages; `None` if the text
/// has none of them.
fn parse_slabs(text: &str, page_bytes: u64) -> Option<u64> {
    let bytes = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        let pages_per_slab: u64 = fields.nth(4)?.parse().ok()?;
        let slabs: u64 = line.rsplit_once("slabdata")?.1.split_whitespace().nth(1)?.parse().ok()?;
        SOCKET_SLABS.contains(&name).then_some(slabs * pages_per_slab * page_bytes)
    };
    text.lines().filter_map(bytes).reduce(|sum, bytes| sum + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_read() {
        assert!(private_bytes() > Some(0));
        assert!(resident_bytes() >= private_bytes());
    }

    #[test]
    fn threads_are_listed_by_name() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (ready_sender, ready) = std::sync::mpsc::channel();
        let body = move || {
            ready_sender.send(()).expect("awaited");
            // Returns an error once the test drops the sender.
            let _ = ended.recv();
        };
        let thread = std::thread::Builder::new().name("a-name".into()).spawn(body);
        ready.recv().expect("it runs");
        let mut threads = OwnThreads::default();
        let mut has_it = || threads.read().iter().any(|thread| thread.name == "a-name");
        // Other tests end threads, so one reading may miss it. The second has its name cached.
        assert!((0..100).any(|_| has_it()) && (0..100).any(|_| has_it()));
        drop(end);
        thread.expect("started").join().expect("ran");
        // The kernel wakes whoever joins a thread before it takes it off the list.
        while has_it() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn socket_slabs_are_summed() {
        let text = "slabinfo - version: 2.1\n\
            TCP    12 24 2432 13 8 : tunables 0 0 0 : slabdata 2 3 0\n\
            sock_inode_cache 9 9 832 19 4 : tunables 0 0 0 : slabdata 1 1 0\n\
            TCPfoo 12 24 2432 13 8 : tunables 0 0 0 : slabdata 9 9 0\n";
        for page_bytes in [4_096, 65_536] {
            assert_eq!(parse_slabs(text, page_bytes), Some((3 * 8 + 4) * page_bytes));
        }
        assert_eq!(parse_slabs("slabinfo - version: 2.1\n", 4_096), None);
    }
}
