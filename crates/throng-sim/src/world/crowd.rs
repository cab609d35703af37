//! Many clients on one channel, some of which leave and join during fan-outs.
//!
//! A slice of a fan-out covers about a hundred subscriptions. Only with more of them on one channel
//! does a pass pause between two slices, while clients join and leave.

use super::World;
use super::seat::Batch;
use crate::Check;
use crate::topics::SQUARE;

impl World {
    /// Connects most clients at once.
    pub(super) fn gather(&mut self) -> Check {
        for _ in 0..self.kind.max_clients * 2 / 3 {
            self.connect()?;
        }
        self.come_to_rest()
    }

    /// During a fan-out some clients leave, and as many join.
    pub(super) fn stir(&mut self) -> Check {
        self.notes.trace("stir".into());
        self.kind.stirs -= 1;
        self.publish_on(SQUARE);
        self.absorb()?;
        for _ in 0..self.random.between(1, 2) {
            self.work(0)?;
        }
        let share = if self.kind.clients_stay { 0 } else { self.random.between(5, 35) };
        let mut left = 0;
        for number in 0..self.clients.len() {
            if self.clients[number].is_here() && self.random.percent(share) {
                self.leave(number);
                left += 1;
            }
        }
        self.turn(0, Batch::ALL)?;
        if self.random.percent(50) {
            self.publish_on(SQUARE);
            self.absorb()?;
        }
        for _ in 0..left {
            self.connect()?;
        }
        self.turn(0, Batch::ALL)
    }
}
