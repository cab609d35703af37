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

use crate::figures::{Figures, WorkerFigures};
use crate::sys::listener;

/// A group is worth moving to if each of its workers has room for so many connections.
const ROOM_MIN: u32 = 64;

/// All workers' agreement.
#[derive(Debug)]
pub(crate) struct Steering {
    figures: Figures,
    /// Workers that take connections at the same time.
    together: usize,
    /// Those that do; `None` if the kernel was told nothing.
    current: Mutex<Option<Range<usize>>>,
}

impl Steering {
    /// For `together` workers at a time.
    pub(crate) fn new(figures: Figures, together: usize) -> Steering {
        Steering { figures, together: together.max(1), current: Mutex::default() }
    }

    /// A worker is full: others take what comes from now on, if others have more room. `listener`
    /// is any of those that share the port, all of which listen. Also to be called in the
    /// beginning.
    pub(crate) fn move_on(&self, listener: &OwnedFd) {
        if self.figures.workers().len() <= self.together {
            return;
        }
        let rooms: Vec<u32> = self.figures.workers().iter().map(WorkerFigures::room).collect();
        // Held while the kernel is told, so that what it is told last is what is remembered.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = choose(&rooms, self.together);
        // A kernel that cannot be told spreads connections over all workers, which is correct as
        // well. It is asked again when the next worker is full.
        if current.as_ref() != Some(&chosen) && listener::steer(listener, &chosen).is_ok() {
            *current = Some(chosen);
        }
    }
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
    fn the_last_group_is_no_smaller() {
        assert_eq!(choose(&[0, 0, 0, 100, 500], 2), 3..5);
    }

    #[test]
    fn where_room_is_scarce_everybody_takes_part() {
        assert_eq!(choose(&[0, 63, 63, 64], 2), 0..4);
    }
}
