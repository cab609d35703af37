//! What engine and control plane say.

use throng_core::{ChannelId, ConnectionName, Mail};

use super::Worker;
use super::presence::Walk;
use crate::connection::{Connection, Flags, State};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Whether it takes mail in. Otherwise fan-outs are so far behind that mail had better wait.
    pub fn takes_mail(&self) -> bool {
        self.roster.unswept_bytes() <= self.settings.limits.unswept_bytes_max
    }

    /// Takes all mail in, if it takes any, and orders in any case: the end must not wait for
    /// fan-outs. Returns whether it has taken all.
    pub(super) fn take_mail(&mut self) -> bool {
        let takes_all = self.takes_mail();
        let mut mail = std::mem::take(&mut self.mail);
        match takes_all {
            true => self.mailbox.take(&mut mail),
            false => self.mailbox.take_orders(&mut mail),
        }
        for piece in mail.drain(..) {
            match piece {
                Mail::Message { local, channel, message } => {
                    self.roster.append(local, channel, &message);
                }
                Mail::Presence { local, channel, question } => {
                    self.questions.push_back(Walk::new(local, channel, question));
                }
                Mail::Follows { channel, connection, question } => {
                    (question.0)(self.follows(connection, channel));
                }
                Mail::Answer { connection, text } => self.late_answer(connection, &text),
                Mail::CloseDoors => self.close_doors(),
                Mail::Drain => self.start_drain(),
            }
        }
        self.mail = mail;
        takes_all
    }

    fn follows(&self, connection: ConnectionName, channel: ChannelId) -> bool {
        let index = connection.index();
        self.name_of(index) == connection
            && self.subscriptions(index).any(|subscription| {
                self.roster.channel(subscription).is_some_and(|(known, _)| known == channel)
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
