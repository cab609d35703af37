//! Changes of logs and erasure, and their outcomes.

use throng_core::{AskerId, Body, LogRecord, Publication, RecordChange};
use throng_nats::journal::{
    JournalAction, JournalEvent, LogEdit, LogFacts, LogOutcome, LogRequest, Outcome,
};

use super::ends::{SeenEnd, may_end};
use super::keys::{self, AskedKey};
use super::{CHANNELS, Tally, World, channel, subject};

/// A request about a channel's log that has no outcome yet.
pub(super) enum AskedLog {
    /// The conditions, and the bodies.
    Change {
        head: Option<u64>,
        version: Option<u64>,
        bodies: Vec<String>,
        /// Whether the channel had ended before.
        seen: SeenEnd,
    },
    State,
    /// A message under a condition on its key.
    Key(AskedKey),
    /// A message, or the history.
    Erase(Option<u64>),
}

fn version(facts: &LogFacts) -> u64 {
    facts.record.as_ref().map_or(0, |known| known.version)
}

impl World {
    pub(super) fn ask_log(
        &mut self,
        node: usize,
        index: usize,
        asked: AskedLog,
        request: LogRequest,
    ) {
        self.next_token += 1;
        let (token, channel, state) = (self.next_token, channel(index), keys::limits(index));
        self.nodes[node].logs.insert(token, (index, asked));
        self.step(node, JournalEvent::Log { token, channel, request, state });
    }

    /// Changes a log, mostly under the condition that it is as the node has seen it last.
    pub(super) fn change_log(&mut self, node: usize) {
        let index = self.random.below(CHANNELS);
        let count = self.random.below(4);
        let bodies: Vec<_> =
            (0..count).map(|at| format!("change {} {at}", self.next_token)).collect();
        let seen = self.nodes[node].facts.get(&index);
        let (head, seen_version) = (seen.map(|facts| facts.head), seen.map(version));
        let head = head.filter(|_| self.random.percent(50));
        let version = seen_version.filter(|_| self.random.percent(50));
        let text = self.next_token.to_string();
        let record = match self.random.below(4) {
            0 | 1 => RecordChange::Keep,
            2 => RecordChange::Remove,
            _ => RecordChange::Write(LogRecord::of(&[(1, text.as_bytes())]).expect("it is short")),
        };
        let text =
            |body: &String| Publication::new(channel(index), Body::Text(body.clone().into()));
        let messages = bodies.iter().map(text).collect();
        let may_end = may_end(index);
        let edit = LogEdit { head, record_version: version, key: None, messages, record, may_end };
        self.make_change(node, index, edit);
    }

    pub(super) fn make_change(&mut self, node: usize, index: usize, edit: LogEdit) {
        let text = |message: &Publication| match &message.body {
            Body::Text(text) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let bodies: Vec<_> = edit.messages.iter().map(text).collect();
        for asker in 1..4 {
            // It comes between the publications of all.
            let order = self.nodes[node].order.entry((index, AskerId::of_connection(asker)));
            order.or_default().extend(bodies.iter().cloned());
        }
        self.changes.push((index, bodies.clone()));
        let (head, version, seen) = (edit.head, edit.record_version, self.seen_end(index));
        let asked = AskedLog::Change { head, version, bodies, seen };
        self.ask_log(node, index, asked, LogRequest::Change(Box::new(edit)));
    }

    pub(super) fn read_log(&mut self, node: usize) {
        let index = self.random.below(CHANNELS);
        self.read_log_of(node, index);
    }

    pub(super) fn read_log_of(&mut self, node: usize, index: usize) {
        self.ask_log(node, index, AskedLog::State, LogRequest::State);
    }

    /// Erases a message that was stored, or none, or all of them.
    pub(super) fn erase(&mut self, node: usize) {
        let index = self.random.below(CHANNELS);
        if self.random.percent(10) {
            let with_record = self.random.percent(50);
            self.histories.insert(index);
            let request = LogRequest::EraseHistory { with_record, up_to: None };
            return self.ask_log(node, index, AskedLog::Erase(None), request);
        }
        let kept: Vec<u64> = self.broker.kept(super::STREAM, &subject(index)).into_iter().collect();
        let sequence = match kept.len() {
            0 => self.random.below(60) as u64 + 1,
            count => kept[self.random.below(count)],
        };
        self.oracle.marks(sequence);
        let request = LogRequest::EraseMessage(sequence);
        self.ask_log(node, index, AskedLog::Erase(Some(sequence)), request);
    }

    /// Time passes for one node alone, until it is quiet or has `waits` for something.
    pub(super) fn go_on_alone(&mut self, node: usize, waits: impl Fn(&JournalAction) -> bool) {
        for _ in 0..20 {
            self.tick(node);
            while !self.nodes[node].to_broker.is_empty() {
                if self.nodes[node].to_broker.iter().any(&waits) {
                    return;
                }
                self.carry_up(node);
                while !self.nodes[node].answers.is_empty() {
                    self.carry_down(node);
                }
            }
        }
    }

    /// Changes an empty log under the condition on its head, while a message comes between the
    /// question for the head and the change, and is erased.
    pub(crate) fn erase_behind_a_head(mut self) -> Tally {
        const INDEX: usize = 2;
        let erase = |world: &mut World| {
            world.histories.insert(INDEX);
            let request = LogRequest::EraseHistory { with_record: false, up_to: None };
            world.ask_log(1, INDEX, AskedLog::Erase(None), request);
        };
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        self.publish_to(1, INDEX, AskerId::SERVER);
        self.settle(3);
        erase(&mut self);
        self.settle(30);
        self.ask_log(0, INDEX, AskedLog::State, LogRequest::State);
        self.settle(30);
        let head = Some(self.nodes[0].facts[&INDEX].head);
        let message = Publication::new(channel(INDEX), Body::Text("change".into()));
        let (record_version, record) = (None, RecordChange::Keep);
        let messages = vec![message];
        let edit = LogEdit { head, record_version, key: None, messages, record, may_end: false };
        self.make_change(0, INDEX, edit);
        let is_change = |action: &JournalAction| match action {
            JournalAction::Publish { subject: to, .. } => *to == subject(INDEX),
            _ => false,
        };
        self.go_on_alone(0, is_change);
        assert!(self.nodes[0].to_broker.iter().any(is_change), "it is about to be sent");
        self.publish_to(1, INDEX, AskerId::SERVER);
        self.go_on_alone(1, |_| false);
        erase(&mut self);
        self.go_on_alone(1, |_| false);
        assert_eq!(self.broker.kept(super::STREAM, &subject(INDEX)).len(), 0, "it is erased");
        self.settle(100);
        self.tally
    }

    /// Changes logs whose messages have just expired, so that no node has noticed: first under the
    /// condition of the head before them, then of the one that the conflict tells.
    pub(crate) fn change_emptied_logs(mut self, rounds: usize) -> Tally {
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        for round in 0..rounds {
            let index = round % CHANNELS;
            self.ask_log(0, index, AskedLog::State, LogRequest::State);
            // Each round begins at another time since the node has looked at the stream.
            self.settle(5 + round);
            self.publish_to(1, index, AskerId::SERVER);
            self.settle(3);
            self.broker.expire(super::STREAM, 0);
            for _ in 0..2 {
                let head = Some(self.nodes[0].facts[&index].head);
                let body = format!("change {}", self.next_token);
                let message = Publication::new(channel(index), Body::Text(body.clone().into()));
                let (bodies, seen) = (vec![body], self.seen_end(index));
                let asked = AskedLog::Change { head, version: None, bodies, seen };
                let (messages, record) = (vec![message], RecordChange::Keep);
                let may_end = may_end(index);
                let edit =
                    LogEdit { head, record_version: None, key: None, messages, record, may_end };
                self.ask_log(0, index, asked, LogRequest::Change(Box::new(edit)));
                self.settle(3);
            }
            self.broker.expire(super::STREAM, 0);
        }
        self.tally
    }

    pub(super) fn log_answered(&mut self, node: usize, token: u64, outcome: LogOutcome) {
        let (index, asked) = self.nodes[node].logs.remove(&token).expect("it was asked once");
        let subject = subject(index);
        match (outcome, asked) {
            (
                LogOutcome::Changed { first, record },
                AskedLog::Change { head, version, bodies, seen },
            ) => {
                self.tally.changed_logs += 1;
                assert!(bodies.is_empty() || self.was_open(index, seen), "{subject} has ended");
                for (sequence, body) in (first..).zip(&bodies) {
                    self.oracle.acknowledged(&subject, sequence, body, false);
                }
                if let (Some(head), false) = (head, bodies.is_empty()) {
                    self.oracle.follows(&subject, head, &bodies[0]);
                }
                if let Some(version) = version.filter(|version| ![0, record].contains(version)) {
                    let is_first = self.replaced.insert((index, version));
                    assert!(is_first, "record {version} of {subject} was replaced twice");
                }
            }
            (
                LogOutcome::Conflict(facts),
                AskedLog::Change { head, version: wanted, bodies, .. },
            ) => {
                self.tally.conflicts += 1;
                let is_head = head.is_none_or(|head| head == facts.head);
                let is_version = wanted.is_none_or(|wanted| wanted == version(&facts));
                assert!(!(is_head && is_version), "{facts:?} is as wanted");
                self.oracle.refused.extend(bodies);
                self.nodes[node].facts.insert(index, facts);
            }
            (outcome, AskedLog::Key(asked)) => self.key_changed(index, asked, outcome),
            (LogOutcome::State(facts), AskedLog::State) => {
                self.nodes[node].facts.insert(index, facts);
            }
            (LogOutcome::Erased(None), AskedLog::Erase(what)) => {
                self.tally.erased += 1;
                self.oracle.hides(self.nodes[node].era, &subject, what);
            }
            (LogOutcome::Erased(Some(0)), AskedLog::Erase(Some(_))) => {}
            (LogOutcome::Failed(Outcome::Ended), AskedLog::Change { bodies, seen, .. }) => {
                assert!(self.was_ended(index, seen), "{subject} has not ended");
                self.tally.ended += 1;
                self.oracle.refused.extend(bodies);
            }
            (LogOutcome::Failed(Outcome::Unknown), _) => self.tally.unknown += 1,
            (LogOutcome::Failed(Outcome::Away | Outcome::Busy), asked) => {
                self.tally.away += 1;
                if let AskedLog::Change { bodies, .. } = asked {
                    self.oracle.refused.extend(bodies);
                }
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Of each change all messages are stored, next to each other, or none.
    pub(super) fn finish_changes(&self) {
        for (index, bodies) in &self.changes {
            self.oracle.is_all_or_none(&subject(*index), bodies);
        }
    }
}
