//! What connections hold of their own, and which give way when all together hold too much.
//!
//! A worker's share of [`Limits::max_buffered_bytes`](crate::limits::Limits) is used up by those
//! who hold much: so these are closed, whoever asked last. Among connections that hold about the
//! same, to a power of two, the one that has held something longest goes first: a client whose
//! answer is being written right now is spared by those that do not read theirs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use throng_core::Counter;
use throng_wire::{ErrorCode, ErrorResponse};

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Flags, State};
use crate::net::Net;

/// What is counted for one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    bytes: usize,
    /// When it began to hold something: the number of those that had, on this worker.
    since: u64,
}

/// One of those that may have to give way. The greatest goes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The number of bits of what it holds.
    size: u32,
    since: Reverse<u64>,
    index: u32,
}

/// What all connections of a worker hold.
///
/// Invariant: `places` has one entry for each connection that holds the floor or more, and `bytes`
/// is the sum of what is counted for all.
#[derive(Debug)]
pub(super) struct Holdings {
    bytes: usize,
    bytes_max: usize,
    floor_bytes: usize,
    /// How often a connection has begun to hold something.
    begun: u64,
    places: BTreeSet<Place>,
}

impl Holdings {
    pub(super) fn new(bytes_max: usize, floor_bytes: usize) -> Holdings {
        Holdings { bytes: 0, bytes_max, floor_bytes, begun: 0, places: BTreeSet::new() }
    }

    /// The connection at `index`, for which `held` was counted, now holds `bytes`.
    fn set(&mut self, index: u32, held: &mut Held, bytes: usize) {
        let before = self.place(index, *held);
        self.bytes = self.bytes - held.bytes + bytes;
        if held.bytes == 0 {
            self.begun += 1;
            held.since = self.begun;
        }
        held.bytes = bytes;
        let after = self.place(index, *held);
        if before != after {
            if let Some(before) = before {
                self.places.remove(&before);
            }
            self.places.extend(after);
        }
    }

    /// The connection at `index` holds nothing any more.
    pub(super) fn release(&mut self, index: u32, mut held: Held) {
        self.set(index, &mut held, 0);
    }

    fn place(&self, index: u32, held: Held) -> Option<Place> {
        let size = usize::BITS - held.bytes.leading_zeros();
        let place = Place { size, since: Reverse(held.since), index };
        (held.bytes >= self.floor_bytes.max(1)).then_some(place)
    }

    /// The connection that is to give way; `None` while all together hold no more than they may, or
    /// each holds little.
    fn excess(&self) -> Option<u32> {
        self.places.last().filter(|_| self.bytes > self.bytes_max).map(|place| place.index)
    }
}

impl<N: Net> Worker<N> {
    /// Counts what the connection holds of its own.
    pub(super) fn count_held(&mut self, index: u32) {
        let Worker { connections, holdings, .. } = self;
        let Some(io) = connections.get_mut(index).and_then(|it| it.io.as_mut()) else { return };
        let bytes = io.held_bytes();
        holdings.set(index, &mut io.held, bytes);
    }

    /// Gives back what the connection needs no longer, and counts the rest.
    pub(super) fn shed(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        match &connection.io {
            Some(io) if io.is_idle() => {
                let held = connection.held();
                connection.io = None;
                self.holdings.release(index, held);
            }
            Some(_) => self.count_held(index),
            None => {}
        }
    }

    /// Closes connections that hold much while all together hold too much. Not to be called in the
    /// middle of anything: any connection may be gone afterwards.
    pub(super) fn relieve(&mut self) {
        while let Some(index) = self.holdings.excess() {
            self.close_holder(index);
        }
    }

    /// Closes a connection, with a word if its socket takes one.
    fn close_holder(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let what = "too much is half sent or not read yet";
        match connection.state {
            // Behind what the socket does not take there is no use in more words.
            _ if connection.has(Flags::BLOCKED) => self.cut_off(index),
            State::Parked if connection.has(Flags::WEBSOCKET) => {
                self.close_overloaded(index, what);
            }
            State::Head | State::Polling => {
                self.count(Counter::ClosedOverload);
                let message = format!("{what}; try again later");
                self.refuse(index, &ErrorResponse::new(ErrorCode::Busy, message), None);
            }
            State::Parked | State::Closing => self.cut_off(index),
        }
        self.count_held(index);
    }

    fn cut_off(&mut self, index: u32) {
        if self.connections.get(index).is_some_and(|it| it.state == State::Closing) {
            // It closes for another reason, but its last words are lost for this one.
            self.count(Counter::ClosedOverload);
        }
        self.forget(index, CloseReason::Overload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holdings() -> Holdings {
        Holdings::new(100, 8)
    }

    #[test]
    fn the_one_that_holds_most_gives_way_and_among_equals_the_oldest() {
        let mut holdings = holdings();
        let mut held = [Held::default(); 5];
        for (index, bytes) in [(2, 33), (0, 7), (1, 40), (3, 15), (4, 5)] {
            assert_eq!(holdings.excess(), None);
            holdings.set(index as u32, &mut held[index], bytes);
        }
        assert_eq!(holdings.bytes, 100);
        holdings.set(4, &mut held[4], 6);
        assert_eq!(holdings.excess(), Some(2), "33 and 40 are alike, and it has held longer");
        holdings.release(2, held[2]);
        assert_eq!(holdings.excess(), None);
        holdings.set(3, &mut held[3], 64);
        assert_eq!(holdings.excess(), Some(3));
        holdings.release(3, held[3]);
        holdings.release(1, held[1]);
        holdings.set(0, &mut held[0], 7);
        holdings.bytes_max = 0;
        assert_eq!(holdings.excess(), None, "nobody below the floor");
    }

    #[test]
    fn what_is_counted_comes_to_nothing() {
        let mut holdings = holdings();
        let mut held = [Held::default(); 7];
        for step in 0..1000_u32 {
            let index = (step * 31 % 7) as usize;
            let bytes = (step as usize * 97) % 300;
            holdings.set(index as u32, &mut held[index], bytes);
            let sum: usize = held.iter().map(|held| held.bytes).sum();
            let many = held.iter().filter(|held| held.bytes >= 8).count();
            assert_eq!((holdings.bytes, holdings.places.len()), (sum, many));
        }
        (0..7).for_each(|index| holdings.release(index, held[index as usize]));
        assert!(holdings.bytes == 0 && holdings.places.is_empty());
    }
}
