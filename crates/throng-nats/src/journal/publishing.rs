//! Publications under way: in order for each channel, and again until it is known what became of
//! them.
//!
//! Each has an id, under which the stream stores it once. So it can be sent again after anything:
//! a lost answer, a lost connection, a leader that died. A copy that was under way when the
//! connection was lost may still reach the stream much later, from a server that was frozen, and
//! no check before sending again excludes that. Only the id does.

mod known_keys;
mod pipeline;
mod replies;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use throng_core::{AskerId, Publication};

use super::outbox::{Outbox, Question};
use super::report::{JournalReport, KnownKey, Outcome, StoredKeys};
use super::stall::Stall;
use crate::api::NatsLimit;
use crate::api::ack::{self, Ack};
use crate::api::{JetStreamError, message};
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};
use known_keys::{KeyId, KnownKeys};
use pipeline::{FALLEN, NextStep, Outstanding, Pipeline};
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
fn receipt(nonce: &str, token: u64) -> String {
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
    /// By the suffix of the channel. None is empty.
    channels: BTreeMap<Arc<str>, Pipeline>,
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
    pub(super) fn new(stream: String, nonce: &str, publish_ms: u64) -> Publishing {
        Publishing {
            stream,
            nonce: nonce.to_owned(),
            publish_ms,
            channels: BTreeMap::new(),
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
            self.ready.push(Arc::clone(suffix));
        }
    }

    /// The stream is another one: what it had reached before means nothing.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.known_keys.begin(epoch);
        self.fresh_keys.clear();
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
        token: u64,
        (publication, asker): (&Publication, AskerId),
        is_open: bool,
        outbox: &mut Outbox,
    ) {
        let limit = (is_open, outbox.payload_bytes_max);
        let prepared = self.prepare(now_ms, token, (publication, asker), limit);
        let (suffix, mut outstanding) = match prepared {
            Ok(prepared) => prepared,
            Err(outcome) => {
                return outbox.report(JournalReport::Published { token, outcome });
            }
        };
        outstanding.number = self.number;
        self.count += 1;
        self.bytes += outstanding.bytes();
        let channel = self.channels.entry(Arc::clone(&suffix)).or_insert_with(Pipeline::new);
        channel.push(outstanding);
        if channel.is_ready(now_ms) {
            self.ready.push(suffix);
        }
    }

    /// What is sent of a publication, and the suffix of its channel; or its outcome, if that is
    /// known at once.
    fn prepare(
        &mut self,
        now_ms: u64,
        token: u64,
        (publication, asker): (&Publication, AskerId),
        (is_open, bytes_max): (bool, usize),
    ) -> Result<(Arc<str>, Outstanding), Outcome> {
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
            while let Some(channel) = self.channels.get_mut(&suffix) {
                let bytes_max = outbox.payload_bytes_max;
                match channel.next_step(now_ms, bytes_max, &self.known_keys) {
                    NextStep::Wait => break,
                    NextStep::Send => {
                        let reply = |next: &_| self.replies.take(next, outbox);
                        let Some((next, reply)) = channel.send(now_ms, last, reply) else { break };
                        let content = (Arc::clone(&next.headers), Arc::clone(&next.body));
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
        let channel = self.channels.get_mut(suffix)?;
        let at = channel.find(number)?;
        let answered = channel.get_mut(at)?;
        let has_key = answered.key.is_some();
        // Of an earlier copy nothing is known when a later one is refused.
        let is_only = answered.sends == 1;
        let (outcome, stored) = match ack::parse(&self.stream, headers, payload) {
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
        self.bytes -= ended.bytes();
        ended.reply.inspect(|reply| outbox.answered(*reply));
        if matches!(outcome, Outcome::Stored { .. }) {
            self.replies.give_back(&ended);
        }
        outbox.report(JournalReport::Published { token: ended.token, outcome });
        if channel.is_empty() {
            self.channels.remove(suffix);
        } else if channel.is_ready(now_ms) {
            self.ready.push(Arc::clone(suffix));
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
            if channel.oldest().is_some_and(is_late) {
                late.push(Arc::clone(suffix));
            } else if channel.is_ready(now_ms) {
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
fn key_id(publication: &Publication) -> Option<KeyId> {
    let key = publication.idempotency_key.as_ref()?;
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(publication.channel.key().as_bytes());
    // No name contains it.
    hash.update(&[0]);
    hash.update(key.scoped().as_bytes());
    hash.finish().as_ref()[..16].try_into().ok()
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, ChannelName};

    use super::super::outbox::JournalAction;
    use super::*;

    const ASKER: AskerId = AskerId::of_connection(7);

    fn publication(key: Option<&str>) -> Publication {
        Publication {
            idempotency_key: key.map(Into::into),
            ..Publication::new(ChannelName::channel("a"), Body::Text("x".into()))
        }
    }

    /// A publication that was sent when the stream had reached 7.
    struct Sent {
        publishing: Publishing,
        outbox: Outbox,
        subjects: Subjects,
    }

    impl Sent {
        fn with(key: Option<&str>) -> Sent {
            let mut publishing = Publishing::new("s".into(), "n", 4_000);
            let (subjects, mut outbox) =
                (Subjects::new("throng", "channels"), Outbox::new("s".into(), "n"));
            outbox.connected(1 << 20);
            publishing.publish(0, 9, (&publication(key), ASKER), true, &mut outbox);
            let mut sent = Sent { publishing, outbox, subjects };
            sent.send(0, 7);
            sent
        }

        fn send(&mut self, now_ms: u64, last: u64) {
            self.publishing.tick(now_ms, true, &mut self.outbox);
            self.publishing.send(now_ms, last, &self.subjects, &mut self.outbox);
        }

        /// Answers what was sent last. Returns also what is reported of it.
        fn answer(
            &mut self,
            sequence: u64,
            duplicate: bool,
        ) -> (Option<StoreOutcome>, Vec<JournalReport>) {
            let mut sent = self.outbox.actions.drain(..).rev();
            let reply = sent.find_map(|action| match action {
                JournalAction::Publish { reply, .. } => reply,
                _ => None,
            });
            drop(sent);
            let reply = reply.expect("it was sent");
            let found = self.outbox.question(&reply).expect("it is open");
            let (_, Question::Ack(suffix, number)) = found else { panic!("{reply}") };
            let text = format!(r#"{{"stream":"s","seq":{sequence},"duplicate":{duplicate}}}"#);
            let answer = (Headers::new(b""), text.as_bytes());
            let stored = self.publishing.answered(50, (number, &suffix), answer, &mut self.outbox);
            let reported = self.outbox.actions.drain(..).filter_map(|action| match action {
                JournalAction::Report(report) => Some(report),
                _ => None,
            });
            (stored, reported.collect())
        }
    }

    fn published(sequence: u64, is_duplicate: bool) -> Vec<JournalReport> {
        let outcome = Outcome::Stored { sequence, is_duplicate };
        vec![JournalReport::Published { token: 9, outcome }]
    }

    #[test]
    fn an_answer_of_a_stream_that_fell_waits_for_the_epoch() {
        let mut sent = Sent::with(None);
        assert_eq!(sent.answer(7, false), (Some(StoreOutcome::Fallen), vec![]));
        // It is not known yet.
        sent.send(200, 7);
        assert_eq!(sent.answer(7, true), (Some(StoreOutcome::Fallen), vec![]));
        sent.publishing.begin_epoch(9);
        sent.send(400, 7);
        let stored = StoreOutcome::At { sequence: 7, needs_hint: true };
        assert_eq!(sent.answer(7, true), (Some(stored), published(7, false)));
    }

    #[test]
    fn what_comes_after_what_was_reached_is_passed_on_at_once() {
        let mut sent = Sent::with(None);
        let stored = StoreOutcome::At { sequence: 8, needs_hint: false };
        assert_eq!(sent.answer(8, false), (Some(stored), published(8, false)));
    }

    /// Publishes another message. Returns the subject of its answer.
    fn next_reply(sent: &mut Sent, key: Option<&str>) -> String {
        let Sent { publishing, outbox, .. } = sent;
        publishing.publish(0, 9, (&publication(key), ASKER), true, outbox);
        sent.send(60, 8);
        let mut replies = sent.outbox.actions.iter().rev().filter_map(|action| match action {
            JournalAction::Publish { reply, .. } => reply.clone(),
            _ => None,
        });
        replies.next().expect("it was sent")
    }

    #[test]
    fn the_subject_of_an_answer_is_used_again() {
        let mut sent = Sent::with(None);
        sent.answer(8, false);
        let [second, third] = [(); 2].map(|()| next_reply(&mut sent, None));
        assert_eq!(second, "_INBOX.n.2", "the first one is stored");
        assert_ne!(third, second, "the second one has no answer yet");
    }

    #[test]
    fn a_second_answer_is_not_taken_for_the_next_publication() {
        let mut sent = Sent::with(None);
        sent.answer(8, false);
        assert_eq!(next_reply(&mut sent, None), "_INBOX.n.2");
        assert_eq!(sent.answer(8, true), (Some(StoreOutcome::Fallen), vec![]));
    }

    #[test]
    fn a_subject_to_which_more_may_come_is_not_used_again() {
        let mut sent = Sent::with(Some("key"));
        sent.answer(8, false);
        assert_ne!(next_reply(&mut sent, None), "_INBOX.n.2", "it had a key");
        let mut sent = Sent::with(None);
        sent.publishing.disconnected();
        sent.send(50, 7);
        sent.answer(8, false);
        assert_ne!(next_reply(&mut sent, None), "_INBOX.n.2", "it was sent twice");
        let mut sent = Sent::with(None);
        sent.answer(8, false);
        assert_ne!(next_reply(&mut sent, Some("key")), "_INBOX.n.2", "this one has a key");
    }

    #[test]
    fn a_message_beyond_a_lowered_limit_is_not_sent_again() {
        for (is_sent, expected) in
            [(true, Outcome::Unknown), (false, Outcome::TooLarge { bytes_max: 1 })]
        {
            let mut sent = Sent::with(None);
            if !is_sent {
                let one = publication(None);
                let Sent { publishing, outbox, .. } = &mut sent;
                *publishing = Publishing::new("s".into(), "n", 4_000);
                publishing.publish(0, 9, (&one, ASKER), true, outbox);
            }
            sent.publishing.disconnected();
            sent.outbox.actions.clear();
            sent.outbox.connected(1);
            sent.send(100, 7);
            let ended = JournalReport::Published { token: 9, outcome: expected };
            assert!(sent.outbox.actions.contains(&JournalAction::Report(ended)));
            assert_eq!(sent.publishing.outstanding(), 0);
        }
    }

    #[test]
    fn nothing_is_sent_while_too_much_waits_to_be_written() {
        let mut sent = Sent::with(None);
        sent.outbox.actions.clear();
        for now_ms in (2_000..3_000).step_by(50) {
            sent.publishing.tick(now_ms, true, &mut sent.outbox);
            sent.publishing.pause();
        }
        assert!(sent.outbox.actions.is_empty() && sent.publishing.ready.is_empty());
        sent.send(3_000, 7);
        assert_eq!(sent.outbox.actions.len(), 1);
    }

    #[test]
    fn a_node_knows_its_own_keys_when_the_stream_forgets_them() {
        let mut sent = Sent::with(Some("key"));
        sent.answer(8, false);
        let again = publication(Some("key"));
        let Sent { publishing, outbox, .. } = &mut sent;
        publishing.publish(100, 9, (&again, ASKER), true, outbox);
        let reported = outbox.actions.drain(..).collect::<Vec<_>>();
        let expected =
            published(8, true).into_iter().map(JournalAction::Report).collect::<Vec<_>>();
        assert_eq!(reported, expected);
        assert_eq!(publishing.outstanding(), 0);
        // Sequences of another epoch mean nothing.
        publishing.begin_epoch(9);
        publishing.publish(100, 9, (&again, ASKER), true, outbox);
        assert_eq!(publishing.outstanding(), 1);
    }

    #[test]
    fn a_key_that_was_known_has_an_old_sequence() {
        let mut sent = Sent::with(Some("key"));
        let stored = StoreOutcome::At { sequence: 3, needs_hint: false };
        assert_eq!(sent.answer(3, true), (Some(stored), published(3, true)));
        let mut sent = Sent::with(Some("key"));
        assert_eq!(sent.answer(3, false).0, Some(StoreOutcome::Fallen), "it is new");
        sent.send(200, 7);
        assert_eq!(sent.answer(3, true).0, Some(StoreOutcome::Fallen), "and is no old one now");
    }
}
