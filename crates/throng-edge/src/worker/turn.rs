//! One slice of a worker's own work, between two batches of events.

use super::Worker;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Does one slice of everything that was deferred, takes notifications, and does one slice of
    /// the fan-outs under way if it may. Call it after each batch of events. Returns whether there
    /// is more to do at once, beside fan-outs.
    pub fn work(&mut self, may_fan_out: bool) -> bool {
        self.begin_slice();
        self.end_interval();
        while let Some(token) = self.next_ready() {
            self.readable(token, false);
        }
        self.continue_reads();
        self.retry_handoffs();
        self.budget().begin_slice();
        self.continue_deliveries();
        let has_taken_all = self.take_notifications();
        self.continue_kept_changes(true);
        self.continue_presence_scans();
        self.continue_scans();
        self.fire_clocks();
        if may_fan_out {
            self.begin_fan_out();
            // What is due goes first, and all of it before more is visited, unless it may grow.
            if self.gathers() || self.turn(|sessions| sessions.write_due()) {
                while self.next_visits() {
                    self.turn(|sessions| sessions.visit());
                }
                if !self.gathers() {
                    self.turn(|sessions| sessions.write_due());
                }
            }
            self.end_fan_out();
            self.begin_fan_out();
            while let Some(message) = self.next_volatile_visits() {
                self.turn(|sessions| sessions.visit_with_volatile(&message));
            }
            self.end_fan_out();
        }
        self.turn(|sessions| sessions.end_over());
        self.record_completions();
        // A close frame is answered behind the messages that were published before it: they are in
        // the replay buffers only once all notifications of that time have been taken.
        if has_taken_all {
            self.answer_close_frames();
        }
        self.evict_excess();
        self.continue_leave();
        self.continue_drain();
        self.report_receipts();
        // The events of the next batch share a slice.
        self.budget().begin_slice();
        self.has_deferred_work() || !self.scans.is_empty() || self.has_ready()
    }
}
