//! Reading channels: batches from the stream, to fill channels and for whoever asks.

use std::collections::{BTreeMap, VecDeque};

use super::outbox::{Outbox, Question};
use super::queue::shrink;
use super::report::{JournalReport, Reading};
use super::subscription::Subscription;
use crate::api::StreamSettings;
use crate::api::get::{self, Chain, Part};
use crate::api::message::{self, StoredMessage};
use crate::protocol::headers::Headers;

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
    /// When it was asked for, or is to be.
    at_ms: u64,
    began_ms: u64,
}

impl Batch {
    /// Forgets what has come: it is asked for again.
    fn restart(&mut self, at_ms: u64) {
        self.messages.clear();
        self.chain = Chain::default();
        self.has_after = false;
        self.at_ms = at_ms;
    }
}

/// Batches that wait or are read.
pub(super) struct Readings {
    per_channel: u64,
    waiting: VecDeque<Batch>,
    in_flight: BTreeMap<u64, Batch>,
    /// Complete but for the question whether they are whole.
    undecided: Vec<Batch>,
    /// The question about the first and last sequence: its token, when it was asked, and how many
    /// of `undecided` were read before.
    bounds: Option<(u64, u64, usize)>,
}

impl Readings {
    pub(super) fn new(settings: &StreamSettings) -> Readings {
        Readings {
            per_channel: settings.per_channel(),
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            undecided: Vec::new(),
            bounds: None,
        }
    }

    /// True if a batch would be sent at once.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() + self.waiting.len() < IN_FLIGHT_MAX
    }

    /// Reads the messages after a sequence, at least up to another one. Returns whether there is
    /// room for that.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        purpose: Purpose,
        subject: String,
        (after, at_least): (u64, u64),
    ) -> bool {
        if self.waiting.len() + self.in_flight.len() + self.undecided.len() >= READS_MAX {
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
        now_ms: u64,
        token: u64,
        headers: Headers<'_>,
        payload: &[u8],
        first: u64,
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
                (true, self.complete(now_ms, batch, first))
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

    fn complete(&mut self, now_ms: u64, mut batch: Batch, first: u64) -> Option<BatchDone> {
        let last = batch.messages.last().map_or(batch.after, |message| message.sequence);
        // A replica that lags has answered. A filling is tried again by the channel.
        let lags = batch.left == 0 && last < batch.at_least;
        let is_read = matches!(batch.purpose, Purpose::Read { .. });
        if lags && is_read && now_ms.saturating_sub(batch.began_ms) < LAGS_MS {
            batch.restart(now_ms + AGAIN_MS);
            self.waiting.push_back(batch);
            return None;
        }
        let later = batch.messages.len() as u64 + batch.left;
        let is_whole = get::is_whole(batch.after, batch.has_after, later, self.per_channel, first);
        // A page that ends before the known head has a hole at its end.
        match is_whole.map(|is_whole| is_whole && !(lags && is_read)) {
            Some(is_whole) => Some(BatchDone::new(batch, is_whole)),
            None => {
                self.undecided.push(batch);
                None
            }
        }
    }

    /// Asks for the stream's first and last sequence, if batches that were read depend on it.
    pub(super) fn ask_bounds(&mut self, now_ms: u64, outbox: &mut Outbox) {
        if self.bounds.is_none() && !self.undecided.is_empty() {
            let token = outbox.ask_state(Question::Bounds);
            self.bounds = Some((token, now_ms, self.undecided.len()));
        }
    }

    /// Takes the stream's first and last sequence, and decides on the batches that were read before
    /// they were asked for.
    pub(super) fn bounds_are(&mut self, token: u64, (first, last): (u64, u64)) -> Vec<BatchDone> {
        let decide = |batch: Batch| {
            // Nobody has a position beyond the stream's head, unless it was made up. The source of
            // a fill is known to be there.
            let is_reached = batch.after <= last || matches!(batch.purpose, Purpose::Fill(_));
            let is_whole = is_reached && batch.after.saturating_add(1) >= first;
            BatchDone::new(batch, is_whole)
        };
        let Some((_, _, count)) = self.bounds.take_if(|(asked, ..)| *asked == token) else {
            return Vec::new();
        };
        self.undecided.drain(..count).map(decide).collect()
    }

    /// Answers that nothing was read: the stream is away, or another one.
    pub(super) fn cancel(&mut self, outbox: &mut Outbox) {
        for token in
            self.in_flight.keys().copied().chain(self.bounds.take().map(|(token, ..)| token))
        {
            outbox.answered(token);
        }
        let batches = self.waiting.drain(..).chain(self.undecided.drain(..));
        for batch in batches.chain(std::mem::take(&mut self.in_flight).into_values()) {
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
            .filter(|(_, batch)| is_late(batch))
            .map(|(token, _)| *token)
            .collect();
        if let Some((token, asked_ms, _)) = self.bounds
            && now_ms.saturating_sub(asked_ms) >= BATCH_MS
        {
            outbox.answered(token);
            self.bounds = None;
        }
        for token in late {
            outbox.answered(token);
            if let Some(mut batch) = self.in_flight.remove(&token) {
                batch.restart(now_ms);
                self.waiting.push_back(batch);
            }
        }
    }
}

impl BatchDone {
    fn new(batch: Batch, is_whole: bool) -> BatchDone {
        let Batch { purpose, messages, left, .. } = batch;
        BatchDone { purpose, batch: Reading { messages, left, is_whole } }
    }
}
