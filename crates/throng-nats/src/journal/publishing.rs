//! Publications under way: in order for each channel, and again until it is known what became of
//! them.
//!
//! Each has an id, under which the stream stores it once. So it can be sent again after anything:
//! a lost answer, a lost connection, a leader that died. A copy that was under way when the
//! connection was lost may still reach the stream much later, from a server that was frozen, and
//! no check before sending again excludes that. Only the id does.

mod gate;
mod known_keys;
mod pipeline;
mod replies;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use throng_core::Publication;

use super::outbox::{Outbox, Question};
use super::report::{JournalReport, KnownKey, Outcome, PublishRequest, StoredKeys};
use super::stall::Stall;
use crate::api::NatsLimit;
use crate::api::ack::{self, Ack};
use crate::api::beside::{self, Found};
use crate::api::{JetStreamError, StreamSettings, get, message};
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};
use gate::KnownRecords;
use known_keys::{KeyId, KnownKeys};
use pipeline::{FALLEN, NextStep, Original, Outstanding, Pipeline};
use replies::Replies;

/// Publications whose outcome is not known, at most. Beyond it they are refused: the stream does
/// not keep up. A server would refuse after 100,000 of all nodes. The engine above sees to it that
/// each channel has a share.
pub(crate) const OUTSTANDING_MAX: usize = 8_192;

/// Bytes of these publications, at most.
pub(crate) const OUTSTANDING_BYTES_MAX: usize = 128 << 20;

/// After a refusal that may pass, a publication is sent again.
const RETRY_MS: u64 = 100;

/// The header of a message whose publisher wants a receipt: the node and the publication.
pub(super) fn receipt(nonce: &str, token: u64) -> String {
    format!("{nonce}.{token}")
}

/// The token of the node's publication with this receipt; `None` if it is another node's.
pub fn token_of_receipt(nonce: &str, receipt: &str) -> Option<u64> {
    receipt.strip_prefix(nonce)?.strip_prefix('.')?.parse().ok()
}

/// News from an answer for the rest of the journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    At {
        sequence: u64,
        /// True if other nodes may not have got it.
        needs_hint: bool,
    },
    /// The stream has it before the sequences that it had reached when the message was sent: so it
    /// has lost messages. The publication is tried again until it is known under which epoch.
    Fallen,
}

/// Publications under way.
pub(super) struct Publishing {
    stream: String,
    nonce: String,
    publish_ms: u64,
    /// True if several servers have the stream.
    is_replicated: bool,
    /// By the suffix of the channel. None is empty.
    channels: BTreeMap<Arc<str>, Pipeline>,
    records: KnownRecords,
    /// Channels of which publications may be sent.
    ready: Vec<Arc<str>>,
    count: usize,
    bytes: usize,
    /// Of the last publication.
    number: u64,
    replies: Replies,
    known_keys: KnownKeys,
    /// Keys that were published with since they were reported.
    fresh_keys: Vec<KnownKey>,
    /// Whether the stream stores anything.
    pub(super) stall: Stall,
}

impl Publishing {
    pub(super) fn new(stream: &StreamSettings, nonce: &str, publish_ms: u64) -> Publishing {
        Publishing {
            stream: stream.name(),
            nonce: nonce.to_owned(),
            publish_ms,
            is_replicated: stream.replicas > 1,
            channels: BTreeMap::new(),
            records: KnownRecords::default(),
            ready: Vec::new(),
            count: 0,
            bytes: 0,
            number: 0,
            replies: Replies::default(),
            known_keys: KnownKeys::default(),
            fresh_keys: Vec::new(),
            stall: Stall::default(),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.count
    }

    /// True if publications to the channel with this suffix have no outcome yet.
    pub(super) fn is_under_way(&self, suffix: &str) -> bool {
        self.channels.contains_key(suffix)
    }

    /// Answers are lost: all that was sent is sent again, in order.
    pub(super) fn disconnected(&mut self) {
        self.stall.begin_anew();
        self.ready.clear();
        for (suffix, channel) in &mut self.channels {
            channel.doubt(0, 0);
            channel.gate_mut().into_iter().for_each(|gate| gate.disconnected());
            self.ready.push(Arc::clone(suffix));
        }
    }

    /// The stream is another one: what it had reached before means nothing.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.known_keys.begin(epoch);
        self.fresh_keys.clear();
        self.records.clear();
        self.channels.values_mut().for_each(Pipeline::begin_epoch);
    }

    /// Other nodes have published with these keys.
    pub(super) fn hear(&mut self, keys: &StoredKeys) {
        self.known_keys.hear(keys);
    }

    /// Takes a publication. Those of an asker to one channel are stored in their order, unless it
    /// is the server.
    pub(super) fn publish(
        &mut self,
        now_ms: u64,
        request: &PublishRequest,
        (subjects, is_open): (&Subjects, bool),
        outbox: &mut Outbox,
    ) {
        let limit = (is_open, outbox.payload_bytes_max);
        let prepared = self.prepare(now_ms, request, subjects, limit);
        let (suffix, mut outstanding) = match prepared {
            Ok(prepared) => prepared,
            Err(outcome) => {
                let token = request.token;
                return outbox.report(JournalReport::Published { token, outcome });
            }
        };
        outstanding.number = self.number;
        self.count += 1;
        self.bytes += outstanding.count_bytes();
        let (records, is_narrow) = (&self.records, self.is_replicated);
        let needs_creation = request.publication.needs_creation;
        let channel = self.channels.entry(Arc::clone(&suffix)).or_insert_with(|| {
            if request.may_end {
                Pipeline::gated(records.gate(&suffix, is_narrow, needs_creation))
            } else {
                Pipeline::new()
            }
        });
        channel.push(outstanding);
        if channel.has_work(now_ms) {
            self.ready.push(suffix);
        }
    }

    /// What is sent of a publication, and the suffix of its channel; or its outcome, if that is
    /// known at once.
    fn prepare(
        &mut self,
        now_ms: u64,
        request: &PublishRequest,
        subjects: &Subjects,
        (is_open, bytes_max): (bool, usize),
    ) -> Result<(Arc<str>, Outstanding), Outcome> {
        let PublishRequest { token, ref publication, asker, may_end, .. } = *request;
        let Some(suffix) = subject::suffix(&publication.channel) else {
            let reason = "internal logs are not kept in a stream".into();
            return Err(Outcome::Refused { reason, limit: None });
        };
        if !is_open || !self.stall.may_send(self.count > 0) {
            return Err(Outcome::Away);
        }
        let key = key_id(publication);
        if let Some(sequence) = key.and_then(|key| self.known_keys.find(now_ms, &key)) {
            return Err(Outcome::Stored { sequence, is_duplicate: true });
        }
        self.number += 1;
        let id = self.id(key);
        let receipt = publication.receipt.as_ref().map(|_| receipt(&self.nonce, token));
        let headers = message::headers(publication, &id, receipt.as_deref());
        let content = (headers.into(), publication.body.bytes().into());
        let mut outstanding = Outstanding::new(now_ms, token, asker, content);
        outstanding.key = key;
        if may_end {
            outstanding.condition_bytes = beside::condition_bytes(&subjects.record(&suffix));
            let publication = Publication { receipt: None, ..publication.clone() };
            outstanding.original = Some(Box::new(Original { publication, id, receipt }));
        }
        let bytes = outstanding.bytes();
        if bytes > bytes_max {
            return Err(Outcome::TooLarge { bytes_max });
        }
        if self.count >= OUTSTANDING_MAX || self.bytes + bytes > OUTSTANDING_BYTES_MAX {
            return Err(Outcome::Busy);
        }
        Ok((suffix.into(), outstanding))
    }

    /// An id of its own, or the common id of all publications to the channel with this key.
    fn id(&self, key: Option<KeyId>) -> String {
        let Some(key) = key else {
            return format!("{}.{}", self.nonce, self.number);
        };
        // Nonces have no dash.
        format!("k-{}", URL_SAFE_NO_PAD.encode(key))
    }

    /// Sends what may be sent. The stream has reached `last`.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        last: u64,
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        for suffix in std::mem::take(&mut self.ready) {
            self.ask_record(now_ms, &suffix, (subjects, outbox));
            while let Some(channel) = self.channels.get_mut(&suffix) {
                let bytes_max = outbox.payload_bytes_max;
                let step = channel.next_step(now_ms, bytes_max, &self.known_keys);
                match channel.admitted(step) {
                    NextStep::Wait => break,
                    NextStep::Send => {
                        let reply = |next: &_| self.replies.take(next, outbox);
                        let Some((next, reply, gate)) = channel.send(now_ms, last, reply) else {
                            break;
                        };
                        let headers = match gate {
                            Some(gate) => gate.headers(&next.headers, &subjects.record(&suffix)),
                            None => Arc::clone(&next.headers),
                        };
                        let content = (headers, Arc::clone(&next.body));
                        let question = Question::Ack(Arc::clone(&suffix), next.number);
                        outbox.ask_again(reply, question, subjects.ingest(&suffix), content);
                    }
                    NextStep::End(outcome) => {
                        let at = channel.next();
                        self.end(now_ms, (&suffix, at), outcome, outbox);
                    }
                }
            }
        }
    }

    /// Takes the answer to a publication. Returns what it tells the rest of the journal.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        (number, suffix): (u64, &Arc<str>),
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) -> Option<StoreOutcome> {
        let ack = ack::parse(&self.stream, headers, payload);
        let channel = self.channels.get_mut(suffix)?;
        let at = channel.find(number)?;
        if let (Ack::Refused(error), Some(_)) = (&ack, channel.gate())
            && error.is_conflict()
        {
            self.not_under(now_ms, (suffix, at), error.last_sequence().is_some());
            return None;
        }
        let answered = channel.get_mut(at)?;
        let has_key = answered.key.is_some();
        // Of an earlier copy nothing is known when a later one is refused.
        let is_only = answered.sends == 1;
        let (outcome, stored) = match ack {
            // A message with a key may be an old one.
            Ack::Stored { sequence, is_duplicate }
                if sequence <= answered.floor
                    && (answered.floor == FALLEN || !(is_duplicate && has_key)) =>
            {
                answered.floor = FALLEN;
                (None, Some(StoreOutcome::Fallen))
            }
            Ack::Stored { sequence, is_duplicate } => {
                if let Some(id) = answered.key {
                    self.known_keys.add(now_ms, id, sequence);
                    if !is_duplicate {
                        self.fresh_keys.push(KnownKey { id, sequence });
                    }
                }
                let is_known = is_duplicate && has_key && is_only;
                let stored = StoreOutcome::At { sequence, needs_hint: is_duplicate && !is_only };
                let is_in_order = is_known || answered.is_in_order(sequence);
                if !is_known {
                    channel.stored(at, sequence);
                }
                let outcome = Outcome::Stored { sequence, is_duplicate: is_known };
                (Some(if is_in_order { outcome } else { Outcome::Unknown }), Some(stored))
            }
            Ack::Refused(error) if error.err_code == JetStreamError::TOO_MANY_REQUESTS => {
                answered.is_uncertain &= !is_only;
                ((is_only).then_some(Outcome::Busy), None)
            }
            Ack::Refused(error) if error.is_passing() => {
                answered.is_uncertain &=
                    !is_only || error.err_code == JetStreamError::DUPLICATE_IN_PROCESS;
                (None, None)
            }
            Ack::Refused(error) => {
                let limit = NatsLimit::of(&error);
                let refused = Outcome::Refused { reason: error.advised(), limit };
                (Some(if is_only { refused } else { Outcome::Unknown }), None)
            }
            Ack::Nobody => {
                answered.is_uncertain &= !is_only;
                (None, None)
            }
            Ack::Unreadable => (None, None),
        };
        match outcome {
            Some(outcome) => {
                self.stall.answered();
                channel.widen();
                self.end(now_ms, (suffix, at), outcome, outbox);
            }
            None => channel.doubt(at, now_ms + RETRY_MS),
        }
        stored
    }

    /// Reports the outcome of a publication, and has the next one sent.
    fn end(
        &mut self,
        now_ms: u64,
        (suffix, at): (&Arc<str>, usize),
        outcome: Outcome,
        outbox: &mut Outbox,
    ) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let Some(ended) = channel.remove(at) else { return };
        self.count -= 1;
        self.bytes -= ended.counted_bytes;
        ended.reply.inspect(|reply| outbox.answered(*reply));
        if matches!(outcome, Outcome::Stored { .. }) {
            self.replies.give_back(&ended);
        }
        outbox.report(JournalReport::Published { token: ended.token, outcome });
        if channel.is_empty() {
            self.channels.remove(suffix);
        } else if channel.has_work(now_ms) {
            self.ready.push(Arc::clone(suffix));
        }
    }

    /// Asks for the record of a channel, if publications wait for it.
    fn ask_record(
        &mut self,
        now_ms: u64,
        suffix: &Arc<str>,
        (subjects, outbox): (&Subjects, &mut Outbox),
    ) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let up_to = channel.newest();
        let Some(gate) = channel.gate_mut().filter(|gate| gate.is_due(now_ms)) else { return };
        let request = get::last(&subjects.record(suffix));
        let token = outbox.ask_leader(Question::Gate(Arc::clone(suffix)), "MSG.GET", request);
        gate.asks(now_ms, token, up_to);
    }

    /// The stream has not stored the publication at this place, as its condition does not hold: the
    /// record is another one, as `is_other` says, or another message is in the way.
    fn not_under(&mut self, now_ms: u64, (suffix, at): (&Arc<str>, usize), is_other: bool) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        if let Some(refused) = channel.get_mut(at) {
            refused.is_uncertain &= refused.sends > 1;
        }
        let Some(gate) = channel.gate_mut() else { return };
        let is_at_once = gate.refused(now_ms, is_other);
        channel.doubt(at, if is_at_once { now_ms } else { now_ms + RETRY_MS });
        self.ready.push(Arc::clone(suffix));
    }

    /// Takes the answer to the question for the record of a channel.
    pub(super) fn record_is(
        &mut self,
        (now_ms, token): (u64, u64),
        suffix: &Arc<str>,
        payload: &[u8],
        outbox: &mut Outbox,
    ) {
        let gate = self.channels.get_mut(suffix).and_then(|channel| channel.gate_mut());
        let Some(gate) = gate else { return };
        let Some(up_to) = gate.asked(token) else { return };
        match beside::found(payload) {
            Ok(found) if found.as_ref().is_some_and(Found::is_of_end) => {
                self.records.insert(suffix, None);
                self.stall.answered();
                self.has_ended(now_ms, (suffix, up_to), outbox);
            }
            Ok(found) => {
                let sequence = found.as_ref().map_or(0, |found| found.sequence);
                let record = found.and_then(|found| found.record()).map(Arc::new);
                gate.is_known(sequence, record.clone());
                self.records.insert(suffix, Some((sequence, record)));
            }
            Err(error) if error.is_passing() => gate.reads_at(now_ms + RETRY_MS),
            Err(error) => {
                let limit = NatsLimit::of(&error);
                let refused = Outcome::Refused { reason: error.advised(), limit };
                self.end_all(now_ms, suffix, &refused, outbox);
            }
        }
        self.ready.push(Arc::clone(suffix));
    }

    /// A channel had ended after its publications up to this number were taken.
    fn has_ended(&mut self, now_ms: u64, (suffix, up_to): (&Arc<str>, u64), outbox: &mut Outbox) {
        let mut at = 0;
        while let Some(next) = self.channels.get_mut(suffix).and_then(|it| it.get_mut(at)) {
            // Whether one that was sent is stored, its answer says.
            let outcome = match () {
                () if next.number > up_to => break,
                () if !next.is_uncertain => Some(Outcome::Ended),
                () => next.is_overdue(now_ms).then_some(Outcome::Unknown),
            };
            match outcome {
                Some(outcome) => self.end(now_ms, (suffix, at), outcome, outbox),
                None => at += 1,
            }
        }
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let has_more = channel.newest() > up_to;
        if let Some(gate) = channel.gate_mut() {
            gate.reads_at(if has_more { now_ms } else { now_ms + RETRY_MS });
        }
    }

    /// Ends all publications to a channel that are not stored for certain.
    fn end_all(&mut self, now_ms: u64, suffix: &Arc<str>, outcome: &Outcome, outbox: &mut Outbox) {
        while let Some(oldest) = self.channels.get_mut(suffix).and_then(|it| it.get_mut(0)) {
            let outcome = if oldest.is_uncertain { Outcome::Unknown } else { outcome.clone() };
            self.end(now_ms, (suffix, 0), outcome, outbox);
        }
    }

    /// The servers do not let this node publish to a subject. If that is how it reads records,
    /// nothing can be published that depends on one.
    pub(super) fn denied(&mut self, now_ms: u64, subject: &str, error: &str, outbox: &mut Outbox) {
        if !subject.starts_with("$JS.API.STREAM.MSG.GET.") {
            return;
        }
        let reason = format!("NATS does not let this node publish to {subject}: {error}");
        let refused = Outcome::Refused { reason, limit: None };
        let all = self.channels.iter_mut();
        let waiting = all.filter_map(|(suffix, channel)| {
            let is_open = channel.gate_mut().is_none_or(|gate| gate.is_open());
            (!is_open).then(|| Arc::clone(suffix))
        });
        for suffix in waiting.collect::<Vec<_>>() {
            self.end_all(now_ms, &suffix, &refused, outbox);
        }
    }

    /// Nothing is sent for now: too much waits to be written. Each tick looks again.
    pub(super) fn pause(&mut self) {
        self.ready.clear();
    }

    /// Ends what has taken too long, and has the rest sent that is due.
    pub(super) fn tick(&mut self, now_ms: u64, is_open: bool, outbox: &mut Outbox) {
        if let Some(is_stalled) = self.stall.tick(now_ms, is_open && self.count > 0) {
            outbox.report(JournalReport::Stalled(is_stalled));
        }
        self.known_keys.tick(now_ms);
        if !self.fresh_keys.is_empty() {
            outbox.report(JournalReport::Keys(std::mem::take(&mut self.fresh_keys)));
        }
        let (mut late, publish_ms) = (Vec::new(), self.publish_ms);
        let is_late = |oldest: &Outstanding| now_ms.saturating_sub(oldest.taken_ms) >= publish_ms;
        for (suffix, channel) in &mut self.channels {
            channel.doubt_if_due(now_ms);
            channel.gate_mut().into_iter().for_each(|gate| gate.tick(now_ms));
            if channel.oldest().is_some_and(is_late) {
                late.push(Arc::clone(suffix));
            } else if channel.has_work(now_ms) {
                self.ready.push(Arc::clone(suffix));
            }
        }
        for suffix in late {
            let oldest = |all: &BTreeMap<Arc<str>, Pipeline>| {
                let oldest = all.get(&suffix)?.oldest()?;
                is_late(oldest).then(|| oldest.unanswered())
            };
            while let Some(outcome) = oldest(&self.channels) {
                self.end(now_ms, (&suffix, 0), outcome, outbox);
            }
        }
    }
}

/// The identifier of a publication's key.
pub(super) fn key_id(publication: &Publication) -> Option<KeyId> {
    let key = publication.idempotency_key.as_ref()?;
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(publication.channel.key().as_bytes());
    // No name contains it.
    hash.update(&[0]);
    hash.update(key.scoped().as_bytes());
    hash.finish().as_ref()[..16].try_into().ok()
}
