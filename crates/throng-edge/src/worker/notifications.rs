//! Acts on notifications from the engine and the control plane.

use throng_core::Notification;

use super::Worker;
use super::session::kept_change::RunningKeptChange;
use super::session::presence_scan::PresenceScan;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Takes all notifications, or only the urgent ones while [`Worker::takes_notifications`] is
    /// false: a shutdown does not wait for fan-outs. Returns whether it has taken all.
    pub(super) fn take_notifications(&mut self) -> bool {
        let takes_all = self.takes_notifications();
        if takes_all {
            self.take_all_notifications();
        } else {
            let mut notifications = std::mem::take(&mut self.notifications);
            self.queue.take_urgent(&mut notifications);
            self.act_on(notifications);
        }
        takes_all
    }

    /// Takes all notifications in, however far delivery lags.
    pub(super) fn take_all_notifications(&mut self) {
        let mut notifications = std::mem::take(&mut self.notifications);
        self.take_queue(&mut notifications);
        self.act_on(notifications);
        self.end_notifications();
    }

    fn act_on(&mut self, mut notifications: Vec<Notification>) {
        for notification in notifications.drain(..) {
            self.turn(|worker| worker.notified(notification));
        }
        self.notifications = notifications;
    }

    fn notified(&mut self, notification: Notification) {
        match notification {
            Notification::Message { local, channel, message, receipt } => {
                // On a server with keys, who may publish must not learn so whom others follow.
                let shows_excluded = !self.access.has_keys();
                let receipt = receipt.map(|part| *part);
                self.notified_of(local, channel, &message, receipt, shows_excluded);
            }
            Notification::Presence { local, channel, query } => {
                let scan = PresenceScan::new(local, channel, query);
                self.presence_scans.push_back(scan);
            }
            Notification::Follows { name, channel, connection, wanted, ticket } => {
                let is_named = self.engine.is_named(channel, &name);
                ticket.answer(is_named && self.follows(connection, wanted, channel));
            }
            Notification::Settled => self.deferred().resume_unsettled(),
            Notification::Kept(notice) => {
                self.kept_changes.push_back(RunningKeptChange::new(notice));
            }
            Notification::Scan(scan) => self.begin_scan(scan),
            Notification::Answer { question, answer } => self.answered(question, answer),
            Notification::Leave { over_ms } => self.begin_leave(over_ms),
            Notification::Stay { held } => {
                self.shutdown.stay();
                drop(held);
            }
            Notification::StopAccepting => self.end_accepting(),
            Notification::Drain => self.start_drain(),
        }
    }
}
