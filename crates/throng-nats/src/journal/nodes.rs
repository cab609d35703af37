//! The other nodes: which there are, and what is asked of all of them.
//!
//! Each node says every second that it is there, and how it is. One that was silent for eight
//! seconds is gone: a node stores nothing else about another, so nothing of it is left. A question
//! goes to all nodes at once. It is over when each node that is there has answered, or its time is
//! up; then it is said that answers are missing.
//!
//! # Invariants
//!
//! * Each [`JournalEvent::Ask`](super::JournalEvent::Ask) gets exactly one
//!   [`JournalReport::Asked`], with at most one answer of each node.
//! * An answer is complete only if every node that was known when it was asked has answered, and
//!   nodes had time to say that they are there since the connection was made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use super::outbox::{JournalAction, Outbox, Question};
use super::report::{Ask, JournalReport, NodesAnswered};
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::{HeaderWriter, Headers};

/// How often a node says that it is there.
const BEAT_MS: u64 = 1_000;

/// After this silence a node is not waited for: the answer is not complete then.
const SUSPECT_MS: u64 = 2_500;

/// After this silence a node is gone. Longer than it takes to notice that the own server is silent,
/// which is six seconds: a node that is cut off itself must not take all others for gone.
const GONE_MS: u64 = 8_000;

/// For this time after it has connected, a node waits for answers of nodes that it does not know:
/// they say that they are there when they hear of it.
const SETTLE_MS: u64 = 500;

/// How often a question that every node has to hear is asked again.
const REPEAT_MS: u64 = 1_000;

/// Nodes that are known, at most: whoever may publish could invent any number.
const NODES_MAX: usize = 1_000;

/// The longest name of a node.
const NAME_BYTES_MAX: usize = 64;

/// The longest description of a node that is read: all others get it each second.
const DESCRIPTION_BYTES_MAX: usize = 4 << 10;

/// Names the node that sends a message.
const NODE: &str = "Throng-Node";

/// A node's description of itself.
const HERE: &[u8] = b"here";
const NEW: &[u8] = b"new";
const LEAVES: &[u8] = b"leaves";

struct Open {
    /// The owner's token.
    token: u64,
    question: Arc<[u8]>,
    /// Nodes that have not answered, and whether they are waited for.
    missing: BTreeMap<Box<str>, bool>,
    answered: BTreeSet<Box<str>>,
    answers: Vec<Vec<u8>>,
    deadline_ms: u64,
    /// When it is asked again, if every node has to hear it.
    repeat_ms: Option<u64>,
}

pub(super) struct Nodes {
    own: Box<str>,
    /// True if another process is this node, so that this one only listens.
    is_silent: bool,
    presence: Box<str>,
    ask: Box<str>,
    /// The description of this node; may be empty.
    description: Arc<[u8]>,
    /// By name, when a node was heard last.
    known: BTreeMap<Box<str>, u64>,
    open: HashMap<u64, Open, foldhash::fast::RandomState>,
    is_connected: bool,
    settled_ms: u64,
    beat_ms: u64,
    /// The number that was reported last.
    reported: usize,
}

impl Nodes {
    /// A node with a name of its own, or one that only listens until it takes the place of another
    /// process. The subjects are those on which nodes say that they are there, and on which they
    /// ask.
    pub(super) fn new(
        (own, successor_of): (&str, Option<String>),
        [presence, ask]: [&str; 2],
    ) -> Nodes {
        Nodes {
            is_silent: successor_of.is_some(),
            own: successor_of.map_or_else(|| own.into(), String::into_boxed_str),
            presence: presence.into(),
            ask: ask.into(),
            description: [].into(),
            known: BTreeMap::new(),
            open: HashMap::default(),
            is_connected: false,
            settled_ms: 0,
            beat_ms: 0,
            reported: 0,
        }
    }

    pub(super) fn connected(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.is_connected = true;
        self.settled_ms = now_ms + SETTLE_MS;
        // Nobody could be heard meanwhile.
        self.known.values_mut().for_each(|heard_ms| *heard_ms = now_ms);
        outbox.subscribe_nodes([&self.presence, &self.ask]);
        self.say(now_ms, NEW.into(), outbox);
        if !self.description.is_empty() {
            self.say(now_ms, Arc::clone(&self.description), outbox);
        }
        self.report(self.known.len(), outbox);
    }

    /// The other nodes, and for how long each was silent, in milliseconds.
    pub(super) fn known(&self, now_ms: u64) -> Vec<(Box<str>, u64)> {
        let known = self.known.iter();
        known.map(|(name, heard_ms)| (name.clone(), now_ms.saturating_sub(*heard_ms))).collect()
    }

    /// This process is the node from now on, and knows the nodes that the one before has known.
    pub(super) fn resume(&mut self, now_ms: u64, nodes: Vec<(Box<str>, u64)>, outbox: &mut Outbox) {
        self.is_silent = false;
        for (name, silent_ms) in nodes {
            if *name != *self.own && self.known.len() < NODES_MAX {
                let heard_ms = now_ms.saturating_sub(silent_ms);
                let known_ms = self.known.entry(name).or_insert(heard_ms);
                *known_ms = heard_ms.max(*known_ms);
            }
        }
        for node in self.known.keys().cloned() {
            outbox.report(JournalReport::Heard { node, description: Vec::new() });
        }
        // All that answer are known.
        self.settled_ms = now_ms;
        if self.is_connected {
            self.reported = self.known.len();
            outbox.report(JournalReport::Nodes(self.reported));
            // So that all others say anew how they are.
            self.say(now_ms, NEW.into(), outbox);
        }
    }

    /// Sets the node's description of itself, and sends the first one at once.
    pub(super) fn describe(&mut self, now_ms: u64, description: Vec<u8>, outbox: &mut Outbox) {
        let was_described = !self.description.is_empty();
        self.description = description.into();
        if self.is_connected && !was_described {
            self.say_here(now_ms, outbox);
        }
    }

    /// Reports how many nodes are there, if that has changed.
    fn report(&mut self, count: usize, outbox: &mut Outbox) {
        if std::mem::replace(&mut self.reported, count) != count {
            outbox.report(JournalReport::Nodes(count));
        }
    }

    pub(super) fn disconnected(&mut self, outbox: &mut Outbox) {
        self.is_connected = false;
        self.open.drain().for_each(|(_, open)| close(open, false, outbox));
        self.report(0, outbox);
    }

    /// The node ends: nobody need wait for it.
    pub(super) fn leave(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if self.is_connected {
            self.say(now_ms, LEAVES.into(), outbox);
        }
    }

    fn say(&mut self, now_ms: u64, what: Arc<[u8]>, outbox: &mut Outbox) {
        self.beat_ms = now_ms + BEAT_MS;
        if self.is_silent {
            return;
        }
        let headers = self.headers();
        let subject = self.presence.to_string();
        outbox.actions.push(JournalAction::Publish {
            subject,
            reply: None,
            headers,
            payload: what,
        });
    }

    /// Says that the node is there, and how it is.
    fn say_here(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let is_described = !self.description.is_empty();
        let what = if is_described { Arc::clone(&self.description) } else { HERE.into() };
        self.say(now_ms, what, outbox);
    }

    fn headers(&self) -> Arc<[u8]> {
        headers_of(&self.own).into()
    }

    /// A node has said that it is there, or that it leaves.
    pub(super) fn heard(&mut self, now_ms: u64, delivery: &ServerMessage<'_>, outbox: &mut Outbox) {
        let Some(node) = sender(delivery.headers).filter(|node| **node != *self.own) else {
            return;
        };
        if delivery.payload == LEAVES {
            if self.known.remove(&*node).is_some() {
                outbox.report(JournalReport::Gone { node: node.clone(), is_in_order: true });
            }
            for open in self.open.values_mut() {
                open.missing.remove(&node);
            }
            return self.report(self.known.len(), outbox);
        }
        if self.known.len() < NODES_MAX || self.known.contains_key(&*node) {
            self.known.insert(node.clone(), now_ms);
            let is_read = delivery.payload.len() <= DESCRIPTION_BYTES_MAX
                && ![HERE, NEW].contains(&delivery.payload);
            let description = if is_read { delivery.payload.to_vec() } else { Vec::new() };
            outbox.report(JournalReport::Heard { node, description });
            self.report(self.known.len(), outbox);
        }
        if delivery.payload == NEW {
            self.say_here(now_ms, outbox);
        }
    }

    /// Asks all other nodes.
    pub(super) fn ask(&mut self, now_ms: u64, ask: Ask, outbox: &mut Outbox) {
        let Ask { token, question, wait_ms, must_reach_all, only } = ask;
        let is_silent = |heard_ms: &u64| now_ms.saturating_sub(*heard_ms) >= SUSPECT_MS;
        // A node that was silent for long may still hear it, if that matters.
        let is_awaited = |heard_ms: &u64| must_reach_all || !is_silent(heard_ms);
        let is_asked = |name: &str| only.as_deref().is_none_or(|only| only == name);
        let known = self.known.iter().filter(|(name, _)| is_asked(name));
        let open = Open {
            token,
            question: question.into(),
            missing: known.map(|(name, heard_ms)| (name.clone(), is_awaited(heard_ms))).collect(),
            answered: BTreeSet::new(),
            answers: Vec::new(),
            deadline_ms: now_ms + wait_ms,
            repeat_ms: must_reach_all.then_some(now_ms + REPEAT_MS),
        };
        if !self.is_connected {
            return close(open, false, outbox);
        }
        let is_alone = self.known.is_empty() && now_ms >= self.settled_ms;
        if is_alone {
            return close(open, true, outbox);
        }
        let place = outbox.token();
        self.send(place, &open.question, outbox);
        self.open.insert(place, open);
    }

    fn send(&self, place: u64, question: &Arc<[u8]>, outbox: &mut Outbox) {
        let content = (self.headers(), Arc::clone(question));
        outbox.ask_again(place, Question::Nodes, self.ask.to_string(), content);
    }

    /// Tells all other nodes something.
    pub(super) fn tell(&self, what: Vec<u8>, outbox: &mut Outbox) {
        let (headers, subject) = (self.headers(), self.ask.to_string());
        if self.is_connected && headers.len() + what.len() <= outbox.payload_bytes_max {
            let payload = what.into();
            let publish = JournalAction::Publish { subject, reply: None, headers, payload };
            outbox.actions.push(publish);
        }
    }

    /// A node has asked. Returns where its answer goes to; empty if it wants none.
    pub(super) fn asked(&self, delivery: &ServerMessage<'_>) -> Option<String> {
        let is_other = sender(delivery.headers).is_some_and(|node| *node != *self.own);
        is_other.then(|| delivery.reply.unwrap_or_default().to_owned())
    }

    /// Answers a question of another node. One that servers do not carry is not sent: the other
    /// node says that an answer is missing.
    pub(super) fn answer(&self, reply: String, answer: Vec<u8>, outbox: &mut Outbox) {
        let headers = self.headers();
        let is_sent = self.is_connected && !reply.is_empty();
        if is_sent && headers.len() + answer.len() <= outbox.payload_bytes_max {
            let payload = answer.into();
            outbox.actions.push(JournalAction::Publish {
                subject: reply,
                reply: None,
                headers,
                payload,
            });
        }
    }

    /// Takes an answer to a question.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        place: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) {
        // With a status it is the server that says: nobody is there yet.
        let node = sender(headers).filter(|_| headers.status().is_none());
        let (Some(open), Some(node)) = (self.open.get_mut(&place), node) else { return };
        open.missing.remove(&node);
        if open.answered.insert(node) {
            open.answers.push(payload.to_vec());
        }
        self.finish(now_ms, place, outbox);
    }

    /// Ends a question if nobody has to be waited for.
    fn finish(&mut self, now_ms: u64, place: u64, outbox: &mut Outbox) {
        let Some(open) = self.open.get(&place) else { return };
        let is_settled = now_ms >= self.settled_ms;
        let is_over = is_settled && !open.missing.values().any(|is_awaited| *is_awaited);
        if !is_over && now_ms < open.deadline_ms {
            return;
        }
        if let Some(open) = self.open.remove(&place) {
            outbox.answered(place);
            close(open, is_settled, outbox);
        }
    }

    /// Returns whether the node has just said that it is there.
    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) -> bool {
        if !self.is_connected {
            return false;
        }
        let is_due = now_ms >= self.beat_ms;
        if is_due {
            self.say_here(now_ms, outbox);
        }
        // It may hold connections and have missed the question: answers without it stay incomplete.
        self.known.retain(|node, heard_ms| {
            let is_there = now_ms.saturating_sub(*heard_ms) < GONE_MS;
            if !is_there {
                outbox.report(JournalReport::Gone { node: node.clone(), is_in_order: false });
            }
            is_there
        });
        self.report(self.known.len(), outbox);
        let places: Vec<u64> = self.open.keys().copied().collect();
        for place in places {
            let due = self.open.get_mut(&place).and_then(|open| {
                let is_due = open.repeat_ms.is_some_and(|repeat_ms| now_ms >= repeat_ms);
                is_due.then(|| {
                    open.repeat_ms = Some(now_ms + REPEAT_MS);
                    Arc::clone(&open.question)
                })
            });
            if let Some(question) = due {
                self.send(place, &question, outbox);
            }
            self.finish(now_ms, place, outbox);
        }
        is_due
    }
}

/// The headers of what a node says, with its name.
pub(crate) fn headers_of(node: &str) -> Vec<u8> {
    HeaderWriter::default().field(NODE, node).finish()
}

fn close(open: Open, could_answer: bool, outbox: &mut Outbox) {
    let Open { token, answers, missing, .. } = open;
    let is_complete = could_answer && missing.is_empty();
    outbox.report(JournalReport::Asked(NodesAnswered { token, answers, is_complete }));
}

fn sender(headers: Headers<'_>) -> Option<Box<str>> {
    headers.get(NODE).filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len())).map(Box::from)
}
