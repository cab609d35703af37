//! Acts on notifications about channels, users and answers.

use throng_core::Notification;

use super::Sessions;
use super::kept_change::RunningKeptChange;
use super::presence_scan::PresenceScan;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// Acts on a notification.
    pub(crate) fn notified(&mut self, notification: Notification) {
        match notification {
            Notification::Message { local, channel, message, receipt } => {
                // On a server with keys, who may publish must not learn so whom others follow.
                let shows_excluded = !self.access.has_keys();
                let receipt = receipt.map(|part| *part);
                self.notified_of(local, channel, &message, receipt, shows_excluded);
            }
            Notification::Presence { local, channel, query } => {
                self.presence_scans.push_back(PresenceScan::new(local, channel, query));
            }
            Notification::Follows { name, channel, connection, wanted, ticket } => {
                let is_named = self.engine.is_named(channel, &name);
                ticket.answer(is_named && self.follows(connection, wanted, channel));
            }
            Notification::Settled => self.deferred().resume_unsettled(),
            Notification::Kept(notice) => {
                self.kept_changes.push_back(RunningKeptChange::new(notice));
            }
            Notification::Answer { question, answer } => self.answered(question, answer),
            Notification::Scan(_)
            | Notification::Leave { .. }
            | Notification::Stay { .. }
            | Notification::StopAccepting
            | Notification::Drain => debug_assert!(false, "it is about the worker"),
        }
    }
}
