//! Reading channels: batches from the stream, to fill channels and for whoever asks.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::outbox::{Outbox, Question};
use super::queue::shrink;
use super::report::{JournalReport, Reading};
use super::subscription::Subscription;
use crate::api::StreamSettings;
use crate::api::beside::{self, Erasures, Found};
use crate::api::get::{self, Chain, Part};
use crate::api::message::{self, StoredMessage};
use crate::api::stream;
use crate::protocol::headers::Headers;
use crate::subject::Subjects;

/// Batches that are read at a time.
const IN_FLIGHT_MAX: usize = 64;

/// Readings that wait or are read, at most. Beyond it they are refused.
const READS_MAX: usize = 65_536;

/// After this time without an end, a batch is asked for again.
const BATCH_MS: u64 = 2_000;

/// After this time a batch that did not reach what is known to be there is asked for again.
const AGAIN_MS: u64 = 50;

/// For how long that goes on: then the message is gone.
const LAGS_MS: u64 = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A channel that is behind.
    Fill(Subscription),
    /// The owner of the journal.
    Read { token: u64 },
}

pub(super) struct BatchDone {
    pub(super) purpose: Purpose,
    pub(super) batch: Reading,
}

struct Batch {
    purpose: Purpose,
    subject: String,
    after: u64,
    at_least: u64,
    messages: Vec<StoredMessage>,
    chain: Chain,
    has_after: bool,
    left: u64,
    /// Where the record is that says whether the channel has ended, if that is asked.
    record: Option<String>,
    end: End,
    /// True if it ends before what is known to be there.
    lags: bool,
    /// When it was asked for, or is to be.
    at_ms: u64,
    began_ms: u64,
}

/// Whether the channel of a batch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is not known.
    Unknown,
    /// It had not when the batch had been read.
    Not,
    /// It has. The last message is looked for.
    Ended,
    /// It had when this was the last message; 0 if there was none.
    At(u64),
}

impl Batch {
    /// True if nothing after its position was dropped by age or for room, in a stream with these
    /// first and last sequences.
    fn is_within(&self, (first, last): (u64, u64)) -> bool {
        // Nobody has a position beyond the stream's head, unless it was made up. The source of a
        // fill is known to be there.
        let is_reached = self.after <= last || matches!(self.purpose, Purpose::Fill(_));
        self.has_after || (is_reached && self.after.saturating_add(1) >= first)
    }

    /// Messages after the position.
    fn later(&self) -> u64 {
        self.messages.len() as u64 + self.left
    }

    /// Forgets what has come: it is asked for again.
    fn restart(&mut self, at_ms: u64) {
        self.messages.clear();
        self.chain = Chain::default();
        self.has_after = false;
        self.at_ms = at_ms;
        if !matches!(self.end, End::At(_)) {
            // It may end before it is read anew.
            self.end = End::Unknown;
        }
    }
}

/// The questions on whose answers undecided batches depend.
struct Bounds {
    asked_ms: u64,
    /// How many batches were read before.
    count: usize,
    /// The tokens of the questions about the stream, and about its last erasure.
    tokens: [u64; 2],
    /// The first and last sequence.
    stream: Option<(u64, u64)>,
    /// The sequence of the message about the last erasure; 0 without any.
    erasure: Option<u64>,
}

/// Batches that wait or are read.
pub(super) struct Readings {
    per_channel: u64,
    waiting: VecDeque<Batch>,
    in_flight: BTreeMap<u64, Batch>,
    /// Complete but for the question whether they are whole.
    undecided: Vec<Batch>,
    bounds: Option<Bounds>,
    /// Complete but for the question what was erased of their channels, by the token of that.
    unerased: BTreeMap<u64, Batch>,
    /// Complete but for the question whether their channels have ended, by the token of that.
    unended: BTreeMap<u64, Batch>,
    /// True if messages of the stream may have been erased.
    can_erase: bool,
    /// True if the servers do not let this node read what was erased.
    is_denied: bool,
}

impl Readings {
    pub(super) fn new(settings: &StreamSettings) -> Readings {
        Readings {
            per_channel: settings.per_channel(),
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            undecided: Vec::new(),
            bounds: None,
            unerased: BTreeMap::new(),
            unended: BTreeMap::new(),
            can_erase: false,
            is_denied: false,
        }
    }

    /// The stream can be read. `can_erase`: messages of it may have been erased.
    pub(super) fn opened(&mut self, can_erase: bool) {
        (self.can_erase, self.is_denied) = (can_erase, false);
    }

    /// True if a batch would be sent at once.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() + self.waiting.len() < IN_FLIGHT_MAX
    }

    /// Reads the messages after a sequence, at least up to another one, and a record that says
    /// whether the channel has ended. Returns whether there is room for that.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        purpose: Purpose,
        subject: String,
        (after, at_least, record): (u64, u64, Option<String>),
    ) -> bool {
        let undecided = self.undecided.len() + self.unerased.len() + self.unended.len();
        if self.waiting.len() + self.in_flight.len() + undecided >= READS_MAX {
            return false;
        }
        self.waiting.push_back(Batch {
            purpose,
            subject,
            after,
            at_least,
            messages: Vec::new(),
            chain: Chain::default(),
            has_after: false,
            left: 0,
            // A stream of before has no records.
            record: record.filter(|_| self.can_erase),
            end: End::Unknown,
            lags: false,
            at_ms: now_ms,
            began_ms: now_ms,
        });
        true
    }

    /// Sends what waits and has room.
    pub(super) fn send(&mut self, now_ms: u64, outbox: &mut Outbox) {
        for _ in 0..self.waiting.len() {
            if self.in_flight.len() >= IN_FLIGHT_MAX {
                break;
            }
            let Some(mut batch) = self.waiting.pop_front() else { break };
            if batch.at_ms > now_ms {
                self.waiting.push_back(batch);
                continue;
            }
            batch.at_ms = now_ms;
            // The position itself is read, too: if it is there, nothing after it is missing.
            let request = get::batch(&batch.subject, batch.after);
            let token = outbox.read(Question::Batch, request);
            self.in_flight.insert(token, batch);
        }
        shrink(&mut self.waiting);
    }

    /// Takes a part of a batch. Returns whether it was the last one, and what is complete now.
    pub(super) fn answered(
        &mut self,
        (now_ms, token): (u64, u64),
        (headers, payload): (Headers<'_>, &[u8]),
        first: u64,
        outbox: &mut Outbox,
    ) -> (bool, Option<BatchDone>) {
        let Some(batch) = self.in_flight.get_mut(&token) else { return (true, None) };
        match get::part(headers) {
            Part::Message { sequence, previous } => {
                match batch.chain.continues(sequence, previous) {
                    Some(true) if sequence == batch.after => batch.has_after = true,
                    Some(true) if sequence > batch.after => {
                        batch.messages.extend(message::parse(headers, payload));
                    }
                    Some(_) => {}
                    None => return (true, self.again(now_ms, token)),
                }
                (false, None)
            }
            Part::End { last, left, .. } if batch.chain.ends(last) => {
                let Some(mut batch) = self.in_flight.remove(&token) else { return (true, None) };
                batch.left = left;
                (true, self.complete(now_ms, batch, first, outbox))
            }
            Part::End { .. } | Part::Failed => (true, self.again(now_ms, token)),
        }
    }

    /// Has a batch asked for again a little later. Nothing is complete then.
    fn again(&mut self, now_ms: u64, token: u64) -> Option<BatchDone> {
        if let Some(mut batch) = self.in_flight.remove(&token) {
            batch.restart(now_ms + AGAIN_MS);
            self.waiting.push_back(batch);
        }
        None
    }

    fn complete(
        &mut self,
        now_ms: u64,
        mut batch: Batch,
        first: u64,
        outbox: &mut Outbox,
    ) -> Option<BatchDone> {
        // After all messages: one that ends the channel later comes to those who follow it.
        if let (Some(record), End::Unknown, 0) = (&batch.record, batch.end, batch.left) {
            let token = outbox.ask_leader(Question::End, "MSG.GET", get::last(record));
            self.unended.insert(token, Batch { at_ms: now_ms, ..batch });
            return None;
        }
        let last = batch.messages.last().map_or(batch.after, |message| message.sequence);
        // A replica that lags has answered. A filling is tried again by the channel.
        let lags = batch.left == 0 && last < batch.at_least;
        let is_read = matches!(batch.purpose, Purpose::Read { .. });
        if lags && is_read && now_ms.saturating_sub(batch.began_ms) < LAGS_MS {
            batch.restart(now_ms + AGAIN_MS);
            self.waiting.push_back(batch);
            return None;
        }
        // A page that ends before the known head has a hole at its end, unless that was erased.
        batch.lags = lags && is_read;
        let (after, later) = (batch.after, batch.later());
        match get::is_whole(after, batch.has_after, later, self.per_channel, first) {
            Some(true) if batch.lags && self.can_erase => {}
            Some(is_whole) => {
                let is_whole = is_whole && !batch.lags;
                return Some(BatchDone::new(batch, is_whole));
            }
            None => {}
        }
        self.undecided.push(batch);
        None
    }

    /// Takes the answer to a question about the end of a channel: its record, and if that is one of
    /// an end, its last message.
    pub(super) fn end_is(
        &mut self,
        (now_ms, token): (u64, u64),
        payload: &[u8],
        first: u64,
        outbox: &mut Outbox,
    ) -> Option<BatchDone> {
        let mut batch = self.unended.remove(&token)?;
        let Ok(found) = beside::found(payload) else {
            batch.restart(now_ms + AGAIN_MS);
            self.waiting.push_back(batch);
            return None;
        };
        if batch.end == End::Ended {
            let last = found.map_or(0, |found| found.sequence);
            batch.end = End::At(last);
            batch.at_least = batch.at_least.max(last);
            if batch.messages.last().map_or(batch.after, |message| message.sequence) < last {
                batch.restart(now_ms);
                self.waiting.push_back(batch);
                return None;
            }
        } else if found.as_ref().is_some_and(Found::is_of_end) {
            let request = get::last(&batch.subject);
            let token = outbox.ask_leader(Question::End, "MSG.GET", request);
            self.unended.insert(token, Batch { end: End::Ended, at_ms: now_ms, ..batch });
            return None;
        } else {
            batch.end = End::Not;
        }
        self.complete(now_ms, batch, first, outbox)
    }

    /// Asks for the stream's first and last sequence and its last erasure, if batches that were
    /// read depend on it.
    pub(super) fn ask_bounds(&mut self, now_ms: u64, subjects: &Subjects, outbox: &mut Outbox) {
        if self.bounds.is_some() || self.undecided.is_empty() {
            return;
        }
        let state = outbox.ask_state(Question::Bounds);
        let erasure = (self.can_erase && !self.is_denied).then(|| {
            let request = get::last(&subjects.all_erasures());
            outbox.ask_leader(Question::Bounds, "MSG.GET", request)
        });
        self.bounds = Some(Bounds {
            asked_ms: now_ms,
            count: self.undecided.len(),
            tokens: [state, erasure.unwrap_or(0)],
            stream: None,
            erasure: erasure.is_none().then_some(if self.can_erase { u64::MAX } else { 0 }),
        });
    }

    /// Takes an answer to these questions. Once there are all, it decides on the batches that were
    /// read before, or asks first what was erased of their channels. One that cannot be read is
    /// asked for again after a while.
    pub(super) fn bounds_are(
        &mut self,
        (now_ms, token): (u64, u64),
        payload: &[u8],
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) -> Vec<BatchDone> {
        let Some(bounds) = &mut self.bounds else { return Vec::new() };
        if token == bounds.tokens[0] {
            let info = stream::parse(payload, &Value::Null).ok();
            bounds.stream = info.map(|info| (info.first, info.last));
        } else if token == bounds.tokens[1]
            && let Ok(found) = beside::found(payload)
        {
            bounds.erasure = Some(found.map_or(0, |found| found.sequence));
        }
        let Some((stream, erasure)) = bounds.stream.zip(bounds.erasure) else { return Vec::new() };
        let count = bounds.count;
        self.bounds = None;
        let batches: Vec<Batch> = self.undecided.drain(..count).collect();
        let decide = |batch: Batch| {
            let is_whole = batch.is_within(stream);
            if is_whole && batch.after < erasure && !self.is_denied {
                let subject = subjects.erasures_beside(&batch.subject);
                let request = get::last(&subject);
                let token = outbox.ask_leader(Question::Erasures, "MSG.GET", request);
                self.unerased.insert(token, Batch { at_ms: now_ms, ..batch });
                return None;
            }
            let is_whole = is_whole && !batch.lags && batch.after >= erasure;
            Some(BatchDone::new(batch, is_whole))
        };
        batches.into_iter().filter_map(decide).collect()
    }

    /// Takes what was erased of a channel, and decides on the batch of it.
    pub(super) fn erasures_are(
        &mut self,
        now_ms: u64,
        token: u64,
        payload: &[u8],
    ) -> Option<BatchDone> {
        let mut batch = self.unerased.remove(&token)?;
        let Ok(found) = beside::found(payload) else {
            // It is read anew.
            batch.restart(now_ms + AGAIN_MS);
            self.waiting.push_back(batch);
            return None;
        };
        let erasures = Erasures::read(found.as_ref());
        let found = batch.messages.iter().map(|message| message.sequence).collect();
        let later = (&found, batch.left);
        let is_whole = batch.has_after || erasures.is_whole(batch.after, later, self.per_channel);
        let lags = batch.lags && !erasures.has(batch.at_least);
        Some(BatchDone::new(batch, is_whole && !lags))
    }

    /// The servers do not let this node publish to a subject. If that is how it reads what was
    /// erased, a position that is not there any more counts as one with a gap.
    pub(super) fn denied(&mut self, subject: &str, outbox: &mut Outbox) -> Vec<BatchDone> {
        let asks = !(self.unerased.is_empty() && self.unended.is_empty()) || self.bounds.is_some();
        if !subject.starts_with("$JS.API.STREAM.MSG.GET.") || !asks {
            return Vec::new();
        }
        self.is_denied = true;
        if let Some(bounds) = self.bounds.take() {
            bounds.tokens.iter().for_each(|token| outbox.answered(*token));
        }
        let decide = |(token, batch): (u64, Batch)| {
            outbox.answered(token);
            let is_whole = batch.has_after && !batch.lags;
            BatchDone::new(batch, is_whole)
        };
        let unended = std::mem::take(&mut self.unended).into_iter();
        unended.chain(std::mem::take(&mut self.unerased)).map(decide).collect()
    }

    /// Answers that nothing was read: the stream is away, or another one.
    pub(super) fn cancel(&mut self, outbox: &mut Outbox) {
        let bounds = self.bounds.take().map_or([0; 2], |bounds| bounds.tokens);
        self.in_flight.keys().chain(&bounds).for_each(|token| outbox.answered(*token));
        let mut unerased = std::mem::take(&mut self.unerased);
        unerased.append(&mut self.unended);
        unerased.keys().for_each(|token| outbox.answered(*token));
        let batches = self.waiting.drain(..).chain(self.undecided.drain(..));
        let asked = std::mem::take(&mut self.in_flight).into_values();
        for batch in batches.chain(asked).chain(unerased.into_values()) {
            if let Purpose::Read { token } = batch.purpose {
                outbox.report(JournalReport::Read { token, reading: None });
            }
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let is_late = |batch: &Batch| now_ms.saturating_sub(batch.at_ms) >= BATCH_MS;
        let late: Vec<_> = self
            .in_flight
            .iter()
            .chain(&self.unerased)
            .chain(&self.unended)
            .filter(|(_, batch)| is_late(batch))
            .map(|(token, _)| *token)
            .collect();
        let is_late = |bounds: &mut Bounds| now_ms.saturating_sub(bounds.asked_ms) >= BATCH_MS;
        if let Some(late) = self.bounds.take_if(is_late) {
            late.tokens.iter().for_each(|token| outbox.answered(*token));
        }
        for token in late {
            outbox.answered(token);
            let late = self.in_flight.remove(&token).or_else(|| self.unerased.remove(&token));
            let late = late.or_else(|| self.unended.remove(&token));
            if let Some(mut batch) = late {
                batch.restart(now_ms);
                self.waiting.push_back(batch);
            }
        }
    }
}

impl BatchDone {
    fn new(batch: Batch, is_whole: bool) -> BatchDone {
        let Batch { purpose, messages, left, end, .. } = batch;
        // Where more is left to read, the reader asks again.
        let ended_at = if let (End::At(last), 0) = (end, left) { Some(last) } else { None };
        BatchDone { purpose, batch: Reading { messages, left, is_whole, ended_at } }
    }
}
