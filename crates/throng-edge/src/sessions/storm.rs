//! Tells clients moments to come back when they come faster than they can be served.
//!
//! Only the first subscription of a connection is told: publishers and everything else are served,
//! and a connection that has its place keeps it. To tell costs little, and the client is told in
//! the form that it understands: see [`throng_core::storm`] for the moments.

use std::time::Duration;

use throng_core::{AdmissionSettings, QueueWatch};
use throng_dialect::CloseReason;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorResponse, RetryAfter};

use crate::connection::{ConnectionId, Flags};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// When clients are told moments; `None` if new connections always wait.
    pub(crate) fn admission_settings(&self) -> Option<&AdmissionSettings> {
        self.settings.admission.settings()
    }

    /// The queue of new connections is as long as this: of plain ones, or of those with TLS.
    pub fn set_crowd(&mut self, is_tls: bool, crowd: QueueWatch) {
        self.crowds[usize::from(is_tls)] = crowd;
        let [plain, tls] = &self.crowds;
        self.metrics().own().set_queue_wait(plain.waited().max(tls.waited()));
    }

    /// Measures how many connections the server takes.
    pub(crate) fn measure_admission(&self) {
        let accepted = || self.metrics().all().sum(Counter::Accepted);
        self.settings.admission.measure(self.clock().unix_ms(), accepted);
    }

    /// True if the subscription has to come back later: too many wait, and no moment that somebody
    /// was told has come.
    pub(crate) fn is_excess(&self, id: ConnectionId, request: &Request) -> bool {
        let admission = &self.settings.admission;
        let has = |flag| self[id].has(flag);
        let has_entered = has(Flags::SERVED) || has(Flags::CANARY) || has(Flags::HANDED_OFF);
        // A poll that is let in at the end of the server may have messages that end with it.
        let is_ending = self.shutdown.has_stopped_accepting();
        if is_ending || request.is_status() || has_entered {
            return false;
        }
        // Also while the queue is short: it may be this client's moment.
        let is_due = admission.take_due(self.clock().unix_ms());
        !is_due && self.queue_clears_in().is_some()
    }

    /// The time that those take that wait in the longest queue; `None` if all queues are short. One
    /// thread serves those with TLS and those without.
    fn queue_clears_in(&self) -> Option<Duration> {
        let long = self.crowds.iter().filter(|crowd| crowd.is_long()).map(QueueWatch::clears_in);
        long.chain(self.settings.admission.shared_queue_clears_in()).max()
    }

    /// Tells the client of a subscription its moment. `bytes` begin with the request, of `length`
    /// bytes.
    pub(crate) fn tell_moment(
        &mut self,
        id: ConnectionId,
        request: &Request,
        bytes: &[u8],
        length: usize,
    ) {
        self.count(Counter::RefusedStorm);
        let error = ErrorResponse::crowded();
        self.log_error(id, bytes, request.request_id.as_deref(), &error);
        let behind = self.queue_clears_in().unwrap_or_default();
        let ahead_ms = self.settings.admission.tell(self.clock().unix_ms(), behind);
        let mut options = self.response_options(error.code, request.origin.as_deref());
        options.retry_after = Some(RetryAfter::from_ms(ahead_ms));
        let mut out = self.buffers().take_output();
        throng_dialect::refuse(&error, Some(request), &options, &mut out);
        if bytes.len() == length {
            self.close_at_once_after(id, &out);
        } else {
            self.close_after(id, &out, CloseReason::Complete);
        }
        self.buffers().return_output(out);
    }
}
