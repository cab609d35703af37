//! Storms: the workers' queues of new connections become long and short again, and clients are told
//! moments meanwhile.
//!
//! How long a queue is, the event loop finds out; here it is chosen at random.

use throng_core::QueueWatch;

use super::World;

impl World {
    /// Before a worker accepts connections, it may find that its queue has become long or short.
    pub(super) fn look_at_queue(&mut self, at: usize) {
        if self.storms.changes() {
            let queue = self.storms.queue();
            self.seats[at].worker.set_crowd(false, queue);
            if queue.is_long() {
                self.notes.saw("storm: a long queue");
            }
        }
    }

    /// All queues are short.
    pub(super) fn end_storm(&mut self) {
        for seat in &mut self.seats {
            seat.worker.set_crowd(false, QueueWatch::default());
        }
    }
}
