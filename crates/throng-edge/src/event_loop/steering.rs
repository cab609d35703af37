//! Which workers take new connections.
//!
//! Where a low descriptor limit asks for more workers than cores, the kernel would spread
//! connections over all of them. Then each worker's connections are scattered over all of the
//! kernel's memory, and a message to everybody costs nearly twice the processor time: sockets that
//! were made one after the other share cache lines, pages and entries of the page tables. So
//! workers fill up a group at a time, with as many in a group as there would be without the limit.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::metrics::{Metrics, WorkerMetrics};
use crate::sys::listener;

/// A group is worth moving to if each of its workers has room for so many connections.
const ROOM_MIN: u32 = 64;

/// With this many places left a worker counts as full here: the connection that it is about to
/// answer takes them.
pub(crate) const LAST_PLACES: u32 = 1;

/// All workers' agreement.
#[derive(Debug)]
pub(crate) struct Steering {
    metrics: Metrics,
    /// Workers that take connections at the same time.
    together: usize,
    /// Those that do; `None` in the beginning.
    current: Mutex<Option<Range<usize>>>,
}

impl Steering {
    /// For `together` workers at a time.
    pub(crate) fn new(metrics: Metrics, together: usize) -> Steering {
        Steering { metrics, together: together.max(1), current: Mutex::default() }
    }

    /// Lets others take what comes from now on, if one of those that do is full. To be called in
    /// the beginning, when a worker is about to be full, and now and then, as room may have come
    /// back. `listener` is any of those that share the port, all of which listen.
    pub(crate) fn update(&self, listener: &OwnedFd) {
        if self.metrics.workers().len() <= self.together {
            return;
        }
        // Held while the kernel is told, so that what it is told last is what is remembered.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let room = |worker: usize| self.metrics.workers()[worker].room();
        if current.as_ref().is_some_and(|group| goes_on(group, self.together, room)) {
            return;
        }
        let rooms: Vec<u32> = self.metrics.workers().iter().map(WorkerMetrics::room).collect();
        let chosen = choose(&rooms, self.together);
        if current.as_ref() != Some(&chosen) {
            // A kernel that cannot be told spreads connections over all workers, which is correct
            // as well. It is asked again with the next change.
            let _ = listener::steer(listener, &chosen);
            *current = Some(chosen);
        }
    }
}

/// Whether those who take connections are to go on: a group is, until one of it is full. Workers
/// that were full before may still accept what waited for them, which is no reason to move again.
fn goes_on(current: &Range<usize>, together: usize, room: impl Fn(usize) -> u32) -> bool {
    current.len() == together && current.clone().all(|worker| room(worker) > LAST_PLACES)
}

/// The group with the most room, and of equals the first; everybody if there is hardly any left.
fn choose(rooms: &[u32], together: usize) -> Range<usize> {
    let groups = (0..rooms.len()).step_by(together).map(|first| {
        // The last one would be smaller.
        let first = first.min(rooms.len() - together);
        first..first + together
    });
    let room = |group: &Range<usize>| rooms[group.clone()].iter().copied().min().unwrap_or(0);
    // Of equals the last one counts as the greatest.
    match groups.rev().max_by_key(room) {
        Some(group) if room(&group) >= ROOM_MIN => group,
        _ => 0..rooms.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn where_room_has_come_back_there_are_groups_again() {
        assert!(!goes_on(&(0..4), 2, |_| 9), "everybody is no group, whatever room there is");
        assert_eq!(choose(&[9, 9, 9, 9], 2), 0..4);
        assert_eq!(choose(&[9, 9, 90, 90], 2), 2..4);
    }

    #[test]
    fn the_last_group_is_no_smaller() {
        assert_eq!(choose(&[0, 0, 0, 100, 500], 2), 3..5);
    }

    #[test]
    fn where_room_is_scarce_everybody_takes_part() {
        assert_eq!(choose(&[0, 63, 63, 64], 2), 0..4);
    }
}
