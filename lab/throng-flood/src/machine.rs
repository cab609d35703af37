//! What a run costs the whole machine, if both sides are on it: the processor time of server,
//! clients, and the kernel threads that serve both.
//!
//! The time of other programs is subtracted: visible ones by their own processor time, invisible
//! ones (in other containers) by what they used before the run.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use throng_host::proc;
use throng_host::processors::{Processors, Programs};

use crate::plan::Plan;
use crate::plan::listeners;
use crate::protocol::url::Place;
use crate::report::{Environment, MachineCost};

/// How long the machine is observed before the run. `/proc/stat` counts in steps of 10 ms.
pub(crate) const WATCH_TIME: Duration = Duration::from_millis(500);

/// How often the observation checks whether to stop.
const WATCH_STEP: Duration = Duration::from_millis(50);

/// The cost of a delivery is reported only if noise cannot change it by more than one part in this
/// many.
const NOISE_PARTS: u32 = 10;

/// The most names of other programs in a report.
const NAMES_MAX: usize = 3;

/// Measures the machine during a run.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Processes of the server. The generator is this process.
    server: Vec<u32>,
    /// Cores that invisible programs used before the run.
    unseen_cores: f64,
    /// Other programs at the start of the run.
    programs: Programs,
}

/// A reading of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    processors: Processors,
    /// Processor time of other programs so far, if it was read.
    others: Option<Duration>,
    unseen_cores: f64,
}

impl Machine {
    /// Observes the machine for [`WATCH_TIME`], while the caller does nothing, or until `stop`
    /// returns true. `None` if the kernel does not report processor times.
    pub(crate) fn watch(server: Vec<u32>, mut stop: impl FnMut() -> bool) -> Option<Machine> {
        let ours = ours(&server);
        let (before, programs) = (Processors::read()?, Programs::others(&[std::process::id()]));
        let own_before = proc::cpu_ns(std::process::id())?;
        let mut left = WATCH_TIME;
        while !left.is_zero() && !stop() {
            std::thread::sleep(WATCH_STEP.min(left));
            left = left.saturating_sub(WATCH_STEP);
        }
        let (after, now) = (Processors::read()?, Programs::others(&[std::process::id()]));
        let own =
            Duration::from_nanos(proc::cpu_ns(std::process::id())?.saturating_sub(own_before));
        let seen = now.time().saturating_sub(programs.time()) + own;
        let unseen = after.busy_since(&before)?.saturating_sub(seen);
        let time = after.elapsed_since(&before).as_secs_f64();
        // What may be noise counts as nothing.
        let is_there = unseen > after.noise() && time > 0.0;
        let unseen_cores = if is_there { unseen.as_secs_f64() / time } else { 0.0 };
        Some(Machine { server, unseen_cores, programs: Programs::others(&ours) })
    }

    /// Reads the machine; with other programs, which takes longer, if `with_programs` is set.
    pub(crate) fn read(&self, with_programs: bool) -> Option<Watched> {
        let others = with_programs.then(|| Programs::others(&ours(&self.server)).time());
        let processors = Processors::read()?;
        Some(Watched { processors, others, unseen_cores: self.unseen_cores })
    }

    /// Other programs that have worked since the start, the busiest first.
    pub(crate) fn others(&self) -> Vec<String> {
        let now = Programs::others(&ours(&self.server));
        let mut names = now.busiest_since(&self.programs);
        names.truncate(NAMES_MAX);
        names
    }
}

impl Watched {
    /// Cores that were busy since an earlier reading, for all programs.
    pub(crate) fn cores_since(&self, earlier: &Watched) -> Option<f64> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let time = self.processors.elapsed_since(&earlier.processors);
        (!time.is_zero()).then(|| busy.as_secs_f64() / time.as_secs_f64())
    }

    /// The cost of the run since an earlier reading.
    pub(crate) fn cost_since(&self, earlier: &Watched, deliveries: u64) -> Option<MachineCost> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let others = self.others?.saturating_sub(earlier.others?);
        let time = self.processors.elapsed_since(&earlier.processors);
        let spent = Spent { busy, others, unseen: time.mul_f64(self.unseen_cores) };
        Some(spent.cost(self.processors.noise(), deliveries))
    }
}

/// Processor time of the whole machine between two readings.
struct Spent {
    busy: Duration,
    others: Duration,
    unseen: Duration,
}

impl Spent {
    fn cost(&self, noise: Duration, deliveries: u64) -> MachineCost {
        let run = self.busy.saturating_sub(self.others + self.unseen);
        let is_sure = deliveries > 0 && run >= noise * NOISE_PARTS;
        MachineCost {
            cpu_s: run.as_secs_f64(),
            cpu_us_per_delivery: is_sure.then(|| run.as_secs_f64() * 1e6 / deliveries as f64),
            busy_s: self.busy.as_secs_f64(),
            others_s: self.others.as_secs_f64(),
            unseen_s: self.unseen.as_secs_f64(),
            others: Vec::new(),
        }
    }
}

/// This process and those of the server, looked up each time because a server may start workers.
fn ours(server: &[u32]) -> Vec<u32> {
    let mut ours = proc::family(server);
    ours.push(std::process::id());
    ours
}

/// The server's processes: those in the plan, or else all that listen on the target's port.
pub(crate) fn server(plan: &Plan) -> Vec<u32> {
    if !plan.server_pids.is_empty() {
        return plan.server_pids.clone();
    }
    plan.target.port().and_then(|port| listeners(port).ok()).unwrap_or_default()
}

/// The machine, for a report; `is_loopback` says whether the target is on it.
pub fn environment(is_loopback: bool) -> Environment {
    let found = throng_host::environment::Environment::read();
    Environment {
        kernel: found.kernel,
        cores: found.cores,
        processor: found.processor,
        memory_bytes: found.memory_bytes,
        descriptors_max: found.descriptors_max,
        sysctl: found.sysctl,
        throng: env!("CARGO_PKG_VERSION").to_owned(),
        is_loopback,
        ..Environment::default()
    }
}

/// Whether all addresses of the target are loopback addresses.
pub(crate) fn is_loopback(plan: &Plan) -> bool {
    let url = plan.target.first_url();
    let Ok(Place { host, port, default_port }) = Place::of(&url) else { return false };
    let addresses = (host, port.unwrap_or(default_port)).to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(server: Vec<u32>) -> Machine {
        Machine { programs: Programs::others(&ours(&server)), server, unseen_cores: 0.0 }
    }

    #[test]
    fn other_programs_are_subtracted() {
        let ms = Duration::from_millis;
        let spent = Spent { busy: ms(1900), others: ms(300), unseen: ms(100) };
        let cost = spent.cost(ms(17), 100_000);
        assert_eq!((cost.cpu_s, cost.cpu_us_per_delivery), (1.5, Some(15.0)));
        assert_eq!((cost.busy_s, cost.others_s, cost.unseen_s), (1.9, 0.3, 0.1));
        assert_eq!(spent.cost(ms(17), 0).cpu_us_per_delivery, None);
        // Processor times of programs are coarser, and may add up to more than the total.
        let cost = Spent { busy: ms(20), ..spent }.cost(ms(17), 1);
        assert_eq!((cost.cpu_s, cost.cpu_us_per_delivery), (0.0, None));
    }

    #[test]
    fn the_observation_can_be_stopped() {
        let mut asked = 0;
        let machine = Machine::watch(Vec::new(), || {
            asked += 1;
            asked > 2
        });
        assert!(machine.expect("the kernel tells").unseen_cores >= 0.0);
        assert_eq!(asked, 3);
    }

    #[test]
    fn noise_is_not_a_cost_of_deliveries() {
        let machine = machine(Vec::new());
        let at = machine.read(true).expect("read");
        let cost = at.cost_since(&at, 1000).expect("known");
        assert_eq!((cost.cpu_us_per_delivery, cost.cpu_s), (None, 0.0));
    }

    #[test]
    fn a_reading_without_programs_has_no_cost() {
        let machine = machine(Vec::new());
        let (before, after) = (machine.read(true), machine.read(false));
        assert_eq!(after.expect("read").cost_since(&before.expect("read"), 1), None);
    }

    #[test]
    fn the_report_names_this_machine() {
        let found = environment(true);
        assert!(found.is_loopback && found.cores > 0 && !found.kernel.is_empty());
        assert!(!found.throng.is_empty());
    }
}
