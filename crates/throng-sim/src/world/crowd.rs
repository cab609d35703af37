//! A crowd comes, and changes places in the middle of fan-outs.
//!
//! A slice of a fan-out is about a hundred visits: only with more subscribers than that on one
//! channel does a sweep stand still between two of them, while others come and go.

use super::World;
use super::seat::Batch;
use crate::Check;
use crate::topics::SQUARE;

impl World {
    /// A crowd comes at once.
    pub(super) fn gather(&mut self) -> Check {
        for _ in 0..self.kind.clients_max * 2 / 3 {
            self.connect()?;
        }
        self.come_to_rest()
    }

    /// In the middle of a fan-out some leave, and as many come.
    pub(super) fn stir(&mut self) -> Check {
        self.notes.trace("stir".into());
        self.kind.stirs -= 1;
        self.publish_on(SQUARE);
        self.absorb()?;
        for _ in 0..self.random.between(1, 2) {
            self.work(0)?;
        }
        let share = if self.kind.nobody_leaves { 0 } else { self.random.between(5, 35) };
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
