//! The worker as frozen state: what all connections share, then each connection beside its socket.
//!
//! Between two calls of the worker no write is under way, not even through io_uring, which
//! [`Net::write_each`] waits for. So every connection can be frozen then, whatever it is in the
//! middle of. See `docs/reference/frozen-state.md` for the records.

use throng_core::frozen::{Encoder, RecordKind};

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Acts on all notifications, and answers presence queries. Call it before
    /// [`Worker::freeze`], and with several workers until no queue has anything left, because
    /// answers go from one to another. A publication without an outcome by then is answered that
    /// its outcome is unknown: let the journal answer first.
    pub fn prepare_to_freeze(&mut self) {
        self.take_in(false);
        self.conclude_publications();
        self.conclude_many();
        self.record_completions();
        self.count_dropped();
    }

    /// Acts on all notifications, and answers presence queries. If it `may_wait`, changes of kept
    /// channels that need messages to be settled are left for the next time.
    pub(crate) fn take_in(&mut self, may_wait: bool) {
        while !self.queue.is_empty() || self.has_queries() || !self.scans.is_empty() {
            self.budget().begin_slice();
            self.take_all_notifications();
            let is_waiting = self.continue_kept_changes(may_wait);
            self.continue_presence_scans();
            self.continue_scans();
            if is_waiting && may_wait {
                return;
            }
        }
    }

    /// Ends the worker, and writes all that it is: one record with each call of `write`, a
    /// connection's with its socket. Its tables are freed as it goes. Sockets are not taken out of
    /// the worker's events. The engine keeps the worker as a follower, because another one goes on
    /// in its place. Returns its net, which takes time to drop: all events that were asked for.
    pub fn freeze(mut self, write: &mut dyn FnMut(Vec<u8>, Option<N::Socket>)) -> N {
        // The queue is empty but for answers that have just come: those questions are asked again.
        debug_assert!(self.may_freeze());
        // Before the counters are written.
        self.drop_volatile();
        self.count_dropped();
        self.close_unfinished();
        write(self.freeze_worker(), None);
        write(self.freeze_acceptances(), None);
        let channels = self.freeze_channels(&mut |record| write(record, None));
        let connections = self.freeze_connections(write);
        // Without it a stream that was cut between two records would pass for a whole worker.
        let mut end = Encoder::new(RecordKind::WorkerEnd);
        end.u32(channels);
        end.u32(connections);
        write(end.finish(), None);
        self.sessions.into_delivery().into_sockets().into_net()
    }

    /// Closes the connections that cannot be written down: those that shake hands, of which only
    /// rustls knows, and those whose TLS has failed. Also those of the canary, whose other ends are
    /// this process's. [`Worker::freeze`] does so, too: call it before if the engine is frozen
    /// earlier, where some of them follow channels.
    pub(crate) fn close_unfinished(&mut self) {
        for index in 0..self.connections().extent() {
            let id = ConnectionId::new(index);
            // Not every place of the table is taken.
            if self.connections().get(id).is_some() {
                self.turn(|sessions| sessions.end_unfinished(id));
            }
        }
    }
}
