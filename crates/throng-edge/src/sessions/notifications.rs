//! Acts on notifications about channels, users and answers.

use throng_core::{ChannelId, ConnectionName, Notification, WantedTags};

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
            Notification::Settled => self.resume_unsettled(),
            Notification::Kept(notice) => {
                self.kept_changes.push_back(RunningKeptChange::new(notice));
            }
            Notification::Answer { question, answer } => self.answered(question, answer),
            about_the_worker => debug_assert!(false, "{about_the_worker:?}"),
        }
    }

    /// True if a connection of this worker follows a channel and its session has the wanted tags;
    /// false if the connection is gone.
    fn follows(&self, name: ConnectionName, wanted: WantedTags, channel: ChannelId) -> bool {
        let has_tags = |id| match self.connections().session(id) {
            Some(session) => session.may_match(&wanted),
            None => wanted == WantedTags::ALL,
        };
        let id = self.connections().find_name(name);
        id.is_some_and(|id| has_tags(id) && self.subscription_to(id, channel).is_some())
    }
}
