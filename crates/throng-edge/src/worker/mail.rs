//! What engine and control plane say.

use std::collections::BTreeSet;

use throng_core::{ChannelId, ConnectionName, Mail};

use super::{UNSWEPT_BYTES_MAX, Worker};
use crate::connection::{Connection, Flags, State};
use crate::net::Net;

/// Connections looked at for one presence answer: the worker has other things to do.
const PRESENCE_VISITS_MAX: usize = 4096;

/// Presence questions that may wait for their turn, one in a slice. Beyond it they are answered
/// without looking.
const QUESTIONS_MAX: usize = 1024;

impl<N: Net> Worker<N> {
    /// Whether it takes mail in. Otherwise fan-outs are so far behind that mail had better wait.
    pub fn takes_mail(&self) -> bool {
        self.roster.unswept_bytes() <= UNSWEPT_BYTES_MAX
    }

    /// Takes all mail in, if it takes any.
    pub(super) fn take_mail(&mut self) {
        if !self.takes_mail() {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        self.mailbox.take(&mut mail);
        for piece in mail.drain(..) {
            match piece {
                Mail::Message { local, channel, message } => {
                    self.roster.append(local, channel, &message);
                }
                Mail::Presence { question, .. } if self.questions.len() >= QUESTIONS_MAX => {
                    question.answer([], true);
                }
                Mail::Presence { local, channel, question } => {
                    self.questions.push_back((local, channel, question));
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
    }

    /// Answers one presence question.
    pub(super) fn answer_question(&mut self) {
        let Some((local, channel, question)) = self.questions.pop_front() else { return };
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
