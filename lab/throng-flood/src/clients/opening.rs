//! Which clients are to be opened and closed, and when.
//!
//! # Why threads open their clients in groups
//!
//! The kernel places the memory of sockets that are created one after the other side by side. If
//! all threads opened clients at once, each would have its sockets scattered over all of it, and
//! receiving would cost them and the sender more for every message. A test of many clients would
//! then show that instead of the server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The clients to be opened and closed.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// Clients below this position are to be open.
    pub(super) goal: usize,
    /// The next position to check in an upward ramp.
    pub(super) cursor: usize,
    /// No client at this position or above is open.
    pub(super) top: usize,
    /// The times of opens and closes; `None` for no limit.
    pub(super) schedule: Option<EventSchedule>,
    /// The groups of an upward ramp, until this thread has finished it.
    pub(super) groups: Option<Arc<RampGroups>>,
    /// Clients to be opened as soon as the connect limit allows.
    pub(super) wanted: VecDeque<u32>,
    /// Clients to be opened later, with the time.
    pub(super) retries: BinaryHeap<Reverse<(u64, u32)>>,
    /// Clients that started to connect, with the time.
    pub(super) begun: VecDeque<(u64, u32)>,
    pub(super) in_flight: usize,
    /// Set by the first ramp.
    pub(super) max_in_flight: usize,
    pub(super) churn: Option<EventSchedule>,
    pub(super) churn_cursor: usize,
    /// In a storm, the clients below this position are closed already. None is opened before all
    /// are.
    pub(super) struck: Option<usize>,
    /// True if there was a storm.
    pub(super) is_stormy: bool,
}

/// One thread's share of events that happen `rate` times per second over all threads: event `k`
/// belongs to thread `k % threads`.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventSchedule {
    start_ns: u64,
    /// The time between two events of this thread.
    interval_ns: f64,
    offset_ns: f64,
    done: u64,
}

impl EventSchedule {
    /// Starts now. A rate that is not positive has no events.
    pub(super) fn new(
        rate: f64,
        thread: usize,
        threads: usize,
        now_ns: u64,
    ) -> Option<EventSchedule> {
        (rate > 0.0 && rate.is_finite()).then(|| EventSchedule {
            start_ns: now_ns,
            interval_ns: threads as f64 * 1e9 / rate,
            offset_ns: thread as f64 * 1e9 / rate,
            done: 0,
        })
    }

    /// When the next event is due.
    pub(super) fn next_ns(&self) -> u64 {
        self.start_ns.saturating_add((self.offset_ns + self.done as f64 * self.interval_ns) as u64)
    }

    /// Takes an event if one is due. Returns whether it was.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        let is_due = self.next_ns() <= now_ns;
        self.done += u64::from(is_due);
        is_due
    }
}

/// How often a thread that waits for its group checks again: short compared with a group's time.
pub(super) const RECHECK_NS: u64 = 5_000_000;

/// The groups of one ramp. Each waits for the one before.
#[derive(Debug)]
pub(super) struct RampGroups {
    /// Threads in a group.
    together: usize,
    /// Connects in progress of each of them, at most.
    in_flight: usize,
    /// Threads that have started to open their last client. They finish in the order of the
    /// groups, because only threads of the current group can finish.
    done: AtomicUsize,
}

impl RampGroups {
    /// Groups of `together` threads, which have at most `in_flight` connects in progress.
    pub(super) fn new(together: usize, in_flight: usize) -> RampGroups {
        let together = together.max(1);
        let in_flight = (in_flight / together).max(1);
        RampGroups { together, in_flight, done: AtomicUsize::new(0) }
    }

    /// Connects that a thread may have in progress during its group's time.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// True if all groups before the thread's have finished.
    pub(super) fn is_on(&self, index: usize) -> bool {
        self.done.load(Ordering::Relaxed) >= index / self.together * self.together
    }

    /// Records that a thread of the current group has finished. Call it once per thread.
    pub(super) fn finish(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_keep_the_rate() {
        let mut threads: Vec<_> =
            (0..3).filter_map(|thread| EventSchedule::new(100.0, thread, 3, 5)).collect();
        let mut due = 0;
        for now_ns in (5..5 + 1_000_000_000).step_by(1_000_000) {
            for thread in &mut threads {
                while thread.take(now_ns) {
                    due += 1;
                }
            }
        }
        assert_eq!(due, 100);
        assert!(EventSchedule::new(0.0, 0, 1, 0).is_none());
    }

    #[test]
    fn a_group_waits_for_the_one_before() {
        let groups = RampGroups::new(2, 100);
        assert_eq!(groups.in_flight(), 50);
        let on = || (0..5).filter(|&index| groups.is_on(index)).collect::<Vec<_>>();
        assert_eq!(on(), [0, 1]);
        groups.finish();
        assert_eq!(on(), [0, 1]);
        groups.finish();
        assert_eq!(on(), [0, 1, 2, 3]);
        groups.finish();
        groups.finish();
        assert_eq!(on(), [0, 1, 2, 3, 4]);
    }
}
