//! What is stored for requests about a channel with a state, when it is as in a view.
//!
//! All that is decided here depends on the record: the stream stores the batch only if the record,
//! the last message and the copies are still those of the view.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use throng_core::{
    KeyChange, KeyValue, Publication, PublishError, RecordChange, Replacement, StateLimits,
    creation, value_bytes,
};

use super::request::{Done, Forgotten, Item, Refusal, Work};
use super::view::{PartOf, View};
use crate::api::beside::{Erasures, Found};
use crate::api::link::{Place, linked};
use crate::api::message;
use crate::api::state::{self, KnownState, StateCopy, StateRecord};
use crate::journal::logs::{BATCH_MAX, Entry, LogView, NO_BATCHES, TOO_MANY, only_last, require};
use crate::journal::publishing::{key_id, receipt};
use crate::journal::report::{LogEdit, LogOutcome, LogRequest, Outcome, PublishRequest};
use crate::protocol::headers::HeaderWriter;
use crate::subject::{self, Subjects};

/// Headers that the servers and batches add to a message, at most.
const MARGIN_BYTES: usize = 1_024;

/// The names and times that a plan needs.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) suffix: &'a str,
    pub(super) stream: &'a str,
    pub(super) nonce: &'a str,
    pub(super) subjects: &'a Subjects,
    pub(super) limits: StateLimits,
    /// The time of the servers.
    pub(super) server_ms: u64,
    /// For how long idempotency keys are known.
    pub(super) window_ms: u64,
    /// A sequence that the stream has reached.
    pub(super) reached: u64,
    /// A lower bound of the first sequence.
    pub(super) first: u64,
    pub(super) bytes_max: usize,
}

impl About<'_> {
    fn idempotency(&self, publication: &Publication) -> Option<String> {
        let id = URL_SAFE_NO_PAD.encode(key_id(publication)?);
        Some(self.subjects.idempotency(self.suffix, &id))
    }

    /// The parts of a view that a request needs.
    pub(super) fn parts(&self, work: &Work) -> Vec<PartOf> {
        let (subjects, suffix) = (self.subjects, self.suffix);
        let mut parts = vec![subjects.state(suffix), subjects.ingest(suffix)];
        let key = |publication: &Publication| Some(subjects.key(suffix, publication.key()?));
        match work {
            Work::Publish(request) => {
                parts.extend(key(&request.publication));
                parts.extend(self.idempotency(&request.publication));
                parts.extend(request.may_end.then(|| subjects.record(suffix)));
            }
            Work::Change { edit, .. } => {
                parts.extend(edit.messages.iter().filter_map(key));
                let condition = edit.key.as_ref();
                parts.extend(condition.map(|(key, _)| subjects.key(suffix, key)));
                parts.push(subjects.record(suffix));
                parts.extend(edit.head.or(edit.replaces()).map(|_| subjects.erasures(suffix)));
            }
            Work::Forget { gone, .. } => {
                let gone = gone.as_ref().filter(|(key, _)| !key.is_empty());
                parts.extend(gone.map(|(key, _)| subjects.key(suffix, key)));
            }
            Work::Count(_) => {}
        }
        let mut parts: Vec<_> = parts.into_iter().map(PartOf::Last).collect();
        if matches!(work, Work::Change { edit, .. } if edit.head.is_some()) {
            parts.push(PartOf::Bounds);
        }
        parts
    }
}

/// What is to be done.
pub(super) struct Plan {
    pub(super) entries: Vec<Entry>,
    /// The messages of the channel among them, which come first.
    pub(super) messages: usize,
    /// The sequence of the record before.
    pub(super) record: u64,
    /// Tombstones that the state has then, at most.
    pub(super) removed: u64,
    /// For each request what becomes of it.
    pub(super) fates: Vec<Result<Done, Refusal>>,
}

/// The value of a key, as the batch leaves it.
struct Key {
    /// The sequence of its copy before; 0 without one.
    copy: u64,
    before: Option<StateCopy>,
    bytes: Option<u64>,
    can_be_read: bool,
    expires: bool,
    is_tombstone: bool,
    /// The place of the message that sets or removes it.
    at: Option<usize>,
}

struct Planner<'a> {
    about: About<'a>,
    view: &'a View,
    batch: &'a str,
    known: Option<KnownState>,
    record: StateRecord,
    keys: BTreeMap<Box<str>, Key>,
    /// Headers and bodies of the messages.
    messages: Vec<(HeaderWriter, Arc<[u8]>, bool)>,
    ids: BTreeMap<String, usize>,
    log_record: Option<Entry>,
    /// A key whose copy is erased afterwards.
    forgotten: Option<Box<str>>,
    conditions: Vec<(String, u64)>,
    /// What was erased, with messages that are replaced.
    erasures: Option<Erasures>,
}

/// Plans what is stored for these requests, in their order, under the name `batch`.
pub(super) fn plan(items: &[Item], view: &View, about: About<'_>, batch: &str) -> Plan {
    let mut planner = Planner::new(view, about, batch);
    let fates = items.iter().map(|item| planner.take(&item.work)).collect();
    planner.finish(fates)
}

impl<'a> Planner<'a> {
    fn new(view: &'a View, about: About<'a>, batch: &'a str) -> Planner<'a> {
        let known = view.state(&about.subjects.state(about.suffix));
        let last = view.sequence(&about.subjects.ingest(about.suffix));
        let mut record = known.as_ref().map(|known| known.record.clone()).unwrap_or_else(|| {
            // Messages may have been there, and be gone.
            let reached = about.reached.max(view.reached());
            let before = if last == 0 { reached } else { last };
            let (head, plain) = (Place::at(before), Place::at(before));
            StateRecord { floor: reached, base: reached, head, plain, ..StateRecord::default() }
        });
        if known.as_ref().is_some_and(|known| last > known.head()) {
            // Of a node whose rules are others.
            (record.head, record.plain) = (Place::at(last), Place::at(last));
        }
        Planner {
            about,
            view,
            batch,
            known,
            record,
            keys: BTreeMap::new(),
            messages: Vec::new(),
            ids: BTreeMap::new(),
            log_record: None,
            forgotten: None,
            conditions: Vec::new(),
            erasures: None,
        }
    }

    fn take(&mut self, work: &Work) -> Result<Done, Refusal> {
        match work {
            Work::Publish(request) => self.publish(request).map_err(Refusal::Publication),
            Work::Change { edit, .. } => self.change(edit).map_err(Refusal::Log),
            Work::Forget { request, gone, .. } => self.forget(request, gone.as_ref()),
            Work::Count(counted) => {
                let counted = counted.as_ref().ok_or(Refusal::Nothing)?;
                if self.known.as_ref().map(|known| known.sequence) != Some(counted.sequence) {
                    return Err(Refusal::Nothing);
                }
                (self.record.keys, self.record.bytes) = (counted.keys, counted.bytes);
                self.record.expiring = counted.expiring;
                self.record.removed = counted.removed;
                self.record.floor = self.record.floor.max(counted.floor);
                Ok(Done::Counted)
            }
        }
    }

    fn log(&self) -> LogView {
        let head = self.known.as_ref().map_or(0, KnownState::head);
        self.view.log(self.about.subjects, self.about.suffix, head)
    }

    fn publish(&mut self, request: &PublishRequest) -> Result<Done, Outcome> {
        let publication = &request.publication;
        let id = self.about.idempotency(publication);
        if let Some(id) = &id {
            if let Some(at) = self.ids.get(id) {
                return Ok(Done::Published { at: *at, is_duplicate: true });
            }
            let found = self.view.last(id).filter(|found| {
                found.wall_ms.saturating_add(self.about.window_ms) > self.about.server_ms
            });
            let of = |found: &Found| {
                let place: Place = serde_json::from_slice(&found.data).ok()?;
                Some(place.sequence(found.sequence))
            };
            if let Some(sequence) = found.and_then(of) {
                return Err(Outcome::Stored { sequence, is_duplicate: true });
            }
        }
        if request.may_end && publication.is_refused_by_end() {
            if self.log().is_ended() {
                return Err(Outcome::Ended);
            }
            self.depends_on_end();
        }
        let record = self.log().record();
        let record = record.as_ref().map(|known| &known.record).filter(|_| request.may_end);
        let admitted = creation::admit(record, publication.needs_creation, publication);
        let admitted = admitted.map_err(Outcome::State)?.map(|replacement| {
            let Replacement { body, content_type } = replacement;
            Publication { body, content_type, ..publication.clone() }
        });
        let publication = admitted.as_ref().unwrap_or(publication);
        self.accept(std::slice::from_ref(publication), None).map_err(Outcome::State)?;
        let receipt =
            publication.receipt.as_ref().map(|_| receipt(self.about.nonce, request.token));
        let at = self.push(publication, receipt.as_deref())?;
        if let Some(id) = id {
            self.ids.insert(id, at);
        }
        Ok(Done::Published { at, is_duplicate: false })
    }

    /// The end of the channel would refuse it.
    fn depends_on_end(&mut self) {
        let subject = self.about.subjects.record(self.about.suffix);
        let expected = self.view.sequence(&subject);
        if !self.conditions.iter().any(|(of, _)| *of == subject) {
            self.conditions.push((subject, expected));
        }
    }

    fn change(&mut self, edit: &LogEdit) -> Result<Done, LogOutcome> {
        let log = self.log();
        let (first, reached) = self.view.bounds();
        let bounds = (first.max(self.about.first), reached.max(self.about.reached));
        let is_replaced = |sequence| self.erasures.as_ref().is_some_and(|it| it.have(sequence));
        if !log.holds(edit, bounds) || edit.replaces().is_some_and(is_replaced) {
            return Err(LogOutcome::Conflict(log.facts(bounds.1)));
        }
        let record = log.record();
        let refused = edit.refused_after(record.as_ref());
        if let Some(refused) = refused.filter(|it| edit.may_end || *it != Outcome::Ended) {
            return Err(LogOutcome::Failed(refused));
        }
        if let Some((key, wanted)) = &edit.key {
            let key = self.key(key);
            let newest = key.before.as_ref().filter(|copy| !copy.is_tombstone());
            let newest = newest.map(|copy| copy.message.sequence);
            // Who names a value that has just expired may remove it: the server does.
            let readable = newest.filter(|_| key.can_be_read || newest == *wanted);
            if readable != *wanted {
                return Err(LogOutcome::KeyConflict(readable));
            }
        }
        let wanted = edit.key.as_ref().filter(|(_, newest)| newest.is_some());
        let named = wanted.map(|(key, _)| &**key);
        let refused = |error| LogOutcome::Failed(Outcome::State(error));
        self.accept(&edit.messages, named).map_err(refused)?;
        if (edit.may_end && edit.is_refused_by_end()) || edit.record_version.is_some() {
            self.depends_on_end();
        }
        let at = self.messages.len();
        let admitted = edit.admit(record.as_ref().map(|known| &known.record)).unwrap_or_default();
        for message in &admitted {
            self.push(message, None).map_err(LogOutcome::Failed)?;
        }
        if let Some(replaced) = edit.replaces() {
            let erasures = self.erasures.take().unwrap_or_else(|| log.erasures());
            let last = self.view.sequence(&self.about.subjects.ingest(self.about.suffix));
            self.erasures = Some(erasures.with_message(replaced, last));
        }
        let subject = self.about.subjects.record(self.about.suffix);
        let own = |block: &[u8]| Entry::new(subject.clone(), only_last(self.about.stream), block);
        let (entry, version) = match &edit.record {
            RecordChange::Keep => (None, log.record_version()),
            RecordChange::Write(record) => (Some(own(record.block())), u64::MAX),
            RecordChange::Remove => (Some(own(b"")), 0),
        };
        self.log_record = entry;
        if edit.messages.is_empty() && self.log_record.is_none() {
            let first = self.about.reached + 1;
            return Err(LogOutcome::Changed { first, record: version });
        }
        Ok(Done::Changed { at, record: Err(version) })
    }

    fn forget(
        &mut self,
        request: &LogRequest,
        gone: Option<&(Box<str>, u64)>,
    ) -> Result<Done, Refusal> {
        let Some(known) = &self.known else { return Err(Refusal::Nothing) };
        let head = known.head().max(self.record.head.sequence(0));
        if !matches!(request, LogRequest::EraseMessage(_)) {
            self.record = StateRecord {
                keys: 0,
                bytes: 0,
                expiring: 0,
                removed: 0,
                floor: self.record.floor.max(head),
                base: self.record.base.max(head),
                ..std::mem::take(&mut self.record)
            };
            return Ok(Done::Forgotten(Forgotten::UpTo(head)));
        }
        let Some((name, sequence)) = gone.filter(|(name, _)| !name.is_empty()) else {
            return Err(Refusal::Nothing);
        };
        let key = self.key(name);
        let Some(copy) = key.before.as_ref().filter(|copy| copy.message.sequence == *sequence)
        else {
            return Err(Refusal::Nothing);
        };
        // A tombstone is followed by another one: those who come back have to learn of it.
        let is_value = !copy.is_tombstone();
        let channel = subject::channel(self.about.suffix).ok_or(Refusal::Nothing)?;
        let tombstone = Publication::tombstone(channel, name);
        if is_value {
            let all = std::slice::from_ref(&tombstone);
            self.accept(all, Some(name)).map_err(|_| Refusal::Nothing)?;
        }
        let copy = self.key(name).copy;
        self.push(&tombstone, None).map_err(|_| Refusal::Nothing)?;
        self.forgotten = Some(name.clone());
        Ok(Done::Forgotten(Forgotten::Copy(copy)))
    }

    /// How a key is, after what is planned so far.
    fn key(&mut self, key: &str) -> &mut Key {
        let About { subjects, suffix, server_ms, .. } = self.about;
        let (view, base) = (self.view, self.record.base);
        self.keys.entry(key.into()).or_insert_with(|| {
            let subject = subjects.key(suffix, key);
            let before = view.copy(&subject, base);
            let value = before.as_ref().filter(|copy| !copy.is_tombstone());
            Key {
                copy: view.sequence(&subject),
                bytes: value.map(|copy| copy.bytes),
                can_be_read: value.is_some_and(|copy| copy.is_value_at(server_ms)),
                expires: value.is_some_and(|copy| copy.message.expires_in_ms.is_some()),
                is_tombstone: before.is_some() && value.is_none(),
                before,
                at: None,
            }
        })
    }

    /// Counts messages, of which all are appended or none. The value of the key `named` counts as
    /// one although it has expired.
    fn accept(
        &mut self,
        messages: &[Publication],
        named: Option<&str>,
    ) -> Result<(), PublishError> {
        let limits = self.about.limits;
        let change = KeyChange::of(messages, limits, |key| {
            let is_named = named == Some(key);
            let Key { bytes, can_be_read, .. } = self.key(key);
            let value = |bytes| KeyValue { bytes, can_be_read: *can_be_read || is_named };
            Ok::<_, std::convert::Infallible>(bytes.map(value))
        });
        let Ok(change) = change;
        change?.check(self.record.keys, self.record.bytes)?;
        Ok(())
    }

    /// Adds a message. Returns its place.
    fn push(&mut self, publication: &Publication, receipt: Option<&str>) -> Result<usize, Outcome> {
        let at = self.messages.len();
        let own = HeaderWriter::default().field(message::EXPECTED_STREAM, self.about.stream);
        let headers = message::published(own, publication);
        let bytes = headers.clone().finish().len() + publication.body.bytes().len();
        if bytes + MARGIN_BYTES > self.about.bytes_max {
            return Err(Outcome::TooLarge { bytes_max: self.about.bytes_max });
        }
        let is_plain = publication.key().is_none();
        if let Some(name) = publication.key() {
            let value = (!publication.removes_key())
                .then(|| value_bytes(name, publication.weight_bytes()) as u64);
            let key = self.key(name);
            let before = key.bytes;
            let was_tombstone = std::mem::replace(&mut key.is_tombstone, value.is_none());
            let expires = value.is_some() && publication.expires_in_ms.is_some();
            let expired = std::mem::replace(&mut key.expires, expires);
            (key.bytes, key.can_be_read, key.at) = (value, value.is_some(), Some(at));
            let record = &mut self.record;
            record.keys = (record.keys + u64::from(value.is_some()))
                .saturating_sub(u64::from(before.is_some()));
            record.bytes = (record.bytes + value.unwrap_or(0)).saturating_sub(before.unwrap_or(0));
            record.expiring =
                (record.expiring + u64::from(expires)).saturating_sub(u64::from(expired));
            record.removed = (record.removed + u64::from(value.is_none()))
                .saturating_sub(u64::from(was_tombstone));
        }
        self.messages.push((
            message::with_receipt(headers, receipt),
            publication.body.bytes().into(),
            is_plain,
        ));
        Ok(at)
    }

    fn finish(mut self, mut fates: Vec<Result<Done, Refusal>>) -> Plan {
        let record_sequence = self.view.sequence(&self.about.subjects.state(self.about.suffix));
        let messages = self.messages.len();
        let removed = self.record.removed;
        let nothing = Plan {
            entries: Vec::new(),
            messages,
            record: record_sequence,
            removed,
            fates: Vec::new(),
        };
        if !fates.iter().any(Result::is_ok) {
            return Plan { fates, ..nothing };
        }
        let About { subjects, suffix, stream, .. } = self.about;
        let guard = || (subjects.guard(suffix), stream);
        let (mut entries, places) = self.linked(record_sequence);
        entries.extend(self.copies(entries.len()));
        for (id, at) in &self.ids {
            let place = Place::before(entries.len() - at);
            let block = serde_json::to_vec(&place).unwrap_or_default();
            entries.push(Entry::new(id.clone(), only_last(stream), &block));
        }
        if let Some(entry) = self.log_record.take() {
            let at = entries.len();
            entries.push(entry);
            for fate in &mut fates {
                if let Ok(Done::Changed { record: record @ Err(u64::MAX), .. }) = fate {
                    *record = Ok(at);
                }
            }
        }
        if let Some(erasures) = self.erasures.take() {
            let subject = subjects.erasures(suffix);
            let expected = self.view.sequence(&subject);
            entries.push(Entry::new(subject.clone(), only_last(stream), &erasures.block()));
            require(&mut entries, (subject, expected), guard());
        }
        for (key, Key { copy, at, .. }) in &self.keys {
            // Of a condition alone, the record is enough.
            if at.is_some() {
                require(&mut entries, (subjects.key(suffix, key), *copy), guard());
            }
        }
        if messages > 0 {
            let ingest = subjects.ingest(suffix);
            let last = self.view.sequence(&ingest);
            require(&mut entries, (ingest, last), guard());
        }
        for condition in std::mem::take(&mut self.conditions) {
            require(&mut entries, condition, guard());
        }
        let own = entries.len();
        let place = |at: Option<usize>, before| at.map_or(before, |at| Place::before(own - at));
        let [head, plain] = places;
        let record = StateRecord {
            head: place(head, self.record.head),
            plain: place(plain, self.record.plain),
            batch: self.batch.to_owned(),
            renews: 0,
            ..self.record
        };
        entries.push(Entry::new(subjects.state(suffix), only_last(stream), &record.block()));
        require(&mut entries, (subjects.state(suffix), record_sequence), guard());
        Plan { entries, fates, ..nothing }
    }

    /// The messages with their links, and the places of the newest one, and of the newest one
    /// without a key.
    fn linked(&mut self, record: u64) -> (Vec<Entry>, [Option<usize>; 2]) {
        let ingest = self.about.subjects.ingest(self.about.suffix);
        let (mut head, mut plain) = (None, None);
        let (batch, before) = (self.batch, [self.record.head, self.record.plain]);
        let mut entries = Vec::with_capacity(self.messages.len());
        for (at, (headers, body, is_plain)) in self.messages.iter().enumerate() {
            let place = |of: Option<usize>, before| of.map_or(before, |of| Place::before(at - of));
            let places = [place(head, before[0]), place(plain, before[1])];
            let headers = linked(headers.clone(), (batch, record, at), places);
            entries.push(Entry::new(ingest.clone(), headers, body));
            head = Some(at);
            plain = if *is_plain { Some(at) } else { plain };
        }
        (entries, [head, plain])
    }

    /// The copies, of which the first one has this place.
    fn copies(&self, first: usize) -> Vec<Entry> {
        let About { subjects, suffix, .. } = self.about;
        let written = self.keys.iter().filter_map(|(key, own)| Some((&**key, own, own.at?)));
        let copy = |(place, (key, own, at)): (usize, (&str, &Key, usize))| {
            let (headers, body, _) = &self.messages[at];
            let mut headers = headers.clone();
            // The servers overwrite the bytes of one that is erased, and not of one that is
            // replaced.
            if self.forgotten.as_deref() != Some(key) {
                headers = headers.field("Nats-Rollup", "sub");
            }
            let bytes = own.bytes.unwrap_or(0);
            let headers = state::copied(headers, Place::before(first + place - at), bytes);
            Entry::new(subjects.key(suffix, key), headers, body)
        };
        written.enumerate().map(copy).collect()
    }
}

/// Why a batch cannot be stored in one step.
pub(super) fn unsupported(is_atomic: bool, entries: usize) -> Option<&'static str> {
    match () {
        () if !is_atomic => Some(NO_BATCHES),
        () if entries > BATCH_MAX => Some(TOO_MANY),
        () => None,
    }
}
