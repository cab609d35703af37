//! What the kernel tells of this process and of its sockets. Reading it takes a few system calls a
//! thread, so it is done on a thread where nobody waits.

use throng_host::own::{self, Threads};
use throng_host::proc;

/// The slabs are counted by walking them, and they change slowly: every so many samples.
const SLAB_SAMPLES: u64 = 10;

/// One reading. What the kernel does not tell is absent.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// Of each thread: its number, its place among the workers if it is one, its processor time.
    pub(super) threads: Vec<(u32, Option<usize>, u64)>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) private_bytes: Option<u64>,
    pub(super) tcp_sockets: Option<u64>,
    pub(super) tcp_buffer_bytes: Option<u64>,
    pub(super) socket_slab_bytes: Option<u64>,
}

/// Reads again and again.
#[derive(Debug, Default)]
pub(super) struct Machine {
    threads: Threads,
    readings: u64,
    socket_slab_bytes: Option<u64>,
}

impl Machine {
    pub(super) fn read(&mut self) -> Reading {
        if self.readings.is_multiple_of(SLAB_SAMPLES) {
            self.socket_slab_bytes = own::socket_slab_bytes();
        }
        self.readings += 1;
        let threads = self.threads.read().into_iter();
        let sockets = proc::sockets();
        Reading {
            threads: threads.map(|it| (it.id, worker(&it.name), it.cpu_ns)).collect(),
            resident_bytes: own::resident_bytes(),
            private_bytes: own::private_bytes(),
            tcp_sockets: sockets.map(|sockets| sockets.in_use),
            tcp_buffer_bytes: sockets.map(|sockets| sockets.buffer_bytes),
            socket_slab_bytes: self.socket_slab_bytes,
        }
    }
}

/// The place of a worker's thread, as the data plane names it.
fn worker(name: &str) -> Option<usize> {
    name.strip_prefix("worker-")?.parse().ok()
}
