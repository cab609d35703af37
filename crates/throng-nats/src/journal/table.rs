//! A table that this node has whole, and what it writes there.
//!
//! A table is a stream of entries. The node reads it from its last position: when it connects,
//! when the servers republish a new entry, when an own one was stored, and once a second, in case
//! that what was republished is lost. Entries are only taken from what is read. So every node takes
//! the same ones in the same order, its own included.
//!
//! # Invariants
//!
//! * Each [`JournalEvent::Change`](super::JournalEvent::Change) gets exactly one
//!   [`JournalReport::Changed`]; with [`Changed::Stored`] after its entry was reported, and with
//!   [`Changed::Conflict`] after the entry was that is in its way.
//! * [`JournalReport::Current`] comes after all entries that there were at its time.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outbox::{JournalAction, Outbox, Question, TABLE_SID};
use super::report::{Changed, JournalReport, TableId};
use super::watch::{NO_JETSTREAM, NO_LEADER, PATIENCE_MS};
use crate::api::NatsLimit;
use crate::api::ack::{self, Ack};
use crate::api::get::{self, Chain, Part};
use crate::api::table::{self, StoredEntry, TableEntry, TableKind, TableNames, TableSettings};
use crate::api::{JetStreamError, StreamSettings, stream};
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::Headers;
use looks::Looks;

mod looks;
#[cfg(test)]
mod tests;

/// How often the table is compared with what was read of it.
const POLL_MS: u64 = 1_000;

/// After this time without an answer a request is made again.
const ANSWER_MS: u64 = 2_000;

/// After a failure that may pass, or an answer of a replica that lags.
const RETRY_MS: u64 = 100;

/// A table that cannot be used is tried again after this time.
const REFUSED_MS: u64 = 4_000;

/// After this time without a later entry, those that several servers lack were removed: all of them
/// would have to lag so far.
const REMOVED_MS: u64 = 5_000;

/// In place of a sequence that has to be asked for.
const UNKNOWN: u64 = u64::MAX;

/// How long a change may take until its outcome is unknown.
const CHANGE_MS: u64 = 4_000;

/// Changes under way, at most.
const CHANGES_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Find,
    Make,
    Read,
}

struct Change {
    token: u64,
    subject: String,
    sent_ms: u64,
    /// The awaited outcome, once it is stored or refused for another entry.
    awaited: Option<Awaited>,
}

/// An entry that has to be reported before a change is answered.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Own(u64),
    /// Another one of its key, which it does not replace.
    Other(u64),
}

pub(super) struct JournalTable {
    id: TableId,
    names: TableNames,
    wanted: Value,
    has_replicas: bool,
    step: Step,
    /// Under which the answer to the step comes.
    token: u64,
    /// Where the question of the step went to.
    asked: String,
    asked_ms: u64,
    /// When to begin anew.
    next_ms: u64,
    is_connected: bool,
    is_found: bool,
    /// True if all of it was read once.
    is_known: bool,
    /// Which incarnation it is, as the server writes it.
    created: String,
    /// Up to here all entries are reported.
    position: u64,
    /// Up to here there are entries for certain.
    target: u64,
    /// The target when the servers were asked.
    floor: u64,
    /// Entries up to here may have replaced ones that were passed over. So nothing is told of those
    /// before the position is here.
    whole_at: u64,
    /// When the servers were asked how far the table is.
    found_ms: u64,
    /// True if the servers were asked since it was current.
    is_compared: bool,
    /// True if somebody waits for the servers to be asked.
    is_awaited: bool,
    /// Since when a whole answer has not reached the target; `None` if it has.
    short_since_ms: Option<u64>,
    /// How long failures have gone on that may pass, as the watch of the stream counts it.
    waited_ms: u64,
    entries: Vec<StoredEntry>,
    chain: Chain,
    /// True if it is read when somebody needs it, and not before.
    is_on_demand: bool,
    /// Entries that are read, if it is.
    looks: Looks,
    changes: BTreeMap<u64, Change>,
    said: Option<String>,
}

impl JournalTable {
    pub(super) fn new(stream: &StreamSettings, table: &TableSettings, id: TableId) -> JournalTable {
        let names = TableNames::new(&stream.prefix, &table.name);
        JournalTable {
            id,
            wanted: table::config(&names, table, (stream.replicas, stream.is_in_memory)),
            names,
            has_replicas: stream.replicas > 1,
            step: Step::Idle,
            token: 0,
            asked: String::new(),
            asked_ms: 0,
            next_ms: u64::MAX,
            is_connected: false,
            is_found: false,
            is_known: false,
            created: String::new(),
            position: 0,
            target: 0,
            floor: 0,
            whole_at: 0,
            found_ms: 0,
            is_compared: false,
            is_awaited: false,
            short_since_ms: None,
            waited_ms: 0,
            entries: Vec::new(),
            chain: Chain::default(),
            is_on_demand: table.kind == TableKind::OnDemand,
            looks: Looks::new(id),
            changes: BTreeMap::new(),
            said: None,
        }
    }

    /// True if all of it was read once that is to be read before it is used.
    pub(super) fn is_known(&self) -> bool {
        self.is_known || self.is_on_demand
    }

    fn sid(&self) -> u64 {
        TABLE_SID + self.id.0 as u64
    }

    /// True if what is republished of it comes to this subscription.
    pub(super) fn hears(&self, sid: u64) -> bool {
        sid == self.sid()
    }

    /// Has what is republished of it come, before anything is asked.
    pub(super) fn subscribe(&self, outbox: &mut Outbox) {
        if !self.is_on_demand {
            let (subject, sid) = (format!("{}>", self.names.live), self.sid());
            outbox.actions.push(JournalAction::Subscribe { subject, sid });
        }
    }

    pub(super) fn connected(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.is_connected = true;
        self.ask(now_ms, Step::Find, outbox);
    }

    pub(super) fn disconnected(&mut self, outbox: &mut Outbox) {
        (self.is_connected, self.is_found) = (false, false);
        (self.step, self.next_ms, self.said) = (Step::Idle, u64::MAX, None);
        (self.short_since_ms, self.waited_ms) = (None, 0);
        for change in std::mem::take(&mut self.changes).into_values() {
            report(&change, Changed::Unknown, outbox);
        }
        self.looks.disconnected(outbox);
    }

    fn ask(&mut self, now_ms: u64, step: Step, outbox: &mut Outbox) {
        let stream = &self.names.stream;
        let (subject, payload) = match step {
            Step::Idle => return,
            Step::Find => (format!("$JS.API.STREAM.INFO.{stream}"), Vec::new()),
            Step::Make => {
                (format!("$JS.API.STREAM.CREATE.{stream}"), self.wanted.to_string().into_bytes())
            }
            Step::Read => {
                let subjects = format!("{}>", self.names.keys);
                let request = get::batch(&subjects, self.position + 1);
                (format!("$JS.API.DIRECT.GET.{stream}"), request)
            }
        };
        self.entries.clear();
        self.chain = Chain::default();
        self.floor = self.target;
        self.is_awaited &= step != Step::Find;
        (self.step, self.asked_ms) = (step, now_ms);
        // Answers to the question before are too late.
        outbox.answered(self.token);
        self.token = outbox.token();
        self.asked.clone_from(&subject);
        let question = Question::Table(self.id);
        outbox.ask_again(self.token, question, subject, ([].into(), payload.into()));
    }

    /// Nothing more is asked before this time.
    fn rest(&mut self, until_ms: u64) {
        (self.step, self.next_ms) = (Step::Idle, until_ms);
    }

    /// The servers have republished an entry.
    pub(super) fn hint(&mut self, now_ms: u64, delivery: &ServerMessage<'_>, outbox: &mut Outbox) {
        if let Some(sequence) = delivery.headers.number("Nats-Sequence") {
            self.reach(now_ms, sequence, outbox);
        }
    }

    /// There is an entry with this sequence.
    fn reach(&mut self, now_ms: u64, sequence: u64, outbox: &mut Outbox) {
        self.target = self.target.max(sequence);
        if self.is_found && self.step == Step::Idle && self.target > self.position {
            self.ask(now_ms, Step::Read, outbox);
        }
    }

    /// Takes a part of an answer. Returns whether all of the table was read for the first time.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        token: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) -> bool {
        if token != self.token {
            return false;
        }
        match self.step {
            Step::Idle => {}
            Step::Find | Step::Make if headers.status().is_some() => {
                self.rest(now_ms + RETRY_MS);
                self.fails(RETRY_MS, NO_JETSTREAM, outbox);
            }
            Step::Find | Step::Make => match table::parse(payload, &self.wanted) {
                Ok(info) if info.differences.is_empty() => self.found(now_ms, info, outbox),
                Ok(info) => self.differs(now_ms, &info, outbox),
                Err(error) if error.err_code == JetStreamError::STREAM_NOT_FOUND => {
                    self.ask(now_ms, Step::Make, outbox);
                }
                Err(error) if error.is_passing() => {
                    self.rest(now_ms + RETRY_MS);
                    self.fails(RETRY_MS, NO_LEADER, outbox);
                }
                Err(error) => {
                    let name = &self.names.stream;
                    let doing = if self.step == Step::Make { "create" } else { "read" };
                    let (said, limit) = (error.advised(), NatsLimit::of(&error));
                    let reason =
                        format!("NATS does not let this node {doing} the bucket {name}: {said}");
                    self.refuse(now_ms, (reason, limit), outbox);
                }
            },
            Step::Read => return self.read(now_ms, (headers, payload), outbox),
        }
        // An empty table is known once it is found.
        self.becomes_current(outbox)
    }

    fn differs(&mut self, now_ms: u64, info: &stream::StreamInfo, outbox: &mut Outbox) {
        let (name, list) = (&self.names.stream, info.differences.join("; "));
        let reason = format!(
            "the bucket {name} differs from the settings, and is never changed: {list}. Change the \
             settings, or edit it with the tools of NATS"
        );
        self.refuse(now_ms, (reason, None), outbox);
    }

    /// A failure that may pass took this time. As long as the table is not known, nobody else says
    /// why the stream cannot be used.
    fn fails(&mut self, took_ms: u64, reason: &str, outbox: &mut Outbox) {
        self.waited_ms += took_ms;
        if self.waited_ms >= PATIENCE_MS && !self.is_known() {
            self.say((reason.to_owned(), None), outbox);
        }
    }

    fn refuse(&mut self, now_ms: u64, why: (String, Option<NatsLimit>), outbox: &mut Outbox) {
        self.is_found = false;
        self.rest(now_ms + REFUSED_MS);
        self.say(why, outbox);
    }

    fn say(&mut self, (reason, limit): (String, Option<NatsLimit>), outbox: &mut Outbox) {
        if self.said.as_ref() != Some(&reason) {
            self.said = Some(reason.clone());
            outbox.report(JournalReport::TableRefused { reason, limit });
        }
    }

    /// The table is there and as it should be.
    fn found(&mut self, now_ms: u64, info: stream::StreamInfo, outbox: &mut Outbox) {
        if self.is_on_demand {
            (self.is_found, self.said) = (true, None);
            return self.rest(now_ms + POLL_MS);
        }
        let is_other = !self.created.is_empty() && self.created != info.created;
        if is_other || info.last < self.position {
            (self.position, self.target, self.whole_at) = (0, 0, 0);
            outbox.report(JournalReport::TableLost(self.id));
        }
        (self.created, self.said, self.waited_ms) = (info.created, None, 0);
        (self.is_found, self.is_compared, self.found_ms) = (true, true, self.asked_ms);
        let gone = info.first.saturating_sub(1).min(info.last);
        if gone > self.position || self.whole_at == UNKNOWN {
            self.whole_at = info.last;
        }
        // Expired entries matter to nobody.
        self.position = self.position.max(gone);
        self.target = self.target.max(info.last);
        if self.target > self.position {
            self.ask(now_ms, Step::Read, outbox);
        } else {
            self.rest(self.found_ms + POLL_MS);
            self.tell_stored(outbox);
        }
    }

    fn read(
        &mut self,
        now_ms: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) -> bool {
        match get::part(headers) {
            Part::Message { sequence, previous } => {
                match self.chain.continues(sequence, previous) {
                    Some(true) if sequence > self.position => {
                        self.entries.extend(self.names.entry(headers, payload));
                    }
                    Some(_) => {}
                    None => self.rest(now_ms + RETRY_MS),
                }
                false
            }
            Part::End { last, left, .. } if self.chain.ends(last) => {
                self.position = self.position.max(last);
                if left == 0 && !self.has_replicas {
                    // Between the last message and the floor some were removed. A replica that
                    // lags would give the same answer.
                    self.position = self.position.max(self.floor);
                }
                let entries = std::mem::take(&mut self.entries);
                if !entries.is_empty() {
                    outbox.report(JournalReport::Entries(self.id, entries));
                }
                self.gives_up_removed(now_ms, (last, left));
                self.passes_over(left);
                self.tell_stored(outbox);
                if left > 0 || (self.position < self.target && last > 0) {
                    self.ask(now_ms, Step::Read, outbox);
                } else if self.whole_at == UNKNOWN {
                    self.ask(now_ms, Step::Find, outbox);
                } else if self.position < self.target {
                    self.rest(now_ms + RETRY_MS);
                } else {
                    self.rest(self.found_ms.max(now_ms.saturating_sub(POLL_MS)) + POLL_MS);
                }
                self.becomes_current(outbox)
            }
            Part::End { .. } | Part::Failed => {
                self.rest(now_ms + RETRY_MS);
                false
            }
        }
    }

    /// An answer that leaves out later entries has none of those that they have replaced. The next
    /// one may come from a server that lags behind, and lacks them.
    fn passes_over(&mut self, left: u64) {
        if left > 0 {
            self.whole_at = UNKNOWN;
        } else if !self.has_replicas {
            self.whole_at = 0;
        }
    }

    /// Counts entries as removed that servers have not had for a while.
    fn gives_up_removed(&mut self, now_ms: u64, (last, left): (u64, u64)) {
        if last > 0 || left > 0 || self.position >= self.target {
            return self.short_since_ms = None;
        }
        let since_ms = *self.short_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) >= REMOVED_MS {
            self.position = self.position.max(self.floor);
            self.short_since_ms = None;
        }
    }

    /// Reports that nothing is missing, if that is so. Returns whether it is the first time.
    fn becomes_current(&mut self, outbox: &mut Outbox) -> bool {
        let is_current = self.is_found && self.step == Step::Idle && self.position >= self.target;
        if !is_current || !std::mem::take(&mut self.is_compared) {
            return false;
        }
        outbox.report(JournalReport::Current { table: self.id, as_of_ms: self.found_ms });
        !std::mem::replace(&mut self.is_known, true)
    }

    /// Writes an entry, if it replaces the one with this sequence.
    pub(super) fn change(
        &mut self,
        now_ms: u64,
        token: u64,
        (TableEntry { key, value }, replaces): (TableEntry, Option<u64>),
        outbox: &mut Outbox,
    ) {
        let headers = table::headers(value.is_none(), replaces);
        let payload = value.unwrap_or_default();
        let (bytes, bytes_max) = (headers.len() + payload.len(), outbox.payload_bytes_max);
        let refused = match () {
            () if !self.is_found || !self.is_known() => Some(Changed::Away),
            () if self.changes.len() >= CHANGES_MAX => Some(Changed::Busy),
            // A server ends the connection of who sends more.
            () if bytes > bytes_max => Some(Changed::Refused(format!(
                "an entry of {bytes} bytes is larger than max_payload of the servers, {bytes_max}"
            ))),
            () => None,
        };
        if let Some(outcome) = refused {
            return outbox.report(JournalReport::Changed { token, outcome });
        }
        let (place, subject) = (outbox.token(), format!("{}{key}", self.names.keys));
        let change = Change { token, subject: subject.clone(), sent_ms: now_ms, awaited: None };
        self.changes.insert(place, change);
        let question = Question::Change(self.id);
        outbox.ask_again(place, question, subject, (headers.into(), payload.into()));
    }

    /// Reads the last entry of a key, of a table on demand.
    pub(super) fn look(&mut self, now_ms: u64, token: u64, key: &str, outbox: &mut Outbox) {
        let names = Some(&self.names).filter(|_| self.is_found);
        self.looks.look(now_ms, (names, key), token, outbox);
    }

    /// Counts entries of a table on demand, or removes them.
    pub(super) fn match_keys(
        &mut self,
        now_ms: u64,
        keys: &str,
        asked: (u64, bool),
        outbox: &mut Outbox,
    ) {
        let names = Some(&self.names).filter(|_| self.is_found);
        self.looks.match_keys(now_ms, (names, keys), asked, outbox);
    }

    /// Takes the answer about an entry, or several.
    pub(super) fn looked(&mut self, place: u64, answer: (Headers<'_>, &[u8]), outbox: &mut Outbox) {
        self.looks.answered(&self.names, place, answer, outbox);
    }

    /// This user may not publish to a subject: no answer comes.
    pub(super) fn denied(&mut self, now_ms: u64, subject: &str, error: &str, outbox: &mut Outbox) {
        let mut changes = self.changes.iter();
        // Servers answer in the order in which they were asked.
        let first =
            changes.find(|(_, change)| change.awaited.is_none() && change.subject == subject);
        if let Some(place) = first.map(|(place, _)| *place)
            && let Some(change) = self.changes.remove(&place)
        {
            outbox.answered(place);
            return report(&change, Changed::Refused(error.to_owned()), outbox);
        }
        self.looks.denied(&self.names, subject, outbox);
        if self.step != Step::Idle && self.asked == subject {
            let name = &self.names.stream;
            let reason = format!("NATS does not let this node use the bucket {name}: {error}");
            self.refuse(now_ms, (reason, None), outbox);
        }
    }

    /// Asks the servers how far the table is, not before now.
    pub(super) fn compare(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.is_awaited = true;
        if self.is_found && self.step == Step::Idle {
            self.ask(now_ms, Step::Find, outbox);
        }
    }

    /// Takes the answer to a change.
    pub(super) fn change_answered(
        &mut self,
        now_ms: u64,
        place: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) {
        outbox.answered(place);
        let outcome = match ack::parse(&self.names.stream, headers, payload) {
            Ack::Stored { sequence, .. } => {
                return self.awaits(now_ms, (place, Awaited::Own(sequence)), outbox);
            }
            Ack::Refused(error) if error.is_conflict() => match error.last_sequence() {
                Some(last) => {
                    return self.awaits(now_ms, (place, Awaited::Other(last)), outbox);
                }
                None => Changed::Conflict { last: 0 },
            },
            Ack::Refused(error) if error.is_passing() => Changed::Away,
            Ack::Refused(error) => Changed::Refused(error.advised()),
            Ack::Nobody => Changed::Away,
            Ack::Unreadable => Changed::Unknown,
        };
        if let Some(change) = self.changes.remove(&place) {
            report(&change, outcome, outbox);
        }
    }

    /// Answers a change once an entry was reported.
    fn awaits(&mut self, now_ms: u64, (place, awaited): (u64, Awaited), outbox: &mut Outbox) {
        let Some(change) = self.changes.get_mut(&place) else { return };
        change.awaited = Some(awaited);
        if self.is_on_demand {
            // Nothing is reported that it could wait for.
            self.position = u64::MAX;
            return self.tell_stored(outbox);
        }
        let (Awaited::Own(sequence) | Awaited::Other(sequence)) = awaited;
        self.reach(now_ms, sequence, outbox);
        self.tell_stored(outbox);
    }

    /// Tells of changes for which the entries were reported that they wait for.
    fn tell_stored(&mut self, outbox: &mut Outbox) {
        let position = if self.position < self.whole_at { 0 } else { self.position };
        self.changes.retain(|_, change| {
            let outcome = match change.awaited {
                Some(Awaited::Own(sequence)) if sequence <= position => Changed::Stored,
                Some(Awaited::Other(last)) if last <= position => Changed::Conflict { last },
                _ => return true,
            };
            report(change, outcome, outbox);
            false
        });
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if !self.is_connected {
            return;
        }
        let is_late = self.step != Step::Idle && now_ms.saturating_sub(self.asked_ms) >= ANSWER_MS;
        let is_due = now_ms >= self.next_ms || (self.is_awaited && self.is_found);
        if is_late {
            self.fails(ANSWER_MS, NO_LEADER, outbox);
        }
        if is_late || (self.step == Step::Idle && is_due) {
            self.ask(now_ms, Step::Find, outbox);
        }
        self.looks.tick(now_ms, outbox);
        self.changes.retain(|place, change| {
            let is_late = now_ms.saturating_sub(change.sent_ms) >= CHANGE_MS;
            if is_late {
                outbox.answered(*place);
                report(change, Changed::Unknown, outbox);
            }
            !is_late
        });
    }
}

fn report(change: &Change, outcome: Changed, outbox: &mut Outbox) {
    outbox.report(JournalReport::Changed { token: change.token, outcome });
}
