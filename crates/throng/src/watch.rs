//! Watches the event loops of the server: the workers, the runtime of the control plane, and the
//! journal's, if it has one.
//!
//! Each loop counts its turns. A thread of its own compares the counts every second, or more often.
//! It reports the loops that stand still to the probe `/health/live` and to the log, and feeds the
//! watchdog of systemd as long as none does. So what runs feeds the watchdog, and not a timer.
//!
//! A loop stands still if it has made no turn for [`STANDSTILL`] although this thread ran all the
//! time: a process that was suspended, or that gets no processor, is not restarted for that. Nor is
//! one whose workers [rest](Rest) because another process is about to take over.

use std::env;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use throng_control::Health;
use throng_edge::Metrics;

use crate::service::notify;

/// The time without a turn after which a loop stands still. Slices of work take a millisecond, so
/// it is long even for a machine that swaps. The watchdog of systemd may shorten it.
const STANDSTILL: Duration = Duration::from_secs(10);

/// The longest time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

/// The thread keeps no buffers.
const STACK_BYTES: usize = 128 << 10;

/// The turns of the control plane's runtime, which a task on it counts.
pub(crate) type Turns = Arc<AtomicU64>;

/// Says that the workers stand still because they are told to. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rest(Arc<Mutex<Option<Instant>>>);

impl Rest {
    /// They do from now on, until [`Rest::end`], and at most for this time: whoever has told them
    /// to may stand still itself.
    pub(crate) fn begin(&self, at_most: Duration) {
        self.set(Some(Instant::now() + at_most));
    }

    /// They go on, or have ended.
    pub(crate) fn end(&self) {
        self.set(None);
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn is_under_way(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }
}

/// The thread before it watches. It ends if this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingLoop(Sender<()>);

impl WaitingLoop {
    /// Begins to watch.
    pub(crate) fn begin(self) {
        // It waits: nothing else ends it.
        let _ = self.0.send(());
    }
}

/// Starts the thread, which watches once it is told to. It runs until the process ends, and feeds
/// the watchdog of systemd, if the service has one.
pub(crate) fn start(
    workers: Metrics,
    (others, rest): (Vec<(&'static str, Turns)>, Rest),
    health: Arc<Health>,
) -> io::Result<WaitingLoop> {
    let (waiting, begins) = mpsc::channel();
    let watchdog = watchdog_time();
    // Half the time of the watchdog: so it is fed in time, and a loop that stands still is reported
    // before the service is killed.
    let standstill = watchdog.map_or(STANDSTILL, |time| STANDSTILL.min(time / 2));
    let interval = INTERVAL.min(standstill / 4).max(Duration::from_millis(1));
    let builder = thread::Builder::new().name("watch".into()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        if begins.recv().is_err() {
            return;
        }
        let mut watch = Watch::new(standstill);
        let mut last = Instant::now();
        loop {
            thread::sleep(interval);
            // A longer time means that this thread did not run.
            let elapsed = last.elapsed().min(2 * interval);
            last = Instant::now();
            let elapsed = if rest.is_under_way() { Duration::ZERO } else { elapsed };
            if watch.compare(&turns(&workers, &others), elapsed) {
                health.set_stuck(watch.stuck());
            }
            if watchdog.is_some() && !watch.is_any_stuck() {
                notify("WATCHDOG=1");
            }
        }
    })?;
    Ok(WaitingLoop(waiting))
}

/// The turns of each loop, by its name; `None` for a worker that has ended.
fn turns(workers: &Metrics, others: &[(&str, Turns)]) -> Vec<(String, Option<u64>)> {
    let of_worker = |(number, worker): (usize, &throng_edge::WorkerMetrics)| {
        let ticks = worker.ticks.load(Ordering::Relaxed);
        let is_running = !worker.is_ended.load(Ordering::Acquire);
        (format!("worker-{number}"), is_running.then_some(ticks))
    };
    let others = others
        .iter()
        .map(|(name, turns)| ((*name).to_owned(), Some(turns.load(Ordering::Relaxed))));
    workers.workers().iter().enumerate().map(of_worker).chain(others).collect()
}

/// The time in which systemd expects this process to notify it; `None` if it does not.
fn watchdog_time() -> Option<Duration> {
    watchdog(|name| env::var(name).ok(), std::process::id())
}

/// The time in which systemd expects to be notified; `None` if it does not, or expects another
/// process to (sd_watchdog_enabled(3)).
fn watchdog(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    if variable("WATCHDOG_PID").is_some_and(|id| id.parse() != Ok(process)) {
        return None;
    }
    let us = variable("WATCHDOG_USEC")?.parse().ok()?;
    (us > 0).then(|| Duration::from_micros(us))
}

#[derive(Debug)]
struct Watch {
    standstill: Duration,
    loops: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    turns: u64,
    /// The time since the last turn, as far as this thread ran.
    idle: Duration,
    is_stuck: bool,
}

impl Watch {
    fn new(standstill: Duration) -> Watch {
        Watch { standstill, loops: Vec::new() }
    }

    /// Compares the turns of all loops with the ones `elapsed` ago. Returns whether a loop has come
    /// to a stand, or goes on.
    fn compare(&mut self, turns: &[(String, Option<u64>)], elapsed: Duration) -> bool {
        let mut has_changed = false;
        for (index, (name, turns)) in turns.iter().enumerate() {
            if self.loops.len() <= index {
                let name = name.clone();
                let turns = turns.unwrap_or(0);
                self.loops.push(Watched { name, turns, idle: Duration::ZERO, is_stuck: false });
                continue;
            }
            has_changed |= self.loops[index].compare(*turns, elapsed, self.standstill);
        }
        has_changed
    }

    fn stuck(&self) -> Vec<String> {
        let stuck = self.loops.iter().filter(|watched| watched.is_stuck);
        stuck.map(|watched| watched.name.clone()).collect()
    }

    fn is_any_stuck(&self) -> bool {
        self.loops.iter().any(|watched| watched.is_stuck)
    }
}

impl Watched {
    fn compare(&mut self, turns: Option<u64>, elapsed: Duration, standstill: Duration) -> bool {
        let has_turned = turns.is_none_or(|turns| turns != self.turns);
        self.turns = turns.unwrap_or(self.turns);
        self.idle = if has_turned { Duration::ZERO } else { self.idle + elapsed };
        let is_stuck = self.idle >= standstill;
        if is_stuck == self.is_stuck {
            return false;
        }
        self.is_stuck = is_stuck;
        let name = &self.name;
        if is_stuck {
            let ms = self.idle.as_millis();
            tracing::error!("the event loop {name} has stalled for {ms} ms");
        } else {
            tracing::warn!("the event loop {name} continues");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counts(first: Option<u64>, second: u64) -> [(String, Option<u64>); 2] {
        [("a".into(), first), ("b".into(), Some(second))]
    }

    #[test]
    fn only_a_loop_without_turns_stands_still_and_it_may_go_on() {
        let mut watch = Watch::new(3 * SECOND);
        for turn in 0..3 {
            assert!(!watch.compare(&counts(Some(7), turn), SECOND));
        }
        assert!(watch.stuck().is_empty() && watch.compare(&counts(Some(7), 3), SECOND));
        assert_eq!((watch.stuck(), watch.is_any_stuck()), (vec!["a".to_owned()], true));
        assert!(!watch.compare(&counts(Some(7), 4), SECOND), "nothing new");
        assert!(watch.compare(&counts(Some(8), 5), SECOND) && !watch.is_any_stuck());
    }

    #[test]
    fn a_rest_ends_by_itself() {
        let rest = Rest::default();
        assert!(!rest.is_under_way());
        rest.begin(Duration::from_secs(3600));
        assert!(rest.is_under_way());
        rest.end();
        assert!(!rest.is_under_way());
        rest.begin(Duration::ZERO);
        assert!(!rest.is_under_way());
    }

    #[test]
    fn a_worker_that_has_ended_does_not_stand_still() {
        let mut watch = Watch::new(SECOND);
        for turn in 0..5 {
            watch.compare(&counts(None, turn), SECOND);
        }
        assert!(!watch.is_any_stuck());
    }

    #[test]
    fn the_watchdog_is_fed_only_if_it_expects_this_process() {
        let of = |id: Option<&str>, us: Option<&str>| {
            let value = |name: &str| if name == "WATCHDOG_PID" { id } else { us };
            watchdog(|name| value(name).map(str::to_owned), 7)
        };
        assert_eq!(of(Some("7"), Some("2000000")), Some(2 * SECOND));
        assert_eq!(of(None, Some("2000000")), Some(2 * SECOND));
        for (id, us) in [(Some("8"), Some("2000000")), (Some("7"), None), (None, Some("0"))] {
            assert_eq!(of(id, us), None);
        }
    }
}
