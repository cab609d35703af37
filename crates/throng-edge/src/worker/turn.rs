//! One slice of a worker's own work, between two batches of events.

use super::Worker;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Takes notifications, fans out for one slice if it may, and goes on with everything that was
    /// deferred. Call it after each batch of events, and again while it returns `true`: there is
    /// more to do at once, beside fan-outs.
    pub fn work(&mut self, may_fan_out: bool) -> bool {
        self.budget.begin_slice();
        self.continue_reads();
        self.retry_handoffs();
        self.budget.begin_slice();
        self.continue_deliveries();
        let has_taken_all = self.take_notifications();
        self.continue_presence_scans();
        if may_fan_out {
            self.fan_out();
        }
        self.record_completions();
        if has_taken_all {
            self.answer_close_frames();
        }
        self.evict_excess();
        self.continue_drain();
        // For the events of the next batch.
        self.budget.begin_slice();
        self.deferred.has_work(self.takes_notifications()) || self.shutdown.has_work()
    }
}
