//! Memory that becomes short and suffices again, step by step.
//!
//! Only what workers give up by themselves is simulated: they keep less for clients that do not
//! read, and refuse pages of history and new subscriptions. Closing for memory is a scan.

use throng_core::MemoryStep;

use super::World;
use crate::{Check, ensure};

impl World {
    /// Goes to another step.
    pub(super) fn change_memory(&mut self) -> Check {
        let step = self.memory.next();
        self.set_memory(step)
    }

    /// Memory suffices again.
    pub(super) fn end_shortage(&mut self) -> Check {
        self.set_memory(MemoryStep::None)
    }

    fn set_memory(&mut self, step: MemoryStep) -> Check {
        if step == self.memory.pressure.step() {
            return Ok(());
        }
        // All steps so far are checked against the memory step of then.
        self.absorb()?;
        self.notes.trace(format!("memory: {}", step.word()));
        self.memory.pressure.report(1, 1, step);
        self.memory.furthest = self.memory.furthest.max(step);
        Ok(())
    }

    /// Checks that what a worker just did for a client is not refused at this step. A decision that
    /// comes later is not asked about memory again, nor is a connection that has its place.
    pub(super) fn check_memory(&self, client: usize, refusing: MemoryStep) -> Check {
        let step = self.memory.pressure.step();
        let is_asked_once = self.terms.lateness.is_possible();
        let has_place = refusing == MemoryStep::RefuseSubscriptions
            && self.clients[client].may_have_been_served();
        ensure!(
            step < refusing || is_asked_once || has_place,
            "client {client} is served while memory is short: {}",
            step.word()
        );
        Ok(())
    }
}
