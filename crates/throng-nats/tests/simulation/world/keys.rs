//! Channels that keep a state, and what nodes may say of their keys.

use std::collections::{BTreeMap, BTreeSet};

use throng_core::{
    AskerId, Attributes, Body, KeyQuery, Publication, PublishError, RecordChange, StateLimits,
};
use throng_nats::journal::{
    JournalAction, JournalEvent, LogEdit, LogOutcome, LogRequest, Outcome, ReadState, Reading,
    StateFacts,
};
use throng_nats::protocol::headers::Headers;

use super::logs::AskedLog;
use super::{CHANNELS, STREAM, Tally, World, channel, subject};
use crate::broker::StoredBytes;

/// These of the channels keep a state; the first of them may end.
const KEEP_STATE: [usize; 2] = [1, 4];

const LIMITS: StateLimits = StateLimits { max_keys: 4, max_bytes: 1 << 20, forgets_soon: false };

const KEYS: usize = 6;

pub(super) fn limits(index: usize) -> Option<StateLimits> {
    KEEP_STATE.contains(&index).then_some(LIMITS)
}

/// The body of a message, which no other one has: the server removes keys without any.
pub(super) fn body(sequence: u64, payload: &[u8]) -> String {
    match String::from_utf8_lossy(payload).into_owned() {
        body if body == "null" => format!("null {sequence}"),
        body => body,
    }
}

/// Whether a key had a value, how many there were, how often the channel had changed, and up to
/// where its state was forgotten with a history, which stores no message.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenKey {
    has_value: bool,
    values: usize,
    changes: (usize, usize, u64),
}

/// A change under a condition on a key.
pub(super) struct AskedKey {
    key: String,
    wanted: Option<u64>,
    body: String,
    seen: SeenKey,
}

/// A reading of a log, and then of the state.
#[derive(Debug)]
pub(super) struct AskedState {
    index: usize,
    after: u64,
    era: usize,
    /// A history after the position was erased before.
    is_lost: bool,
    read: Vec<(u64, Link)>,
    found: BTreeSet<u64>,
    is_whole_log: bool,
}

type Link = Option<throng_nats::journal::Link>;

fn number(text: &str, of: u64) -> u64 {
    let place: i64 = text.parse().expect("a place is a number");
    if place < 0 { of - place.unsigned_abs() } else { place.unsigned_abs() }
}

/// The message that a copy is of.
fn copy_of(sequence: u64, stored: &StoredBytes) -> u64 {
    let header = Headers::new(&stored.headers).get("Throng-Copy").expect("it is a copy");
    number(header.split(' ').next().expect("it has a field"), sequence)
}

impl World {
    /// The record of a channel's state, and the values of its keys.
    fn state_of(&self, name: &str) -> (serde_json::Value, u64, BTreeMap<String, u64>) {
        let mut lasts = self.broker.lasts(STREAM, &format!("throng.in.default.k.c.{name}."));
        let Some((sequence, record)) = lasts.remove("%") else { return Default::default() };
        let record: serde_json::Value =
            serde_json::from_slice(&record.payload).expect("it is JSON");
        let base = record["base"].as_u64().expect("it is a number");
        let value = |(sequence, stored): (u64, StoredBytes)| {
            let (key, is_tombstone) = stored.key().expect("it has a key");
            let of = copy_of(sequence, &stored);
            (!is_tombstone && of > base).then_some((key, of))
        };
        let values = lasts.into_values().filter_map(value).collect();
        (record, sequence, values)
    }

    fn values(&self, index: usize) -> BTreeMap<String, u64> {
        self.state_of(subject(index).strip_prefix("throng.in.default.c.").expect("it does")).2
    }

    /// The record of a state was stored: it says what there is.
    pub(super) fn check_state(&mut self, name: &str) {
        self.tally.states += 1;
        let subject = format!("throng.in.default.c.{name}");
        let (record, sequence, values) = self.state_of(name);
        let base = record["base"].as_u64().expect("it is a number");
        self.oracle.forgets(&subject, base);
        let is_asked = self.histories.iter().any(|index| super::subject(*index) == subject);
        let forgotten = self.oracle.newest(self.oracle.era(), &subject, (0, base));
        assert!(is_asked || forgotten.is_empty(), "{subject}: {record} forgets {forgotten:?}");
        let newest = self.oracle.newest(self.oracle.era(), &subject, (base, u64::MAX - 1));
        let expected = newest.into_iter().filter(|(_, (_, is_removed))| !is_removed);
        let expected: BTreeMap<_, _> = expected.map(|(key, (of, _))| (key, of)).collect();
        assert_eq!(values, expected, "{subject}: {record}");
        assert_eq!(record["keys"], values.len(), "{subject}: {record}");
        assert!(values.len() <= LIMITS.max_keys, "{subject}: {values:?}");
        let written = record["renews"].as_u64().filter(|it| *it > 0).unwrap_or(sequence);
        let place = |name: &str| number(&record[name].to_string(), written);
        let (head, plain) = self.oracle.lasts(&subject);
        assert!(place("head") >= head, "{subject}: {record}, not {head}");
        assert!(place("plain") >= plain, "{subject}: {record}, not {plain}");
    }

    /// Of a message to a channel with a state: mostly it has a key.
    pub(super) fn key_of(&mut self, index: usize) -> Option<Attributes> {
        if limits(index).is_none() || self.random.percent(40) {
            return None;
        }
        let key = format!("k.{}", self.random.below(KEYS));
        Some(attributes(&key, self.random.percent(30)))
    }

    pub(super) fn seen_key(&self, index: usize, key: &str) -> SeenKey {
        let values = self.values(index);
        let (era, subject) = (self.oracle.era(), subject(index));
        let stored = self.oracle.stored_after(era, &subject, 0);
        let changes = (era, stored, self.oracle.base(&subject));
        SeenKey { has_value: values.contains_key(key), values: values.len(), changes }
    }

    pub(super) fn refused_by_state(
        &mut self,
        index: usize,
        (key, seen): (String, SeenKey),
        error: PublishError,
    ) {
        let is_same = self.seen_key(index, &key).changes == seen.changes;
        match error {
            PublishError::NoKey => {
                self.tally.without_key += 1;
                assert!(!(is_same && seen.has_value), "{key} of {index} is there");
            }
            PublishError::StateFull => {
                self.tally.full_states += 1;
                let has_room = seen.has_value || seen.values < LIMITS.max_keys;
                assert!(!(is_same && has_room), "{index} has room for {key}");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sets or removes a key under a condition on it.
    pub(super) fn change_key(&mut self, node: usize) {
        let index = KEEP_STATE[self.random.below(KEEP_STATE.len())];
        let key = format!("k.{}", self.random.below(KEYS));
        let wanted = match self.random.below(10) {
            0..7 => self.values(index).get(&key).copied(),
            7 => Some(self.random.below(60) as u64),
            _ => None,
        };
        let body = format!("change {}", self.next_token);
        let is_removed = wanted.is_some() && self.random.percent(30);
        let message = Publication {
            attributes: Some(attributes(&key, is_removed)),
            ..Publication::new(channel(index), Body::Text(body.clone().into()))
        };
        let seen = self.seen_key(index, &key);
        let asked = AskedLog::Key(AskedKey { key: key.clone(), wanted, body, seen });
        let edit = LogEdit {
            head: None,
            record_version: None,
            key: Some((key.into(), wanted)),
            messages: vec![message],
            record: RecordChange::Keep,
            may_end: super::ends::may_end(index),
        };
        self.ask_log(node, index, asked, LogRequest::Change(Box::new(edit)));
    }

    pub(super) fn key_changed(&mut self, index: usize, asked: AskedKey, outcome: LogOutcome) {
        let AskedKey { key, wanted, body, seen } = asked;
        let subject = subject(index);
        match outcome {
            LogOutcome::Changed { first, .. } => {
                self.oracle.acknowledged(&subject, first, &body, false);
                let (era, ..) = self.oracle.acknowledged[&body];
                let before = self.oracle.newest(era, &subject, (0, first - 1));
                let before = before.get(&key).filter(|(_, is_removed)| !is_removed);
                let before = before.map(|(sequence, _)| *sequence);
                let is_it = before == wanted;
                let may_be_erased = wanted.is_none() && self.histories.contains(&index);
                assert!(is_it || may_be_erased, "{key}: {before:?} before {first}, not {wanted:?}");
            }
            LogOutcome::KeyConflict(newest) => {
                self.tally.key_conflicts += 1;
                assert_ne!(newest, wanted);
                self.oracle.refused.insert(body);
            }
            LogOutcome::Failed(Outcome::State(error)) => {
                self.refused_by_state(index, (key, seen), error);
                self.oracle.refused.insert(body);
            }
            LogOutcome::Failed(Outcome::Unknown) => self.tally.unknown += 1,
            LogOutcome::Failed(Outcome::Away | Outcome::Busy | Outcome::Ended) => {
                self.tally.away += 1;
                self.oracle.refused.insert(body);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Resumes in a channel with a state, or begins with all of it.
    pub(super) fn read_state(&mut self, node: usize) {
        let index = KEEP_STATE[self.random.below(KEEP_STATE.len())];
        let position = self.nodes[node].followed.get(&index).copied().flatten();
        let (last, _) = self.oracle.lasts(&subject(index));
        let after = match position {
            Some(position) if self.random.percent(30) => position.sequence,
            _ if self.random.percent(20) => 0,
            _ => last.saturating_sub(self.random.below(60) as u64),
        };
        self.resume(node, index, after);
    }

    fn resume(&mut self, node: usize, index: usize, after: u64) {
        self.next_token += 1;
        let (token, era) = (self.next_token, self.nodes[node].era);
        let is_lost = self.oracle.has_lost(era, &subject(index), after);
        let (read, found) = (Vec::new(), BTreeSet::new());
        let asked = AskedState { index, after, era, is_lost, read, found, is_whole_log: true };
        self.nodes[node].state_reads.insert(token, asked);
        self.read_log_after(node, token, (index, after));
    }

    fn read_log_after(&mut self, node: usize, token: u64, (index, after): (usize, u64)) {
        let (channel, at_least) = (channel(index), after);
        let read = JournalEvent::Read { token, channel, after, at_least, wants_end: false };
        self.step(node, read);
    }

    /// A part of a log was read, before the state is.
    pub(super) fn log_was_read(&mut self, node: usize, token: u64, reading: Option<Reading>) {
        let asked = self.nodes[node].state_reads.get_mut(&token).expect("it was asked");
        let Some(reading) = reading else {
            self.nodes[node].state_reads.remove(&token);
            return;
        };
        if !reading.is_whole && !asked.read.is_empty() {
            asked.read.clear();
            asked.found.clear();
        }
        asked.is_whole_log &= reading.is_whole;
        asked.read.extend(reading.messages.iter().map(|stored| (stored.sequence, stored.link)));
        asked.found.extend(reading.messages.iter().map(|stored| stored.sequence));
        let index = asked.index;
        let last = asked.read.last().map_or(asked.after, |(sequence, _)| *sequence);
        if reading.left > 0 {
            return self.read_log_after(node, token, (index, last));
        }
        let linked = asked.read.iter().rev().find(|(_, link)| link.is_some());
        let at_least = linked.map_or(0, |(sequence, _)| *sequence);
        let read = ReadState {
            token,
            channel: channel(index),
            page: None,
            at_least,
            wants_bounds: true,
            is_of_expiring: false,
        };
        self.step(node, JournalEvent::ReadState(read));
    }

    pub(super) fn state_was_read(&mut self, node: usize, token: u64, facts: Option<StateFacts>) {
        if let Some((_, page)) = self.page.as_mut().filter(|(of, _)| *of == token) {
            *page = facts;
            return;
        }
        let asked = self.nodes[node].state_reads.remove(&token);
        let AskedState { index, after, era, is_lost, read, mut found, is_whole_log } =
            asked.expect("it was asked once");
        let Some(facts) = facts else { return };
        // Where nothing was read of the log, nothing without a key may have come since.
        let head = if facts.plain <= after { facts.head } else { 0 };
        let up_to = read.last().map_or(head, |(sequence, _)| *sequence).max(after);
        found.extend(facts.messages.iter().map(|stored| stored.sequence));
        let of = (era, &*subject(index));
        let is_whole = facts.is_whole(after, &read, is_whole_log);
        assert!(!(is_lost && is_whole), "a history after {after} was erased");
        self.oracle.has_keys(of.0, of.1, (0, up_to), &{
            let log = self.oracle.eras[era].subjects.get(of.1);
            let before = log.into_iter().flatten().map(|(sequence, _)| *sequence);
            // What a client has that resumes: all that was superseded or removed since has a copy.
            let before = before.filter(|it| *it <= after && after > 0);
            found.iter().copied().chain(before).collect()
        });
        if !is_whole {
            self.tally.unrecovered += 1;
            return;
        }
        self.tally.recovered += 1;
        self.tally.recovered_by_keys += usize::from(!is_whole_log);
        self.oracle.is_recovered(of.0, of.1, (after, up_to), &found);
    }

    /// Publishes to a channel with a state, and waits.
    fn set(&mut self, index: usize, key: Option<&str>) -> u64 {
        self.next_token += 1;
        let (token, body) = (self.next_token, format!("{}", self.next_token));
        let publication = Publication {
            attributes: key.map(|key| attributes(key, false)),
            ..Publication::new(channel(index), Body::Text(body.into()))
        };
        self.publish_as(0, token, (index, AskerId::SERVER), publication);
        self.settle(3);
        self.oracle.lasts(&subject(index)).0
    }

    fn resumes(&mut self, index: usize, after: u64) -> bool {
        let before = self.tally.recovered;
        self.resume(1, index, after);
        self.settle(60);
        self.tally.recovered > before
    }

    /// States whose messages are dropped: those with keys are no gap, and others are.
    pub(crate) fn drop_messages(mut self) -> Tally {
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        let index = KEEP_STATE[1];
        assert!(CHANNELS > index);
        let max = self.stream.retention.max_messages;
        let keys = ["a", "b", "c", "d"];
        let before = self.set(index, None);
        for turn in 0..4 * max {
            self.set(index, Some(keys[turn % keys.len()]));
        }
        assert!(self.resumes(index, before), "only superseded messages were dropped");
        let plain = self.set(index, None);
        let between = self.set(index, Some("a"));
        for turn in 0..4 * max {
            self.set(index, Some(keys[turn % keys.len()]));
        }
        assert!(!self.resumes(index, before), "one without a key was dropped");
        assert!(self.resumes(index, plain) && self.resumes(index, between));
        // An erased one hides none that is dropped, and is none itself.
        let first = self.set(index, None);
        let second = self.set(index, None);
        self.ask_log(0, index, AskedLog::Erase(Some(second)), LogRequest::EraseMessage(second));
        self.settle(10);
        for turn in 0..4 * max {
            self.set(index, Some(keys[turn % keys.len()]));
        }
        assert!(!self.resumes(index, between), "the first one was dropped");
        assert!(self.resumes(index, first), "the second one was erased");
        self.tally
    }

    /// A page of a state: its keys, and where the next one goes on.
    fn page(&mut self, index: usize, query: KeyQuery) -> (Vec<String>, Option<String>) {
        self.next_token += 1;
        let token = self.next_token;
        self.page = Some((token, None));
        let read = ReadState {
            token,
            channel: channel(index),
            page: Some(query),
            at_least: 0,
            wants_bounds: false,
            is_of_expiring: false,
        };
        self.step(1, JournalEvent::ReadState(read));
        self.settle(60);
        let (_, facts) = self.page.take().expect("it was asked for");
        let facts = facts.expect("it is read");
        let mut keys: Vec<_> = facts.messages.iter().filter_map(|it| it.key()).collect();
        keys.sort_unstable();
        (keys.into_iter().map(str::to_owned).collect(), facts.next.map(String::from))
    }

    /// Pages of a state, some of whose keys are removed.
    pub(crate) fn read_pages(mut self) -> Tally {
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        let index = KEEP_STATE[1];
        let query = |prefix: &str, after: Option<&str>, limit| KeyQuery {
            prefix: prefix.into(),
            after: after.map(Box::from),
            limit,
            is_of_one: false,
        };
        assert_eq!(self.page(index, query("", None, 2)), (vec![], None), "there is none");
        for key in ["a.1", "a*2", "b %", "a>3"] {
            self.set(index, Some(key));
        }
        self.set(index, None);
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let first = (keys(&["a*2", "a.1"]), Some("a.1".to_owned()));
        assert_eq!(self.page(index, query("", None, 2)), first);
        assert_eq!(self.page(index, query("", Some("a.1"), 2)), (keys(&["a>3", "b %"]), None));
        assert_eq!(self.page(index, query("b", None, 9)), (keys(&["b %"]), None));
        self.next_token += 1;
        let body = Body::Text(self.next_token.to_string().into());
        let attributes = Some(attributes("a.1", true));
        let publication = Publication { attributes, ..Publication::new(channel(index), body) };
        self.publish_as(0, self.next_token, (index, AskerId::SERVER), publication);
        self.settle(3);
        let all = (keys(&["a*2", "a>3"]), Some("a>3".to_owned()));
        assert_eq!(self.page(index, query("a", None, 2)).0, all.0);
        assert_eq!(self.page(index, query("", None, 2)), all);
        self.tally
    }

    /// Reads a state in parts, of which the second comes from a replica that has not stored the
    /// copy yet whose renewal the one of the first part has.
    pub(crate) fn renew_between_parts(mut self) -> Tally {
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        let index = KEEP_STATE[1];
        self.set(index, Some("a"));
        // Only this copy is old then.
        self.settle(300);
        for key in ["b", "c"] {
            self.set(index, Some(key));
        }
        for _ in 0..self.stream.retention.max_messages {
            self.set(index, Some("d"));
        }
        let name = subject(index).replace(".c.", ".k.c.");
        let copy = |world: &World| world.broker.lasts(STREAM, &name)[".a"].0;
        let before = copy(&self);
        while copy(&self) == before {
            self.settle(1);
        }
        self.resume(1, index, 0);
        let is_next = |action: &JournalAction| match action {
            JournalAction::Publish { subject, payload, .. } => {
                let asked: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
                let wanted = asked["next_by_subj"].as_str().unwrap_or_default();
                let is_part = subject.contains(".DIRECT.GET.") && wanted.starts_with(&name);
                is_part && asked["seq"].as_u64() > Some(1)
            }
            _ => false,
        };
        self.go_on_alone(1, is_next);
        assert!(self.nodes[1].to_broker.iter().any(is_next), "the second part is asked for");
        self.broker.lag = self.broker.reached(STREAM) + 1 - copy(&self);
        self.go_on_alone(1, |_| false);
        self.tally
    }

    /// A node erases a message, or the history, in the state of a channel, and is gone before it
    /// erases anything else.
    fn erase_in_state(&mut self, index: usize, message: Option<u64>) {
        let history = LogRequest::EraseHistory { with_record: false, up_to: None };
        let request = message.map_or(history, LogRequest::EraseMessage);
        match message {
            Some(message) => self.oracle.marks(message),
            None => drop(self.histories.insert(index)),
        }
        self.ask_log(1, index, AskedLog::Erase(message), request);
        let erases = |action: &JournalAction| match action {
            JournalAction::Publish { subject, .. } => {
                [".MSG.DELETE.", ".PURGE."].iter().any(|what| subject.contains(what))
            }
            _ => false,
        };
        self.go_on_alone(1, erases);
        assert!(self.nodes[1].to_broker.iter().any(erases), "the state is changed");
        self.disconnect(1);
    }

    /// Erasures that are half done, and what they leave expires.
    pub(crate) fn erase_in_states(mut self) -> Tally {
        (0..self.nodes.len()).for_each(|node| self.connect(node));
        self.settle(100);
        let index = KEEP_STATE[1];
        let value = self.set(index, Some("a"));
        self.erase_in_state(index, Some(value));
        self.broker.expire(STREAM, 0);
        let value = self.set(index, Some("a"));
        self.connect(1);
        self.settle(100);
        // Another node wants to remove what is forgotten just then.
        self.next_token += 1;
        let (token, body) = (self.next_token, self.next_token.to_string());
        let removal = Publication {
            attributes: Some(attributes("a", true)),
            ..Publication::new(channel(index), Body::Text(body.into()))
        };
        self.publish_as(0, token, (index, AskerId::SERVER), removal);
        self.erase_in_state(index, None);
        self.settle(3);
        self.broker.expire(STREAM, 0);
        self.resume(0, index, value - 1);
        self.settle(60);
        self.tally
    }
}

fn attributes(key: &str, is_removed: bool) -> Attributes {
    let values: [(u16, &[u8]); 2] = [(4, key.as_bytes()), (5, b"")];
    Attributes::of(&values[..1 + usize::from(is_removed)]).expect("they are in order")
}
