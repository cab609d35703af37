//! What engine and control plane say.

use throng_core::{ChannelId, ConnectionName, Notification};

use super::Worker;
use super::presence::Walk;
use crate::connection::{Connection, Flags, State};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Whether it takes notifications in. Otherwise fan-outs are so far behind that notifications
    /// had better wait.
    pub fn takes_notifications(&self) -> bool {
        self.subscriptions.pending_bytes() <= self.settings.limits.pending_bytes_max
    }

    /// Takes all notifications in, if it takes any, and orders in any case: the end must not wait
    /// for fan-outs. Returns whether it has taken all.
    pub(super) fn take_notifications(&mut self) -> bool {
        let takes_all = self.takes_notifications();
        let mut notifications = std::mem::take(&mut self.notifications);
        match takes_all {
            true => self.queue.take(&mut notifications),
            false => self.queue.take_urgent(&mut notifications),
        }
        for notification in notifications.drain(..) {
            match notification {
                Notification::Message { local, channel, message } => {
                    self.subscriptions.append(local, channel, &message);
                }
                Notification::Presence { local, channel, query } => {
                    self.queries.push_back(Walk::new(local, channel, query));
                }
                Notification::Follows { channel, connection, query } => {
                    (query.0)(self.follows(connection, channel));
                }
                Notification::Answer { connection, text } => self.late_answer(connection, &text),
                Notification::StopAccepting => self.stop_accepting(),
                Notification::Drain => self.start_drain(),
            }
        }
        self.notifications = notifications;
        takes_all
    }

    fn follows(&self, connection: ConnectionName, channel: ChannelId) -> bool {
        let index = connection.index();
        self.name_of(index) == connection
            && self.subscriptions(index).any(|subscription| {
                self.subscriptions.channel(subscription).is_some_and(|(known, _)| known == channel)
            })
    }

    fn late_answer(&mut self, connection: ConnectionName, text: &str) {
        let index = connection.index();
        if self.name_of(index) != connection {
            return;
        }
        if let Some(io) = self.connections.get_mut(index).and_then(|it| it.io.as_mut()) {
            io.asked = io.asked.saturating_sub(1);
        }
        // Nothing may follow the last words of one that is closing.
        let is_open = |it: &Connection<_>| it.has(Flags::V1) && it.state == State::Parked;
        if self.connections.get(index).is_some_and(is_open) {
            self.reply(index, |out| out.extend_from_slice(text.as_bytes()));
        }
        self.shed(index);
    }
}
