//! What engine and control plane say.

use std::collections::BTreeSet;
use std::sync::Arc;

use throng_core::{ChannelId, ConnectionName, LocalId, Mail, PresenceQuestion};

use super::{UNSWEPT_BYTES_MAX, Worker};
use crate::connection::{Connection, Flags, State};
use crate::net::Net;

/// Connections looked at for one presence answer: the worker has other things to do.
const PRESENCE_VISITS_MAX: usize = 20_000;

impl<N: Net> Worker<N> {
    /// Takes all mail in, unless fan-outs are so far behind that it had better wait.
    pub(super) fn take_mail(&mut self) {
        if self.roster.unswept_bytes() > UNSWEPT_BYTES_MAX {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        self.mailbox.take(&mut mail);
        for piece in mail.drain(..) {
            match piece {
                Mail::Message { local, channel, message } => {
                    self.roster.append(local, channel, &message);
                }
                Mail::Presence { local, channel, question } => {
                    self.answer_presence(local, channel, &question);
                }
                Mail::Follows { channel, connection, question } => {
                    (question.0)(self.follows(connection, channel));
                }
                Mail::Answer { connection, text } => self.late_answer(connection, &text),
                Mail::CloseDoors => self.are_doors_closed = true,
                Mail::Drain => self.start_drain(),
            }
        }
        self.mail = mail;
    }

    fn answer_presence(
        &self,
        local: LocalId,
        channel: ChannelId,
        question: &Arc<PresenceQuestion>,
    ) {
        let mut users = BTreeSet::new();
        let mut is_cut = false;
        for (nth, index) in self.roster.members(local, channel).enumerate() {
            if nth >= PRESENCE_VISITS_MAX || users.len() > question.users_max() {
                is_cut = true;
                break;
            }
            if let Some(user) = self.user_of(index) {
                users.insert(Box::<str>::from(user.name()));
            }
        }
        question.answer(users, is_cut);
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
        // Nothing may follow the last words of one that is closing.
        let is_open = |it: &Connection<_>| it.has(Flags::V1) && it.state == State::Parked;
        if self.name_of(index) == connection && self.connections.get(index).is_some_and(is_open) {
            self.reply(index, |out| out.extend_from_slice(text.as_bytes()));
        }
    }
}
