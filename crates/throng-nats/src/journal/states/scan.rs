//! Reads the state of a channel: the newest messages of all its keys, at one moment.
//!
//! The record is asked of the leader first. Then the copies are read in the order of the stream,
//! from any replica, which must have come as far as that record: so each key's newest copy of that
//! time was read, or is superseded by a message that comes after all that the reader has read of
//! the log before.
//!
//! A copy that is renewed meanwhile moves behind the others, and is of the same message as before.
//! So each part of an answer is from a replica that has as many copies there as the one of the part
//! before it has left: none that this one had passed by is yet to come there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use throng_core::KeyQuery;

use super::page::Page;
use crate::api::beside::{self, Erasures};
use crate::api::get::{self, Chain, Part};
use crate::api::state::{KnownState, StateCopy};
use crate::api::stream;
use crate::journal::outbox::{Outbox, Question};
use crate::journal::report::StateFacts;
use crate::protocol::headers::Headers;
use crate::subject::Subjects;

/// States that are read at a time.
const IN_FLIGHT_MAX: usize = 16;

/// Readings that wait or are read, at most. Beyond it they are refused.
const SCANS_MAX: usize = 8_192;

/// After this time without an end, a part is asked for again.
const PART_MS: u64 = 2_000;

/// After this time a reading begins anew whose replica lags.
const AGAIN_MS: u64 = 50;

/// For how long that goes on.
const LAGS_MS: u64 = 10_000;

/// Who a state is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::journal) enum ScanFor {
    /// The owner of the journal, under this token.
    Owner(u64),
    /// A channel that is counted.
    Count,
    /// A message that is looked for, to be erased.
    Forget,
}

/// A state to read.
#[derive(Debug, Clone)]
pub(in crate::journal) struct ScanRequest {
    pub(in crate::journal) owner: ScanFor,
    pub(in crate::journal) suffix: Arc<str>,
    /// Only the keys of this page.
    pub(in crate::journal) page: Option<KeyQuery>,
    /// The newest message that the reader knows of.
    pub(in crate::journal) at_least: u64,
    /// True to learn what the stream has lost.
    pub(in crate::journal) wants_bounds: bool,
    /// True if only values that expire matter.
    pub(in crate::journal) is_of_expiring: bool,
}

impl ScanRequest {
    /// The page, if it may have several keys.
    fn page_of_many(&self) -> Option<KeyQuery> {
        self.page.clone().filter(|page| !page.is_of_one)
    }

    pub(super) fn all(owner: ScanFor, suffix: Arc<str>) -> ScanRequest {
        ScanRequest {
            owner,
            suffix,
            page: None,
            at_least: 0,
            wants_bounds: false,
            is_of_expiring: false,
        }
    }
}

#[derive(Debug)]
enum Step {
    /// The leader is asked for the record, or for a key besides.
    Record,
    /// Copies are read.
    Copies,
    /// The leader is asked for the names of keys.
    Names,
    /// The newest messages of some keys are read.
    Values,
    /// The leader is asked for the stream's bounds, and for what was erased.
    Bounds,
}

#[derive(Debug)]
struct Scan {
    request: ScanRequest,
    step: Step,
    /// The questions without answers.
    tokens: Vec<u64>,
    /// The one for the record.
    record_token: u64,
    known: Option<KnownState>,
    page: Option<Page>,
    /// The copies by their keys, with their sequences.
    copies: BTreeMap<Box<str>, StateCopy>,
    chain: Chain,
    /// The last copy or record that was read, and whether a copy that belongs to a later record was
    /// after the last record.
    last: u64,
    is_torn: bool,
    /// Copies and records of this part so far, and those that the part before it has left.
    taken: u64,
    left: u64,
    read: Option<KnownState>,
    facts: StateFacts,
    at_ms: u64,
    began_ms: u64,
}

/// A state that was read; `None` if it cannot be.
pub(in crate::journal) struct ScanDone {
    pub(in crate::journal) request: ScanRequest,
    pub(in crate::journal) read: Option<ScanRead>,
}

/// See [`ScanDone`].
pub(in crate::journal) struct ScanRead {
    pub(in crate::journal) facts: StateFacts,
    pub(super) known: Option<KnownState>,
    pub(super) copies: BTreeMap<Box<str>, StateCopy>,
}

/// See the module.
#[derive(Default)]
pub(in crate::journal) struct Scans {
    waiting: VecDeque<Scan>,
    in_flight: Vec<Scan>,
    refused: Vec<ScanDone>,
}

impl Scan {
    fn restart(&mut self, at_ms: u64) {
        (self.step, self.at_ms) = (Step::Record, at_ms);
        self.tokens.clear();
        self.page = self.request.page_of_many().map(Page::new);
        self.copies.clear();
        (self.known, self.read) = (None, None);
        (self.chain, self.last, self.is_torn) = (Chain::default(), 0, false);
        (self.taken, self.left) = (0, 0);
        self.facts = StateFacts::default();
    }

    fn finish(self) -> ScanDone {
        let Scan { request, known, page, mut copies, mut facts, .. } = self;
        facts.next = page.and_then(|page| page.cut(&mut copies));
        if let Some(known) = &known {
            (facts.head, facts.plain) = (known.head(), known.plain());
            facts.floor = known.record.floor;
        }
        let mut messages: Vec<_> = copies.values().map(|copy| copy.message.clone()).collect();
        messages.sort_by_key(|message| message.sequence);
        facts.messages = messages;
        ScanDone { request, read: Some(ScanRead { facts, known, copies }) }
    }

    /// Takes a copy or the record from a replica.
    fn take(&mut self, subjects: &Subjects, sequence: u64, headers: Headers<'_>, payload: &[u8]) {
        self.last = sequence;
        let subject = headers.get("Nats-Subject").unwrap_or_default();
        match subjects.channel_of_key(subject) {
            Some((_, true)) => {
                self.read = KnownState::read(sequence, payload);
                self.is_torn = false;
            }
            Some((_, false)) => {
                if let Some(copy) = StateCopy::read(headers, payload) {
                    self.is_torn |= !copy.is_renewed;
                    let key = Box::from(copy.key());
                    let newer = self
                        .copies
                        .get(&key)
                        .is_some_and(|own| own.message.sequence > copy.message.sequence);
                    if !newer {
                        self.copies.insert(key, copy);
                    }
                }
            }
            None => {}
        }
    }

    /// True if the replicas have come as far as the leader and the reader, and as far as one
    /// another.
    fn is_current(&self) -> bool {
        let least = self.known.as_ref().map_or(0, |known| known.sequence);
        let read = self.read.as_ref().map_or(0, |read| read.sequence);
        !self.is_torn && read >= least
    }
}

impl Scans {
    /// Has a state read. The answer comes with [`Scans::answered`] or [`Scans::tick`].
    pub(in crate::journal) fn ask(&mut self, now_ms: u64, request: ScanRequest) {
        if self.waiting.len() + self.in_flight.len() >= SCANS_MAX {
            return self.refused.push(ScanDone { request, read: None });
        }
        let page = request.page_of_many().map(Page::new);
        self.waiting.push_back(Scan {
            request,
            page,
            step: Step::Record,
            tokens: Vec::new(),
            record_token: 0,
            known: None,
            copies: BTreeMap::new(),
            chain: Chain::default(),
            last: 0,
            is_torn: false,
            taken: 0,
            left: 0,
            read: None,
            facts: StateFacts::default(),
            at_ms: now_ms,
            began_ms: now_ms,
        });
    }

    /// Begins what waits and has room.
    pub(in crate::journal) fn send(
        &mut self,
        now_ms: u64,
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        for _ in 0..self.waiting.len() {
            if self.in_flight.len() >= IN_FLIGHT_MAX {
                break;
            }
            let Some(mut scan) = self.waiting.pop_front() else { break };
            if scan.at_ms > now_ms {
                self.waiting.push_back(scan);
                continue;
            }
            let suffix = &scan.request.suffix;
            let one = scan.request.page.as_ref().filter(|page| page.is_of_one);
            let key = one.map(|page| subjects.key(suffix, &page.prefix));
            for subject in [Some(subjects.state(suffix)), key].into_iter().flatten() {
                let request = get::last(&subject);
                scan.tokens.push(outbox.ask_leader(Question::Scan, "MSG.GET", request));
            }
            scan.record_token = scan.tokens[0];
            scan.at_ms = now_ms;
            self.in_flight.push(scan);
        }
    }

    /// Takes an answer. Returns what is complete.
    pub(in crate::journal) fn answered(
        &mut self,
        (now_ms, token): (u64, u64),
        (headers, payload): (Headers<'_>, &[u8]),
        (subjects, outbox): (&Subjects, &mut Outbox),
    ) -> Option<ScanDone> {
        let Some(at) = self.in_flight.iter().position(|scan| scan.tokens.contains(&token)) else {
            outbox.answered(token);
            return None;
        };
        let scan = &mut self.in_flight[at];
        let is_read = match scan.step {
            Step::Record => scan.record_is(token, payload),
            // The next part may come under the same token.
            Step::Copies => scan.copies_are(headers, payload, subjects)?,
            Step::Bounds => scan.bounds_are(token, payload),
            Step::Names => scan.names_are(payload, subjects),
            Step::Values => scan.values_are(headers, payload, subjects)?,
        };
        outbox.answered(token);
        scan.tokens.retain(|own| *own != token);
        let is_answered = scan.tokens.is_empty();
        match is_read {
            Turn::Again => {
                let mut scan = self.in_flight.swap_remove(at);
                scan.tokens.iter().for_each(|token| outbox.answered(*token));
                if now_ms.saturating_sub(scan.began_ms) >= LAGS_MS {
                    return Some(ScanDone { request: scan.request, read: None });
                }
                scan.restart(now_ms + AGAIN_MS);
                self.waiting.push_back(scan);
                None
            }
            Turn::GoOn if is_answered => {
                scan.at_ms = now_ms;
                if scan.go_on(subjects, outbox) {
                    return None;
                }
                Some(self.in_flight.swap_remove(at).finish())
            }
            Turn::GoOn => None,
        }
    }

    /// What cannot be read now.
    pub(in crate::journal) fn take_refused(&mut self) -> Vec<ScanDone> {
        std::mem::take(&mut self.refused)
    }

    /// The stream is away, or another one.
    pub(in crate::journal) fn cancel(&mut self, outbox: &mut Outbox) {
        let all = self.waiting.drain(..).chain(self.in_flight.drain(..));
        for scan in all {
            scan.tokens.iter().for_each(|token| outbox.answered(*token));
            self.refused.push(ScanDone { request: scan.request, read: None });
        }
    }

    /// The servers do not let this node publish to a subject.
    pub(in crate::journal) fn denied(&mut self, subject: &str, outbox: &mut Outbox) {
        let asks = ["MSG.GET.", "INFO."].iter().any(|what| {
            subject.strip_prefix("$JS.API.STREAM.").is_some_and(|rest| rest.starts_with(what))
        });
        if asks || subject.starts_with("$JS.API.DIRECT.GET.") {
            self.cancel(outbox);
        }
    }

    pub(in crate::journal) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let mut at = 0;
        while at < self.in_flight.len() {
            if now_ms.saturating_sub(self.in_flight[at].at_ms) < PART_MS {
                at += 1;
                continue;
            }
            let mut late = self.in_flight.swap_remove(at);
            late.tokens.iter().for_each(|token| outbox.answered(*token));
            if now_ms.saturating_sub(late.began_ms) >= LAGS_MS {
                self.refused.push(ScanDone { request: late.request, read: None });
            } else {
                late.restart(now_ms);
                self.waiting.push_back(late);
            }
        }
    }
}

enum Turn {
    GoOn,
    Again,
}

impl Scan {
    fn record_is(&mut self, token: u64, payload: &[u8]) -> Turn {
        let Ok(found) = beside::found(payload) else { return Turn::Again };
        if token != self.record_token {
            let copy = found.as_ref().and_then(StateCopy::of);
            self.copies.extend(copy.map(|copy| (Box::from(copy.key()), copy)));
        } else {
            self.known = found.and_then(|found| KnownState::read(found.sequence, &found.data));
        }
        let known = self.known.as_ref().map_or(0, |known| known.sequence);
        let is_old = self.tokens.len() == 1 && known <= self.request.at_least;
        // A leader of before may not know yet that it is none any more.
        if is_old && self.request.at_least > 0 { Turn::Again } else { Turn::GoOn }
    }

    /// Takes a part of an answer; `None` if more of it comes.
    fn copies_are(
        &mut self,
        headers: Headers<'_>,
        payload: &[u8],
        subjects: &Subjects,
    ) -> Option<Turn> {
        match get::part(headers) {
            Part::Message { sequence, previous } => {
                match self.chain.continues(sequence, previous) {
                    Some(true) => {
                        self.taken += 1;
                        self.take(subjects, sequence, headers, payload);
                    }
                    Some(false) => {}
                    None => return Some(Turn::Again),
                }
                None
            }
            Part::End { last, left, .. } if self.chain.ends(last) => {
                let lags = self.taken + left < self.left;
                (self.chain, self.taken, self.left) = (Chain::default(), 0, left);
                let goes_on = !lags && (left > 0 || self.is_current());
                Some(if goes_on { Turn::GoOn } else { Turn::Again })
            }
            Part::End { .. } | Part::Failed => Some(Turn::Again),
        }
    }

    fn names_are(&mut self, payload: &[u8], subjects: &Subjects) -> Turn {
        let Some(page) = &mut self.page else { return Turn::Again };
        let Some(has_more) = page.takes_names(payload, subjects) else { return Turn::Again };
        if !has_more {
            self.step = Step::Values;
        }
        Turn::GoOn
    }

    /// Takes a part of an answer; `None` if more of it comes.
    fn values_are(
        &mut self,
        headers: Headers<'_>,
        payload: &[u8],
        subjects: &Subjects,
    ) -> Option<Turn> {
        match get::part(headers) {
            Part::Message { sequence, previous } => {
                match self.chain.continues(sequence, previous) {
                    Some(true) => self.take(subjects, sequence, headers, payload),
                    Some(false) => {}
                    None => return Some(Turn::Again),
                }
                None
            }
            Part::End { last, left, up_to } if self.chain.ends(last) => {
                self.chain = Chain::default();
                let least = self.known.as_ref().map_or(0, |known| known.sequence);
                let read = self.read.as_ref().map_or(0, |read| read.sequence);
                let is_current = up_to.max(read) >= least;
                let page = self.page.as_mut();
                let goes_on = page.is_some_and(|page| page.was_answered(&self.copies, left));
                Some(if is_current && goes_on { Turn::GoOn } else { Turn::Again })
            }
            Part::End { .. } | Part::Failed => Some(Turn::Again),
        }
    }

    fn bounds_are(&mut self, token: u64, payload: &[u8]) -> Turn {
        // The bounds were asked for first.
        if self.tokens.first() == Some(&token) && self.facts.bounds.1 == 0 {
            let Ok(info) = stream::parse(payload, &Value::Null) else { return Turn::Again };
            self.facts.bounds = (info.first, info.last.max(1));
        } else {
            let Ok(found) = beside::found(payload) else { return Turn::Again };
            let erasures = Erasures::read(found.as_ref());
            self.facts.erased = erasures.floor;
            self.facts.links = erasures.links();
        }
        Turn::GoOn
    }

    /// Asks for what comes next. Returns false if nothing does.
    fn go_on(&mut self, subjects: &Subjects, outbox: &mut Outbox) -> bool {
        let suffix = &self.request.suffix;
        let is_of_expiring = self.request.is_of_expiring;
        let is_empty = self.known.as_ref().is_none_or(|KnownState { record, .. }| {
            (is_of_expiring && record.expiring == 0) || (record.keys == 0 && record.removed == 0)
        });
        let begins = matches!(self.step, Step::Record) && !is_empty;
        if self.page.is_some() {
            if begins {
                self.step = Step::Names;
            }
            return !is_empty && self.go_on_with_page(subjects, outbox);
        }
        if self.left > 0 || (begins && self.request.page.is_none()) {
            self.step = Step::Copies;
            let request = get::batch(&subjects.keys(suffix), self.last + 1);
            self.tokens.push(outbox.read(Question::Scan, request));
            return true;
        }
        let base = self.known.as_ref().map_or(u64::MAX, |known| known.record.base);
        self.copies.retain(|_, copy| copy.message.sequence > base);
        if self.request.wants_bounds && !matches!(self.step, Step::Bounds) {
            self.step = Step::Bounds;
            self.facts.bounds = (0, 0);
            let request = get::last(&subjects.erasures(suffix));
            self.tokens.push(outbox.ask_state(Question::Scan));
            self.tokens.push(outbox.ask_leader(Question::Scan, "MSG.GET", request));
            return true;
        }
        false
    }

    /// Asks for what comes next of a page. Returns false if nothing does.
    fn go_on_with_page(&mut self, subjects: &Subjects, outbox: &mut Outbox) -> bool {
        let of = (subjects, &*self.request.suffix);
        let Some(page) = &mut self.page else { return false };
        if matches!(self.step, Step::Names) {
            let request = page.names_request(of);
            self.tokens.push(outbox.ask_leader(Question::Scan, "INFO", request));
            return true;
        }
        let base = self.known.as_ref().map_or(u64::MAX, |known| known.record.base);
        self.copies.retain(|_, copy| copy.message.sequence > base);
        let found = self.copies.values().filter(|copy| !copy.is_tombstone()).count();
        let request = page.values_request(of, found);
        let request = request.map(|request| outbox.read(Question::Scan, request));
        self.tokens.extend(request);
        request.is_some()
    }
}
