//! Steers new connections to a few workers at a time.
//!
//! With more workers than cores, as a low descriptor limit requires, the kernel would spread
//! connections over all of them. Then each worker's sockets are scattered over all of the kernel's
//! memory, and a message to all subscribers costs nearly twice the processor time: sockets that
//! were created one after the other share cache lines, pages and page-table entries. So workers
//! fill up in groups, each as large as the number of workers would be without the limit.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::metrics::{Metrics, WorkerMetrics};
use crate::sys::listener;

/// The least room of each worker of a group that takes connections next.
const ROOM_MIN: u32 = 64;

/// A worker with this many places left counts as full: the connection that it is about to answer
/// takes them.
pub(crate) const LAST_PLACES: u32 = 1;

/// The group of workers that takes new connections, shared by all workers.
#[derive(Debug)]
pub(crate) struct Steering {
    metrics: Metrics,
    /// The size of a group.
    together: usize,
    /// The group that takes connections; `None` before the first update.
    current: Mutex<Option<Range<usize>>>,
    /// True if the listeners may still be steered as another process has chosen.
    is_inherited: AtomicBool,
}

impl Steering {
    /// Groups of `together` workers, at least one. Listeners that are `inherited` come from another
    /// process, which may have steered them.
    pub(crate) fn new(metrics: Metrics, together: usize, inherited: bool) -> Steering {
        let is_inherited = AtomicBool::new(inherited);
        Steering { metrics, together: together.max(1), current: Mutex::default(), is_inherited }
    }

    /// Moves on to another group if a worker of the current one is full. Call it once all listeners
    /// are open, when a worker is about to be full, and once a tick, because connections may have
    /// closed. `listener` is any of those that share the port.
    pub(crate) fn update(&self, listener: &OwnedFd) {
        let workers = self.metrics.workers().len();
        if workers <= self.together {
            if self.is_inherited.swap(false, Ordering::Relaxed) {
                // One that fails was never steered.
                let _ = listener::steer(listener, &(0..workers));
            }
            return;
        }
        // Held during the system call, so that `current` is the group that the kernel has got last.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.advance(&mut current) {
            // A kernel without `SO_ATTACH_REUSEPORT_CBPF` spreads connections over all workers,
            // which is correct as well. The next change tries again.
            let group = current.clone().unwrap_or(0..self.metrics.workers().len());
            let _ = listener::steer(listener, &group);
        }
    }

    /// The worker with the most room of those that take connections now: for a server whose workers
    /// have no listeners of their own.
    pub(crate) fn least_loaded(&self) -> usize {
        let workers = self.metrics.workers();
        let mut group = 0..workers.len();
        if workers.len() > self.together {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            self.advance(&mut current);
            group = current.clone().unwrap_or(group);
        }
        // `max_by_key` returns the last of equals.
        group.rev().max_by_key(|&worker| workers[worker].room_for_new()).unwrap_or(0)
    }

    /// Chooses another group if a worker of the current one is full. Returns whether it did.
    fn advance(&self, current: &mut Option<Range<usize>>) -> bool {
        let room = |worker: usize| self.metrics.workers()[worker].room_for_new();
        if current.as_ref().is_some_and(|group| goes_on(group, self.together, room)) {
            return false;
        }
        let rooms: Vec<u32> =
            self.metrics.workers().iter().map(WorkerMetrics::room_for_new).collect();
        let chosen = choose(&rooms, self.together);
        let has_changed = current.as_ref() != Some(&chosen);
        *current = Some(chosen);
        has_changed
    }
}

/// True if the current workers go on taking connections: a group does until one of its workers is
/// full, and all workers together do not.
fn goes_on(current: &Range<usize>, together: usize, room: impl Fn(usize) -> u32) -> bool {
    current.len() == together && current.clone().all(|worker| room(worker) > LAST_PLACES)
}

/// The group with the most room, the first of equals; all workers if no group has [`ROOM_MIN`].
fn choose(rooms: &[u32], together: usize) -> Range<usize> {
    let groups = (0..rooms.len()).step_by(together).map(|first| {
        // The last group overlaps the one before rather than being smaller.
        let first = first.min(rooms.len() - together);
        first..first + together
    });
    let room = |group: &Range<usize>| rooms[group.clone()].iter().copied().min().unwrap_or(0);
    // `max_by_key` returns the last of equals.
    match groups.rev().max_by_key(room) {
        Some(group) if room(&group) >= ROOM_MIN => group,
        _ => 0..rooms.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_listeners_the_emptiest_worker_of_the_group_is_next() {
        let metrics = Metrics::new([500, 500, 500, 500].into_iter());
        let steering = Steering::new(metrics.clone(), 2, false);
        let mut given = [0_u32; 4];
        for _ in 0..1_400 {
            let worker = steering.least_loaded();
            given[worker] += 1;
            metrics.workers()[worker].keep_place().travel();
        }
        assert_eq!(given[..2], [499, 498], "until one of them is full");
        assert!(given[2].abs_diff(given[3]) <= 1, "{given:?}");
        assert_eq!(given.iter().sum::<u32>(), 1_400);
    }

    #[test]
    fn workers_fill_up_a_group_at_a_time() {
        assert_eq!(choose(&[500, 500, 500, 500], 2), 0..2);
        assert_eq!(choose(&[0, 20, 500, 500], 2), 2..4);
        assert_eq!(choose(&[500, 500, 500, 0], 2), 0..2);
    }

    #[test]
    fn a_group_goes_on_until_one_of_it_is_full() {
        let rooms = [LAST_PLACES, 5, 480, 3, 500, 500];
        assert!(goes_on(&(2..4), 2, |worker| rooms[worker]), "although others have more room");
        assert!(!goes_on(&(0..2), 2, |worker| rooms[worker]));
        assert_eq!(choose(&rooms, 2), 4..6);
    }

    #[test]
    fn workers_form_groups_again_once_connections_have_closed() {
        assert!(!goes_on(&(0..4), 2, |_| 9), "all workers are no group, whatever room there is");
        assert_eq!(choose(&[9, 9, 9, 9], 2), 0..4);
        assert_eq!(choose(&[9, 9, 90, 90], 2), 2..4);
    }

    #[test]
    fn the_last_group_is_no_smaller() {
        assert_eq!(choose(&[0, 0, 0, 100, 500], 2), 3..5);
    }

    #[test]
    fn all_workers_take_connections_if_room_is_scarce() {
        assert_eq!(choose(&[0, 63, 63, 64], 2), 0..4);
    }
}
