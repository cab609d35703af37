//! Figures of the kernel about this process and its sockets. A reading takes a few system calls for
//! each thread, so it belongs on a thread of the blocking pool.

use throng_host::own::{self, OwnThreads};
use throng_host::proc;

/// Socket slabs are read with every tenth reading: the kernel walks them, and they change slowly.
const READINGS_PER_SLAB: u64 = 10;

/// One reading. A value that the kernel does not report is `None`.
#[derive(Debug, Clone, Default)]
pub(super) struct HostReading {
    /// One entry for each thread of the process.
    pub(super) threads: Vec<ThreadReading>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) private_bytes: Option<u64>,
    pub(super) tcp_sockets: Option<u64>,
    pub(super) tcp_buffer_bytes: Option<u64>,
    pub(super) socket_slab_bytes: Option<u64>,
}

/// The processor use of one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadReading {
    /// The kernel's thread id.
    pub(super) id: u32,
    /// The index of the worker that runs on it, if it is a worker's thread.
    pub(super) worker: Option<usize>,
    /// Processor time since the thread started, in nanoseconds.
    pub(super) cpu_ns: u64,
}

/// Makes readings, and keeps what need not be read each time.
#[derive(Debug, Default)]
pub(super) struct HostReader {
    threads: OwnThreads,
    readings: u64,
    socket_slab_bytes: Option<u64>,
}

impl HostReader {
    pub(super) fn read(&mut self) -> HostReading {
        if self.readings.is_multiple_of(READINGS_PER_SLAB) {
            self.socket_slab_bytes = own::socket_slab_bytes();
        }
        self.readings += 1;
        let threads = self.threads.read().into_iter().map(|thread| ThreadReading {
            id: thread.id,
            worker: worker_index(&thread.name),
            cpu_ns: thread.cpu_ns,
        });
        let sockets = proc::sockets();
        HostReading {
            threads: threads.collect(),
            resident_bytes: own::resident_bytes(),
            private_bytes: own::private_bytes(),
            tcp_sockets: sockets.map(|sockets| sockets.in_use),
            tcp_buffer_bytes: sockets.map(|sockets| sockets.buffer_bytes),
            socket_slab_bytes: self.socket_slab_bytes,
        }
    }
}

/// The worker's index in the name that the data plane gives its threads.
fn worker_index(name: &str) -> Option<usize> {
    name.strip_prefix("worker-")?.parse().ok()
}
