//! Acts on notifications from the engine and the control plane.

use throng_core::{ConnectionName, Notification};

use super::Worker;
use super::session::presence_scan::PresenceScan;
use crate::connection::{Flags, State};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Whether the worker takes notifications. It does not while its fan-outs are so far behind
    /// that the replay buffers hold
    /// [`Limits::pending_bytes_max`](crate::Limits::pending_bytes_max).
    pub fn takes_notifications(&self) -> bool {
        self.subscriptions.pending_bytes() <= self.settings.limits.pending_bytes_max
    }

    /// Takes all notifications, or only the urgent ones while [`Worker::takes_notifications`] is
    /// false: a shutdown does not wait for fan-outs. Returns whether it has taken all.
    pub(super) fn take_notifications(&mut self) -> bool {
        let takes_all = self.takes_notifications();
        let mut notifications = self.buffers.take_notifications();
        if takes_all {
            self.queue.take(&mut notifications);
        } else {
            self.queue.take_urgent(&mut notifications);
        }
        for notification in notifications.drain(..) {
            match notification {
                Notification::Message { local, channel, message } => {
                    self.subscriptions.append(local, channel, &message);
                }
                Notification::Presence { local, channel, query } => {
                    let scan = PresenceScan::new(local, channel, query);
                    self.deferred.defer_presence_scan(scan);
                }
                Notification::Follows { channel, connection, query } => {
                    (query.0)(self.follows(connection, channel));
                }
                Notification::Answer { connection, text } => self.late_answer(connection, &text),
                Notification::StopAccepting => self.shutdown.stop_accepting(self.clock.tick()),
                Notification::Drain => self.start_drain(),
            }
        }
        self.buffers.return_notifications(notifications);
        takes_all
    }

    /// Sends an answer that came later than its command.
    fn late_answer(&mut self, connection: ConnectionName, text: &str) {
        // The client may have gone meanwhile.
        let Some(id) = self.connections.find_name(connection) else { return };
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        if let Some(io) = &mut connection.io {
            io.pending_queries = io.pending_queries.saturating_sub(1);
        }
        // Nothing may follow a close frame (RFC 6455 section 5.5.1).
        if connection.has(Flags::V1) && connection.state == State::Streaming {
            self.reply(id, |out| out.extend_from_slice(text.as_bytes()));
        }
        self.connections.trim_buffers(id);
    }
}
