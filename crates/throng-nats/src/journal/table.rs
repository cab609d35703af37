//! A table that this node has whole, and what it writes there.
//!
//! The table is a stream of entries. The node reads it from its last position: when it connects,
//! when the servers republish a new entry, when an own one was stored, and once a second, in case
//! that what was republished is lost. Entries are only taken from what is read. So every node takes
//! the same ones in the same order, its own included.
//!
//! # Invariants
//!
//! * Each [`Event::Change`](super::Event::Change) gets exactly one [`Report::Changed`]; with
//!   [`Changed::Stored`] after its entry was reported.
//! * [`Report::Current`] comes after all entries that there were at its time.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outbox::{Action, Outbox, Question, TABLE_SID};
use super::report::{Changed, Report, Settings};
use crate::api::ack::{self, Ack};
use crate::api::get::{self, Chain, Part};
use crate::api::table::{self, TableEntry, TableNames, TableSettings};
use crate::api::{ApiError, stream};
use crate::protocol::decoder::Delivery;
use crate::protocol::headers::{HeaderWriter, Headers};

/// How often the table is compared with what was read of it.
const POLL_MS: u64 = 1_000;

/// After this time without an answer a request is made again.
const ANSWER_MS: u64 = 2_000;

/// After a failure that may pass, or an answer of a replica that lags.
const RETRY_MS: u64 = 100;

/// A table that cannot be used is tried again after this time.
const REFUSED_MS: u64 = 4_000;

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

/// A change under way.
struct Change {
    token: u64,
    subject: String,
    sent_ms: u64,
    /// Its sequence, once it is stored.
    stored: Option<u64>,
}

/// See the module.
pub(super) struct Table {
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
    /// Whether it was found on this connection.
    is_found: bool,
    /// Whether all of it was read once.
    is_known: bool,
    /// Which incarnation it is, as the server writes it.
    created: String,
    /// Up to here all entries are reported.
    position: u64,
    /// Up to here there are entries for certain.
    target: u64,
    /// The target when the servers were asked.
    floor: u64,
    /// When the servers were asked how far the table is.
    found_ms: u64,
    /// Whether the servers were asked since it was current.
    is_compared: bool,
    /// Whether somebody waits for the servers to be asked.
    is_awaited: bool,
    entries: Vec<TableEntry>,
    chain: Chain,
    changes: BTreeMap<u64, Change>,
    said: Option<String>,
}

impl Table {
    pub(super) fn new(settings: &Settings, table: &TableSettings) -> Table {
        let stream = &settings.stream;
        let names = TableNames::new(&stream.prefix, &table.name);
        let age_ms = table.max_age_ms;
        Table {
            wanted: table::config(&names, age_ms, stream.replicas, stream.is_in_memory),
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
            found_ms: 0,
            is_compared: false,
            is_awaited: false,
            entries: Vec::new(),
            chain: Chain::default(),
            changes: BTreeMap::new(),
            said: None,
        }
    }

    /// Whether all of it was read once.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) fn connected(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.is_connected = true;
        let subject = format!("{}>", self.names.live);
        outbox.actions.push(Action::Subscribe { subject, sid: TABLE_SID });
        self.ask(now_ms, Step::Find, outbox);
    }

    pub(super) fn disconnected(&mut self, outbox: &mut Outbox) {
        (self.is_connected, self.is_found) = (false, false);
        (self.step, self.next_ms, self.said) = (Step::Idle, u64::MAX, None);
        for change in std::mem::take(&mut self.changes).into_values() {
            report(&change, Changed::Unknown, outbox);
        }
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
        outbox.ask_again(self.token, Question::Table, subject, ([].into(), payload.into()));
    }

    /// Nothing more is asked before this time.
    fn rest(&mut self, until_ms: u64) {
        (self.step, self.next_ms) = (Step::Idle, until_ms);
    }

    /// The servers have republished an entry.
    pub(super) fn hint(&mut self, now_ms: u64, delivery: &Delivery<'_>, outbox: &mut Outbox) {
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
            Step::Find | Step::Make if headers.status().is_some() => self.rest(now_ms + RETRY_MS),
            Step::Find | Step::Make => match table::parse(payload, &self.wanted) {
                Ok(info) if info.differences.is_empty() => self.found(now_ms, info, outbox),
                Ok(info) => self.differs(now_ms, &info, outbox),
                Err(error) if error.err_code == ApiError::STREAM_NOT_FOUND => {
                    self.ask(now_ms, Step::Make, outbox);
                }
                Err(error) if error.is_passing() => self.rest(now_ms + RETRY_MS),
                Err(error) => {
                    let name = &self.names.stream;
                    let doing = if self.step == Step::Make { "create" } else { "read" };
                    let reason =
                        format!("NATS does not let this node {doing} the bucket {name}: {error}");
                    self.refuse(now_ms, reason, outbox);
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
        self.refuse(now_ms, reason, outbox);
    }

    fn refuse(&mut self, now_ms: u64, reason: String, outbox: &mut Outbox) {
        self.is_found = false;
        self.rest(now_ms + REFUSED_MS);
        if self.said.as_ref() != Some(&reason) {
            self.said = Some(reason.clone());
            outbox.report(Report::TableRefused { reason });
        }
    }

    /// The table is there and as it should be.
    fn found(&mut self, now_ms: u64, info: stream::StreamInfo, outbox: &mut Outbox) {
        let is_other = !self.created.is_empty() && self.created != info.created;
        if is_other || info.last < self.position {
            (self.position, self.target) = (0, 0);
            outbox.report(Report::TableLost);
        }
        (self.created, self.said) = (info.created, None);
        (self.is_found, self.is_compared, self.found_ms) = (true, true, self.asked_ms);
        // What has expired matters to nobody.
        self.position = self.position.max(info.first.saturating_sub(1).min(info.last));
        self.target = self.target.max(info.last);
        if self.target > self.position {
            self.ask(now_ms, Step::Read, outbox);
        } else {
            self.rest(self.found_ms + POLL_MS);
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
                    outbox.report(Report::Entries(entries));
                }
                self.tell_stored(outbox);
                if left > 0 || (self.position < self.target && last > 0) {
                    self.ask(now_ms, Step::Read, outbox);
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

    /// Reports that nothing is missing, if that is so. Returns whether it is the first time.
    fn becomes_current(&mut self, outbox: &mut Outbox) -> bool {
        let is_current = self.is_found && self.step == Step::Idle && self.position >= self.target;
        if !is_current || !std::mem::take(&mut self.is_compared) {
            return false;
        }
        outbox.report(Report::Current { as_of_ms: self.found_ms });
        !std::mem::replace(&mut self.is_known, true)
    }

    /// Writes an entry.
    pub(super) fn change(
        &mut self,
        now_ms: u64,
        token: u64,
        entry: TableEntry,
        outbox: &mut Outbox,
    ) {
        let refused = match () {
            () if !self.is_found || !self.is_known => Some(Changed::Away),
            () if self.changes.len() >= CHANGES_MAX => Some(Changed::Busy),
            () => None,
        };
        if let Some(outcome) = refused {
            return outbox.report(Report::Changed { token, outcome });
        }
        let TableEntry { key, value } = entry;
        let headers = match value {
            Some(_) => Vec::new(),
            None => HeaderWriter::default().field("KV-Operation", "DEL").finish(),
        };
        let place = outbox.token();
        let (subject, payload) = (format!("{}{key}", self.names.keys), value.unwrap_or_default());
        let change = Change { token, subject: subject.clone(), sent_ms: now_ms, stored: None };
        self.changes.insert(place, change);
        outbox.ask_again(place, Question::Change, subject, (headers.into(), payload.into()));
    }

    /// This user may not publish to a subject: no answer comes.
    pub(super) fn denied(&mut self, now_ms: u64, subject: &str, error: &str, outbox: &mut Outbox) {
        let mut changes = self.changes.iter();
        // Servers answer in the order in which they were asked.
        let first =
            changes.find(|(_, change)| change.stored.is_none() && change.subject == subject);
        if let Some(place) = first.map(|(place, _)| *place)
            && let Some(change) = self.changes.remove(&place)
        {
            outbox.answered(place);
            return report(&change, Changed::Refused(error.to_owned()), outbox);
        }
        if self.step != Step::Idle && self.asked == subject {
            let name = &self.names.stream;
            let reason = format!("NATS does not let this node use the bucket {name}: {error}");
            self.refuse(now_ms, reason, outbox);
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
        let outcome = match ack::parse(headers, payload) {
            Ack::Stored { sequence, .. } => {
                if let Some(change) = self.changes.get_mut(&place) {
                    change.stored = Some(sequence);
                }
                self.reach(now_ms, sequence, outbox);
                return self.tell_stored(outbox);
            }
            Ack::Refused(error) if error.is_passing() => Changed::Away,
            Ack::Refused(error) => Changed::Refused(error.to_string()),
            Ack::Nobody => Changed::Away,
            Ack::Unreadable => Changed::Unknown,
        };
        if let Some(change) = self.changes.remove(&place) {
            report(&change, outcome, outbox);
        }
    }

    /// Tells of changes whose entries were reported.
    fn tell_stored(&mut self, outbox: &mut Outbox) {
        let position = self.position;
        self.changes.retain(|_, change| {
            let is_done = change.stored.is_some_and(|sequence| sequence <= position);
            if is_done {
                report(change, Changed::Stored, outbox);
            }
            !is_done
        });
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if !self.is_connected {
            return;
        }
        let is_late = self.step != Step::Idle && now_ms.saturating_sub(self.asked_ms) >= ANSWER_MS;
        let is_due = now_ms >= self.next_ms || (self.is_awaited && self.is_found);
        if is_late || (self.step == Step::Idle && is_due) {
            self.ask(now_ms, Step::Find, outbox);
        }
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
    outbox.report(Report::Changed { token: change.token, outcome });
}

#[cfg(test)]
mod tests {
    use throng_core::Retention;

    use super::*;
    use crate::api::StreamSettings;

    const INFO: &str = "$JS.API.STREAM.INFO.KV_throng-t";
    const GET: &str = "$JS.API.DIRECT.GET.KV_throng-t";

    /// A table, and what it says.
    struct Room {
        table: Table,
        outbox: Outbox,
    }

    impl Room {
        fn new() -> Room {
            let stream = StreamSettings {
                prefix: "throng".into(),
                class: "channels".into(),
                replicas: 1,
                is_in_memory: false,
                retention: Retention { max_messages: 1, max_bytes: 1, max_age_ms: 60_000 },
                bytes_max: 1 << 20,
                message_bytes_max: 1 << 17,
                duplicate_window_ms: 60_000,
            };
            let settings = TableSettings { name: "t".into(), max_age_ms: 60_000 };
            let journal = Settings { stream, nonce: "n".into(), publish_ms: 4_000, table: None };
            let (mut outbox, table) =
                (Outbox::new("s".into(), "n"), Table::new(&journal, &settings));
            outbox.connected();
            let mut room = Room { table, outbox };
            room.table.connected(0, &mut room.outbox);
            room
        }

        /// What was said since, and where questions went to.
        fn said(&mut self) -> (Vec<Report>, Vec<String>) {
            let (mut reports, mut subjects) = (Vec::new(), Vec::new());
            for action in self.outbox.actions.drain(..) {
                match action {
                    Action::Report(report) => reports.push(report),
                    Action::Publish { subject, .. } => subjects.push(subject),
                    Action::Subscribe { .. } | Action::Unsubscribe { .. } => {}
                }
            }
            (reports, subjects)
        }

        /// The servers say how far the table is.
        fn is_at(&mut self, now_ms: u64, last: u64) {
            let state = serde_json::json!({ "first_seq": 1, "last_seq": last });
            let info = serde_json::json!({
                "config": self.table.wanted, "created": "c", "state": state
            });
            let (token, info) = (self.table.token, info.to_string());
            let answer = (Headers::default(), info.as_bytes());
            self.table.answered(now_ms, token, answer, &mut self.outbox);
        }
    }

    #[test]
    fn a_change_that_is_denied_is_refused_at_once() {
        let mut room = Room::new();
        room.is_at(0, 0);
        for (token, key) in [(1, "a"), (2, "b"), (3, "a")] {
            let entry = TableEntry { key: key.into(), value: Some([].into()) };
            room.table.change(0, token, entry, &mut room.outbox);
        }
        room.said();
        for (subject, token) in [("$KV.throng-t.b", 2), ("$KV.throng-t.a", 1)] {
            room.table.denied(1, subject, "no", &mut room.outbox);
            let outcome = Changed::Refused("no".into());
            assert_eq!(room.said().0, [Report::Changed { token, outcome }]);
        }
        room.table.denied(1, "$KV.throng-t.b", "no", &mut room.outbox);
        assert_eq!(room.said().0, []);
    }

    #[test]
    fn a_table_that_may_not_be_read_is_refused_at_once() {
        let mut room = Room::new();
        room.is_at(0, 2);
        assert_eq!(room.said().1, [INFO, GET]);
        room.table.denied(1, INFO, "no", &mut room.outbox);
        assert_eq!(room.said().0, [], "of a question that was answered");
        room.table.denied(1, GET, "no", &mut room.outbox);
        let reason = "NATS does not let this node use the bucket KV_throng-t: no".into();
        assert_eq!(room.said().0, [Report::TableRefused { reason }]);
    }

    #[test]
    fn who_compares_learns_of_a_question_after_that() {
        let mut room = Room::new();
        // The question that is under way may have been answered before.
        room.table.compare(5, &mut room.outbox);
        room.is_at(6, 0);
        assert_eq!(room.said().0, [Report::Current { as_of_ms: 0 }]);
        room.table.tick(7, &mut room.outbox);
        assert_eq!(room.said().1, [INFO]);
        room.is_at(8, 0);
        assert_eq!(room.said().0, [Report::Current { as_of_ms: 7 }]);
        room.table.tick(9, &mut room.outbox);
        assert_eq!(room.said().1, [""; 0]);
        room.table.compare(10, &mut room.outbox);
        assert_eq!(room.said().1, [INFO], "at once");
    }
}
