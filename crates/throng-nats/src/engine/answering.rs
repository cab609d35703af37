//! This node's answers to questions of others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use throng_core::{
    Answer, ChannelName, ConnectionScan, Delivered, Later, ListedChannel, MessageId, Notification,
    PresenceAsk, Receipt, ScanAction, ScanTarget, Scanned, Ticket, WorkerId,
};

use super::questions::{
    ListAnswer, ListQuestion, LogName, PresenceAnswer, Question, ReceiptAnswer, ScanAnswer, Target,
};
use super::receipts::{Asked, Due, KEPT_MS};
use super::shared::NodeShared;
use crate::journal::JournalEvent;

/// Parts of lists that are selected for other nodes at a time, at most.
const LISTS_MAX: usize = 4;

impl NodeShared {
    /// Another node asks. Without an answer it says that one is missing.
    pub(super) fn question(self: &Arc<NodeShared>, reply: String, question: &[u8]) {
        match serde_json::from_slice(question) {
            Ok(Question::Presence { of, users, anew }) => {
                self.tell_presence(reply, &of, PresenceAsk { max_users: users, is_anew: anew });
            }
            Ok(Question::Subscribers(of)) => {
                self.reply(reply, &self.memory.audience(&of.name()).subscribers);
            }
            Ok(Question::Receipt { of, id, wait_ms }) => {
                self.tell_receipt(reply, (&of, &id), wait_ms);
            }
            Ok(Question::Node) => {
                if let Some(view) = self.view() {
                    self.reply(reply, &view);
                }
            }
            Ok(Question::Use { node, report }) => self.hear_use(reply, &node, &report),
            Ok(Question::List(question)) => self.tell_list(reply, question),
            Ok(Question::MembersTold { node, first, changes }) => {
                self.hear_members(&node, first, changes);
            }
            Ok(Question::Members { only, of }) => self.tell_members(reply, only, of),
            Ok(Question::BookmarksLeft { node, left }) => self.hear_bookmarks(&node, left),
            Ok(Question::Bookmark { of, user, from }) => {
                self.tell_bookmark(reply, (&of, &user), from.as_deref());
            }
            Ok(Question::PartWith { user, before_ms }) => {
                self.memory.part_with_user((self.now_ms)(), &user, before_ms);
                self.reply(reply, &true);
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

    pub(super) fn reply(&self, reply: String, answer: &impl Serialize) {
        if let Ok(answer) = serde_json::to_vec(answer) {
            self.tell(JournalEvent::Answer { reply, answer });
        }
    }

    fn tell_presence(self: &Arc<NodeShared>, reply: String, of: &LogName, ask: PresenceAsk) {
        let now_ms = (self.now_ms)();
        let mut issue = || {
            let (shared, reply) = (Arc::clone(self), reply.clone());
            Ticket::new(move |presence| {
                if let Some(presence) = presence {
                    shared.reply(reply, &PresenceAnswer::from(&presence));
                }
            })
        };
        let asked = self.memory.presence(now_ms, &of.name(), ask, Later::new(&mut issue));
        if let Ok(Answer::Now(presence)) = asked {
            self.reply(reply, &PresenceAnswer::from(&presence));
        }
    }

    /// Another node has reported what clients use there.
    fn hear_use(&self, reply: String, node: &str, report: &str) {
        if let Ok(report) = STANDARD.decode(report) {
            self.usage.heard(node, &report, (self.now_ms)());
        }
        self.reply(reply, &true);
    }

    /// Selects a part of a list on a thread of its own, because the connection's delivers messages.
    fn tell_list(self: &Arc<NodeShared>, reply: String, question: ListQuestion) {
        let Some(query) = question.query() else { return };
        let begun = self.lists.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(self);
        let tell = move || {
            if let Some(select) = shared.list_part.get() {
                shared.reply(reply, &ListAnswer::from(&select(&query)));
            }
            shared.lists.fetch_sub(1, Ordering::Relaxed);
        };
        let is_spawned = begun < LISTS_MAX
            && std::thread::Builder::new().name("list".into()).spawn(tell).is_ok();
        if !is_spawned {
            // The other node says that this one's part is missing.
            self.lists.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Corrects an entry of a list: the followed channels have the messages that are in memory.
    /// Those in the stream are in its own part.
    pub(super) fn complete_list(&self, now_ms: u64, listed: &mut ListedChannel) {
        let followed = self.followed();
        let entry = followed.get(&listed.name);
        let readable = entry.into_iter().flat_map(|entry| entry.cached());
        listed.messages = readable.filter(|message| !message.is_expired(now_ms)).count();
    }

    /// `None` while this node does not know its tags of users: it has no connections yet.
    fn scan_target(&self, target: Target) -> Option<ScanTarget> {
        Some(match target {
            Target::User(user) => {
                let tags = self.tags_of_user.get()?(&user);
                ScanTarget::User { inbox: ChannelName::user(&user), tags }
            }
            Target::Channel(channel) => ScanTarget::Channel(ChannelName::channel(&channel)),
            Target::Behind => ScanTarget::Behind,
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

    /// The receipt of a message that has arrived, if its publisher is on another node.
    pub(super) fn begin_receipt(
        self: &Arc<NodeShared>,
        (sequence, channel): (u64, &ChannelName),
        receipt: &str,
    ) -> Option<Arc<Receipt>> {
        let (node, _) = receipt.rsplit_once('.')?;
        let shared: Weak<NodeShared> = Arc::downgrade(self);
        let ticket = Ticket::new(move |complete: Option<()>| {
            let Some((shared, ())) = shared.upgrade().zip(complete) else { return };
            let due = shared.receipts.complete(sequence);
            shared.answer_due(due);
        });
        self.receipts.begin((sequence, (self.now_ms)()), (node, channel), ticket)
    }

    /// Another node asks for the delivery of its publisher's message.
    pub(super) fn tell_receipt(&self, reply: String, (of, id): (&LogName, &str), wait_ms: u64) {
        let Ok(MessageId { epoch, offset }) = id.parse() else { return };
        if self.link.epoch() != Some(epoch) {
            return;
        }
        let asked = Asked { reply, until_ms: (self.now_ms)() + wait_ms.min(KEPT_MS) };
        let asked = match self.receipts.ask(offset, asked) {
            Ok(due) => return self.answer_due(due),
            Err(asked) => asked,
        };
        let channel = of.name();
        let head = self.followed().get(&channel).filter(|entry| entry.is_live).map(|it| it.head);
        match head {
            Some(head) if head < offset => self.receipts.expect(offset, asked),
            // It was delivered here without a receipt: there were too many.
            Some(_) => {
                let matched = self.memory.audience(&channel).subscribers;
                let (behind, unknown) = (matched, matched);
                let delivered = Delivered { matched, behind, unknown, ..Delivered::default() };
                self.answer_due([(asked.reply, delivered)]);
            }
            None => self.answer_due([(asked.reply, Delivered::default())]),
        }
    }

    /// Answers for publishers whose time is over.
    pub(super) fn tell_due_receipts(&self, now_ms: u64) {
        let due = self.receipts.due(now_ms);
        self.answer_due(due);
    }

    fn answer_due(&self, due: impl IntoIterator<Item = Due>) {
        for (reply, delivered) in due {
            self.reply(reply, &ReceiptAnswer::from(&delivered));
        }
    }
}
