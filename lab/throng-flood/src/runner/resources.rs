//! Processor time and memory of both sides, read once a second.

use std::time::{Duration, Instant};

use throng_host::proc;

use crate::machine::{Machine, Watched};
use crate::report::{Cost, MachineCost};

/// Reading the memory of a process walks its pages and blocks its memory calls meanwhile, so it
/// takes at most one part in this many of the time.
const MEMORY_PART: u32 = 200;

/// Reads the resources of both sides and of the kernel.
pub(crate) struct ResourceMonitor {
    server: Vec<u32>,
    /// The machine, if both sides are on it.
    machine: Option<Machine>,
    memory_at: Instant,
}

/// The resources at one time. What could not be read is `None`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResourceSample {
    /// When the rest was read.
    pub at: Instant,
    /// Processor time of this process so far.
    pub generator_cpu_ns: Option<u64>,
    /// Processor time of the server and its descendants so far.
    pub server_cpu_ns: Option<u64>,
    /// Memory of this process, if it was read.
    pub generator_pss_bytes: Option<u64>,
    /// Memory of the server and its descendants, if it was read.
    pub server_pss_bytes: Option<u64>,
    /// Kernel memory in slabs.
    pub slab_bytes: Option<u64>,
    /// Kernel memory in socket buffers.
    pub socket_buffer_bytes: Option<u64>,
    /// All processors, if both sides are on this machine.
    pub machine: Option<Watched>,
}

impl ResourceMonitor {
    /// For this process, and those of a server on this machine.
    pub(crate) fn new(server: &[u32], machine: Option<Machine>) -> ResourceMonitor {
        ResourceMonitor { server: server.to_vec(), machine, memory_at: Instant::now() }
    }

    /// Other programs that have worked since the start, the busiest first.
    pub(super) fn others(&self) -> Vec<String> {
        self.machine.as_ref().map(Machine::others).unwrap_or_default()
    }

    /// Reads what is cheap to read, and memory if it is due.
    pub(crate) fn read(&mut self) -> ResourceSample {
        let is_turn = Instant::now() >= self.memory_at;
        self.read_with(is_turn, false)
    }

    /// Reads everything, memory included.
    pub(crate) fn read_all(&mut self) -> ResourceSample {
        self.read_with(true, true)
    }

    fn read_with(&mut self, with_memory: bool, with_programs: bool) -> ResourceSample {
        let at = Instant::now();
        let generator = std::process::id();
        // Looked up each time, because a server may start workers.
        let server = proc::family(&self.server);
        let sum = |read: fn(u32) -> Option<u64>| {
            let parts: Vec<u64> = server.iter().filter_map(|&pid| read(pid)).collect();
            (!parts.is_empty()).then(|| parts.iter().sum::<u64>())
        };
        let mut reading = ResourceSample {
            at,
            generator_cpu_ns: proc::cpu_ns(generator),
            server_cpu_ns: sum(proc::cpu_ns),
            generator_pss_bytes: None,
            server_pss_bytes: None,
            slab_bytes: proc::slab_bytes(),
            socket_buffer_bytes: proc::sockets().map(|sockets| sockets.buffer_bytes),
            machine: self.machine.as_ref().and_then(|machine| machine.read(with_programs)),
        };
        if with_memory {
            let before = Instant::now();
            reading.generator_pss_bytes = proc::pss_bytes(generator);
            reading.server_pss_bytes = sum(proc::pss_bytes);
            let took = before.elapsed();
            self.memory_at = before + took.saturating_mul(MEMORY_PART);
        }
        reading
    }
}

impl ResourceSample {
    /// Processor seconds of this process since an earlier sample.
    pub(crate) fn generator_cpu_s_since(&self, earlier: &ResourceSample) -> Option<f64> {
        seconds_since(earlier.generator_cpu_ns, self.generator_cpu_ns)
    }
}

/// The time between two readings, with the start of the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResourceSpan {
    /// The start of the run.
    pub start: ResourceSample,
    /// The start of the period.
    pub from: ResourceSample,
    /// The end of the period.
    pub to: ResourceSample,
}

impl ResourceSpan {
    fn server_cpu_s(&self) -> Option<f64> {
        seconds_since(self.from.server_cpu_ns, self.to.server_cpu_ns)
    }

    fn generator_cpu_s(&self) -> f64 {
        self.to.generator_cpu_s_since(&self.from).unwrap_or_default()
    }

    /// The cost of the server, if it runs here.
    pub(super) fn server(&self, deliveries: u64, clients: u64) -> Option<Cost> {
        let bytes = (self.start.server_pss_bytes, self.to.server_pss_bytes);
        Some(cost(self.server_cpu_s()?, bytes, deliveries, clients))
    }

    /// The cost of this process.
    pub(super) fn generator(&self, deliveries: u64, clients: u64) -> Cost {
        let bytes = (self.start.generator_pss_bytes, self.to.generator_pss_bytes);
        cost(self.generator_cpu_s(), bytes, deliveries, clients)
    }

    /// The cost of both sides and the kernel, if both are on this machine. Needs two full readings.
    pub(super) fn machine(&self, deliveries: u64) -> Option<MachineCost> {
        self.to.machine?.cost_since(&self.from.machine?, deliveries)
    }

    /// Cores of the machine that were busy.
    pub(super) fn machine_cores(&self) -> Option<f64> {
        self.to.machine?.cores_since(&self.from.machine?)
    }

    /// The growth of kernel memory.
    pub(super) fn kernel_bytes(&self) -> Option<i64> {
        let bytes = |reading: &ResourceSample| {
            reading.slab_bytes?.checked_add(reading.socket_buffer_bytes?)?.try_into().ok()
        };
        let (from, to): (i64, i64) = (bytes(&self.from)?, bytes(&self.to)?);
        Some(to - from)
    }

    /// Cores used by the server and by this process.
    pub(super) fn cores(&self) -> (Option<f64>, f64) {
        let seconds = (self.to.at - self.from.at).max(Duration::from_millis(1)).as_secs_f64();
        (self.server_cpu_s().map(|cpu_s| cpu_s / seconds), self.generator_cpu_s() / seconds)
    }
}

fn seconds_since(from_ns: Option<u64>, to_ns: Option<u64>) -> Option<f64> {
    Some(to_ns?.saturating_sub(from_ns?) as f64 / 1e9)
}

fn cost(
    cpu_s: f64,
    (start, end): (Option<u64>, Option<u64>),
    deliveries: u64,
    clients: u64,
) -> Cost {
    // A process that shrank shows nothing about its clients.
    let growth = start.zip(end).and_then(|(start, end)| end.checked_sub(start));
    let growth = growth.filter(|_| clients > 0);
    Cost {
        cpu_s,
        cpu_us_per_delivery: (deliveries > 0).then(|| cpu_s * 1e6 / deliveries as f64),
        pss_bytes: end,
        bytes_per_client: growth.map(|growth| growth as f64 / clients as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_differences() {
        let mut resources = ResourceMonitor::new(&[], None);
        let start = resources.read_all();
        let from = ResourceSample { generator_cpu_ns: Some(1_000_000_000), ..start };
        let to = ResourceSample {
            generator_cpu_ns: Some(3_000_000_000),
            generator_pss_bytes: start.generator_pss_bytes.map(|bytes| bytes + 6_400),
            ..start
        };
        let span = ResourceSpan { start, from, to };
        let cost = span.generator(1_000_000, 100);
        assert_eq!((cost.cpu_s, cost.cpu_us_per_delivery), (2.0, Some(2.0)));
        assert_eq!(cost.bytes_per_client, Some(64.0));
        assert_eq!(span.server(1, 1), None);
        assert_eq!(span.kernel_bytes(), Some(0));
        assert_eq!(span.generator(0, 0).bytes_per_client, None);
        let shrunk = ResourceSpan { start: to, to: start, ..span };
        assert_eq!(shrunk.generator(1, 100).bytes_per_client, None);
    }

    #[test]
    fn a_server_that_has_ended_is_absent() {
        let reading = ResourceMonitor::new(&[u32::MAX], None).read_all();
        assert_eq!((reading.server_cpu_ns, reading.server_pss_bytes), (None, None));
        assert!(reading.generator_cpu_ns.is_some());
    }
}
