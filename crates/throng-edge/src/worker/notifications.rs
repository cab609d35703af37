//! Acts on notifications from the engine and the control plane.

use throng_core::Notification;

use super::Worker;
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
            self.notified(notification);
        }
        self.notifications = notifications;
    }

    fn notified(&mut self, notification: Notification) {
        match notification {
            Notification::Scan(scan) => self.begin_scan(scan),
            Notification::Leave { over_ms } => self.begin_leave(over_ms),
            Notification::Stay { held } => {
                self.shutdown_mut().stay();
                drop(held);
            }
            Notification::StopAccepting => self.end_accepting(),
            Notification::Drain => self.start_drain(),
            other => self.turn(|sessions| sessions.notified(other)),
        }
    }
}
