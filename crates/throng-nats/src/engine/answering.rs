//! This node's answers to questions of others.

use std::sync::Arc;

use serde::Serialize;
use throng_core::{
    Answer, ChannelName, ConnectionScan, Later, Notification, ScanAction, ScanTarget, Scanned,
    Ticket, WorkerId,
};

use super::questions::{LogName, PresenceAnswer, Question, ScanAnswer, Target};
use super::shared::NodeShared;
use crate::journal::JournalEvent;

impl NodeShared {
    /// Another node asks. Without an answer it says that one is missing.
    pub(super) fn question(self: &Arc<NodeShared>, reply: String, question: &[u8]) {
        match serde_json::from_slice(question) {
            Ok(Question::Presence { of, users }) => self.tell_presence(reply, &of, users),
            Ok(Question::Subscribers(of)) => {
                self.reply(reply, &self.memory.audience(&of.name()).subscribers);
            }
            Ok(Question::Node) => {
                if let Some(view) = self.view() {
                    self.reply(reply, &view);
                }
            }
            Ok(Question::Scan { target, action }) => {
                let Some(target) = self.scan_target(target) else { return };
                let shared = Arc::clone(self);
                let done = move |scanned: Option<Scanned>| {
                    if let Some(scanned) = scanned {
                        shared.reply(reply, &ScanAnswer::from(&scanned));
                    }
                };
                self.scan(target, action.scan_action(), Ticket::new(done));
            }
            Err(error) => tracing::debug!("another node sent an unknown question: {error}"),
        }
    }

    fn reply(&self, reply: String, answer: &impl Serialize) {
        if let Ok(answer) = serde_json::to_vec(answer) {
            self.tell(JournalEvent::Answer { reply, answer });
        }
    }

    fn tell_presence(self: &Arc<NodeShared>, reply: String, of: &LogName, users: usize) {
        let now_ms = (self.now_ms)();
        let mut issue = || {
            let (shared, reply) = (Arc::clone(self), reply.clone());
            Ticket::new(move |presence| {
                if let Some(presence) = presence {
                    shared.reply(reply, &PresenceAnswer::from(&presence));
                }
            })
        };
        let asked = self.memory.presence(now_ms, &of.name(), users, Later::new(&mut issue));
        if let Ok(Answer::Now(presence)) = asked {
            self.reply(reply, &PresenceAnswer::from(&presence));
        }
    }

    /// `None` while this node does not know its tags of users: it has no connections yet.
    fn scan_target(&self, target: Target) -> Option<ScanTarget> {
        Some(match target {
            Target::User(user) => {
                let tags = self.tags_of_user.get()?(&user);
                ScanTarget::User { inbox: ChannelName::user(&user), tags }
            }
            Target::Channel(channel) => ScanTarget::Channel(ChannelName::channel(&channel)),
            Target::Connections(names) => {
                let names = names.iter().filter_map(|name| name.parse().ok());
                ScanTarget::Connections(names.collect())
            }
        })
    }

    /// Makes all workers pass their connections.
    pub(super) fn scan(&self, target: ScanTarget, action: ScanAction, ticket: Ticket<Scanned>) {
        let scan = ConnectionScan::new(target, action, self.workers, ticket);
        for worker in 0..self.workers {
            let worker = WorkerId(u16::try_from(worker).unwrap_or(u16::MAX));
            self.memory.post(worker, Notification::Scan(Arc::clone(&scan)));
        }
    }
}
