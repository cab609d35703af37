//! What a run costs the whole machine, where both sides are on it: what the processors did for the
//! server, the clients, and the kernel's threads that serve both.
//!
//! Other programs are taken off: those that can be seen by their own processor time, those that
//! cannot (in other containers) by what they took before the run.

use std::time::Duration;

use throng_host::proc;
use throng_host::processors::{Processors, Programs};

use crate::listener::listeners;
use crate::plan::Plan;
use crate::publish::recipe::Place;
use crate::report::MachineCost;
use crate::template::Values;

/// The machine is watched for this long before the run: `/proc/stat` counts in steps of 10 ms.
pub const WATCH_TIME: Duration = Duration::from_millis(500);

/// The watch is asked this often whether it is to stop.
const WATCH_STEP: Duration = Duration::from_millis(50);

/// A cost a delivery is told if chance could not have changed it by more than a part of this size.
const NOISE_PARTS: u32 = 10;

/// More names of other programs are not told.
const NAMES_MAX: usize = 3;

/// The machine of a run, and what it did before.
#[derive(Debug)]
pub struct Machine {
    /// Processes of the server; the generator is this one.
    server: Vec<u32>,
    /// Processors that were busy before the run for what cannot be seen.
    unseen_cores: f64,
    /// Other programs at the start.
    programs: Programs,
}

/// The machine at a moment of the run.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    processors: Processors,
    /// Processor time of other programs so far, if it was read.
    others: Option<Duration>,
    unseen_cores: f64,
}

impl Machine {
    /// Watches the machine of these processes of a server for [`WATCH_TIME`], in which the caller
    /// does nothing, or until it is to stop. `None` where the kernel does not tell how busy it is.
    pub fn watch(server: Vec<u32>, mut stop: impl FnMut() -> bool) -> Option<Machine> {
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
        // What may be chance is nothing.
        let is_there = unseen > after.noise() && time > 0.0;
        let unseen_cores = if is_there { unseen.as_secs_f64() / time } else { 0.0 };
        Some(Machine { server, unseen_cores, programs: Programs::others(&ours) })
    }

    /// The machine now; other programs too, which takes a while, if they are wanted.
    pub fn read(&self, with_programs: bool) -> Option<Watched> {
        let others = with_programs.then(|| Programs::others(&ours(&self.server)).time());
        let processors = Processors::read()?;
        Some(Watched { processors, others, unseen_cores: self.unseen_cores })
    }

    /// The other programs that have worked since the start, the busiest first.
    pub fn others(&self) -> Vec<String> {
        let now = Programs::others(&ours(&self.server));
        let mut names = now.busiest_since(&self.programs);
        names.truncate(NAMES_MAX);
        names
    }
}

impl Watched {
    /// Processors that were busy since an earlier moment, with everything.
    pub fn cores_since(&self, earlier: &Watched) -> Option<f64> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let time = self.processors.elapsed_since(&earlier.processors);
        (!time.is_zero()).then(|| busy.as_secs_f64() / time.as_secs_f64())
    }

    /// What the run has cost since an earlier moment.
    pub fn cost_since(&self, earlier: &Watched, deliveries: u64) -> Option<MachineCost> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let others = self.others?.saturating_sub(earlier.others?);
        let time = self.processors.elapsed_since(&earlier.processors);
        let spent = Spent { busy, others, unseen: time.mul_f64(self.unseen_cores) };
        Some(spent.cost(self.processors.noise(), deliveries))
    }
}

/// Processor time of the whole machine.
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

/// This process and those of the server, found anew each time: a server may start workers.
fn ours(server: &[u32]) -> Vec<u32> {
    let mut ours = proc::family(server);
    ours.push(std::process::id());
    ours
}

/// A server's processes: those that the plan names, else whatever listens where it is loaded.
pub fn server(plan: &Plan) -> Vec<u32> {
    if !plan.server_pids.is_empty() {
        return plan.server_pids.clone();
    }
    let url = plan.target.url.rendered(&Values::default());
    let of_url = Place::of(&url).map(|place| place.port);
    let port = plan.target.ports.first().copied().or(of_url);
    port.and_then(|port| listeners(port).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(server: Vec<u32>) -> Machine {
        Machine { programs: Programs::others(&ours(&server)), server, unseen_cores: 0.0 }
    }

    #[test]
    fn what_others_did_is_not_of_the_run() {
        let ms = Duration::from_millis;
        let spent = Spent { busy: ms(1900), others: ms(300), unseen: ms(100) };
        let cost = spent.cost(ms(17), 100_000);
        assert_eq!((cost.cpu_s, cost.cpu_us_per_delivery), (1.5, Some(15.0)));
        assert_eq!((cost.busy_s, cost.others_s, cost.unseen_s), (1.9, 0.3, 0.1));
        assert_eq!(spent.cost(ms(17), 0).cpu_us_per_delivery, None);
        // Clocks of other programs are coarser: they may seem to have had more than there was.
        let cost = Spent { busy: ms(20), ..spent }.cost(ms(17), 1);
        assert_eq!((cost.cpu_s, cost.cpu_us_per_delivery), (0.0, None));
    }

    #[test]
    fn the_machine_is_watched_until_told_to_stop() {
        let mut asked = 0;
        let machine = Machine::watch(Vec::new(), || {
            asked += 1;
            asked > 2
        });
        assert!(machine.expect("the kernel tells").unseen_cores >= 0.0);
        assert_eq!(asked, 3);
    }

    #[test]
    fn what_chance_can_make_is_no_cost_of_a_delivery() {
        let machine = machine(Vec::new());
        let at = machine.read(true).expect("read");
        let cost = at.cost_since(&at, 1000).expect("known");
        assert_eq!((cost.cpu_us_per_delivery, cost.cpu_s), (None, 0.0));
    }

    #[test]
    fn without_programs_there_is_no_cost() {
        let machine = machine(Vec::new());
        let (before, after) = (machine.read(true), machine.read(false));
        assert_eq!(after.expect("read").cost_since(&before.expect("read"), 1), None);
    }
}
