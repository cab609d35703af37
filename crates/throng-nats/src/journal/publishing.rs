//! Publications under way: in order for each channel, and again until it is known what became of
//! them.
//!
//! Each has an id, under which the stream stores it once. So it can be sent again after anything:
//! a lost answer, a lost connection, a leader that died. A copy that was under way when the
//! connection was lost may still reach the stream much later, from a server that was frozen, and
//! no check before sending again excludes that. Only the id does.

mod known_keys;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use throng_core::Publication;

use super::outbox::{Outbox, Question};
use super::report::{JournalReport, Outcome};
use super::stall::Stall;
use crate::api::ack::{self, Ack};
use crate::api::{JetStreamError, message};
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};
use known_keys::{KeyId, KnownKeys};

/// Publications whose outcome is not known, at most. Beyond it they are refused: the stream does
/// not keep up. A server would refuse after 100,000 of all nodes. The engine above sees to it that
/// each channel has a share.
pub(crate) const OUTSTANDING_MAX: usize = 8_192;

/// Bytes of these publications, at most.
pub(crate) const OUTSTANDING_BYTES_MAX: usize = 128 << 20;

/// After this time without an answer a publication is sent again.
const RESEND_MS: u64 = 1_000;

/// The floor of a publication that a stream has stored which fell: nothing that it says counts
/// before its epoch is known.
const FALLEN: u64 = u64::MAX;

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

struct Outstanding {
    token: u64,
    /// Under which its answer comes.
    reply: u64,
    headers: Arc<[u8]>,
    body: Arc<[u8]>,
    key: Option<KeyId>,
    /// The stream's head when it was first sent.
    floor: u64,
    taken_ms: u64,
    /// When it is sent, or sent again; 0 for now.
    due_ms: u64,
    sends: u32,
    /// True if a copy may have been stored: it was sent, and not refused.
    is_uncertain: bool,
}

impl Outstanding {
    fn bytes(&self) -> usize {
        self.headers.len() + self.body.len()
    }
}

/// Publications under way.
pub(super) struct Publishing {
    stream: String,
    nonce: String,
    publish_ms: u64,
    payload_bytes_max: usize,
    /// By channel, oldest first. Only the first one is sent.
    channels: BTreeMap<Arc<str>, VecDeque<Outstanding>>,
    /// Channels whose first one is to be sent at once.
    ready: Vec<Arc<str>>,
    count: usize,
    bytes: usize,
    next_id: u64,
    known_keys: KnownKeys,
    /// Whether the stream stores anything.
    pub(super) stall: Stall,
}

impl Publishing {
    pub(super) fn new(stream: String, nonce: &str, publish_ms: u64) -> Publishing {
        Publishing {
            stream,
            nonce: nonce.to_owned(),
            publish_ms,
            payload_bytes_max: 0,
            channels: BTreeMap::new(),
            ready: Vec::new(),
            count: 0,
            bytes: 0,
            next_id: 0,
            known_keys: KnownKeys::default(),
            stall: Stall::default(),
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.count
    }

    pub(super) fn connected(&mut self, payload_bytes_max: usize) {
        self.payload_bytes_max = payload_bytes_max;
    }

    /// Answers are lost: all that was sent is sent again, in order.
    pub(super) fn disconnected(&mut self) {
        self.stall.begin_anew();
        self.ready.clear();
        for (suffix, queue) in &mut self.channels {
            if let Some(first) = queue.front_mut() {
                first.due_ms = 0;
                self.ready.push(Arc::clone(suffix));
            }
        }
    }

    /// The stream is another one: what it had reached before means nothing.
    pub(super) fn begin_epoch(&mut self) {
        self.known_keys.clear();
        let all = self.channels.values_mut().flatten();
        all.for_each(|outstanding| outstanding.floor = 0);
    }

    pub(super) fn publish(
        &mut self,
        now_ms: u64,
        token: u64,
        publication: &Publication,
        is_open: bool,
        outbox: &mut Outbox,
    ) {
        let outcome = match self.taken(now_ms, token, publication, is_open, outbox) {
            Ok(()) => return,
            Err(outcome) => outcome,
        };
        outbox.report(JournalReport::Published { token, outcome });
    }

    fn taken(
        &mut self,
        now_ms: u64,
        token: u64,
        publication: &Publication,
        is_open: bool,
        outbox: &mut Outbox,
    ) -> Result<(), Outcome> {
        let Some(suffix) = subject::suffix(&publication.channel) else {
            return Err(Outcome::Refused("internal logs are not kept in a stream".into()));
        };
        if !is_open || !self.stall.may_send(self.count > 0) {
            return Err(Outcome::Away);
        }
        let key = key_id(publication);
        if let Some(sequence) = key.and_then(|key| self.known_keys.find(now_ms, &key)) {
            return Err(Outcome::Stored { sequence, is_duplicate: true });
        }
        let id = self.id(key);
        let receipt = publication.receipt.as_ref().map(|_| receipt(&self.nonce, token));
        let headers = message::headers(publication, &self.stream, &id, receipt.as_deref());
        let headers: Arc<[u8]> = headers.into();
        let body: Arc<[u8]> = publication.body.bytes().into();
        let bytes = headers.len() + body.len();
        if bytes > self.payload_bytes_max {
            return Err(Outcome::TooLarge { bytes, bytes_max: self.payload_bytes_max });
        }
        if self.count >= OUTSTANDING_MAX || self.bytes + bytes > OUTSTANDING_BYTES_MAX {
            return Err(Outcome::Busy);
        }
        let outstanding = Outstanding {
            token,
            reply: outbox.token(),
            headers,
            body,
            key,
            floor: 0,
            taken_ms: now_ms,
            due_ms: 0,
            sends: 0,
            is_uncertain: false,
        };
        self.count += 1;
        self.bytes += bytes;
        let suffix: Arc<str> = suffix.into();
        // Mostly one. The first push would make room for four.
        let queue = self.channels.entry(Arc::clone(&suffix));
        let queue = queue.or_insert_with(|| VecDeque::with_capacity(1));
        queue.push_back(outstanding);
        if queue.len() == 1 {
            self.ready.push(suffix);
        }
        Ok(())
    }

    /// An id of its own, or the common id of all publications to the channel with this key.
    fn id(&mut self, key: Option<KeyId>) -> String {
        let Some(key) = key else {
            self.next_id += 1;
            return format!("{}.{}", self.nonce, self.next_id);
        };
        // Nonces have no dash.
        format!("k-{}", URL_SAFE_NO_PAD.encode(key))
    }

    /// Sends what is first in its channel and due. The stream has reached `last`.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        last: u64,
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        for suffix in std::mem::take(&mut self.ready) {
            let Some(first) = self.channels.get_mut(&suffix).and_then(VecDeque::front_mut) else {
                continue;
            };
            if first.due_ms > now_ms {
                continue;
            }
            first.due_ms = now_ms + RESEND_MS;
            if !first.is_uncertain {
                first.floor = last;
            }
            first.sends += 1;
            first.is_uncertain = true;
            let subject = subjects.ingest(&suffix);
            let content = (Arc::clone(&first.headers), Arc::clone(&first.body));
            outbox.ask_again(first.reply, Question::Ack(suffix), subject, content);
        }
    }

    /// Takes the answer to a publication. Returns what it tells the rest of the journal.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        (reply, suffix): (u64, &Arc<str>),
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) -> Option<StoreOutcome> {
        let first = self.channels.get_mut(suffix)?.front_mut()?;
        let has_key = first.key.is_some();
        if first.reply != reply {
            return None;
        }
        // Of an earlier copy nothing is known when a later one is refused.
        let is_only = first.sends == 1;
        let (outcome, stored) = match ack::parse(headers, payload) {
            // A message with a key may be an old one.
            Ack::Stored { sequence, is_duplicate }
                if sequence <= first.floor
                    && (first.floor == FALLEN || !(is_duplicate && has_key)) =>
            {
                first.floor = FALLEN;
                (None, Some(StoreOutcome::Fallen))
            }
            Ack::Stored { sequence, is_duplicate } => {
                if let Some(key) = first.key {
                    self.known_keys.add(now_ms, key, sequence);
                }
                let is_known = is_duplicate && has_key && is_only;
                let stored = StoreOutcome::At { sequence, needs_hint: is_duplicate && !is_only };
                (Some(Outcome::Stored { sequence, is_duplicate: is_known }), Some(stored))
            }
            Ack::Refused(error) if error.err_code == JetStreamError::TOO_MANY_REQUESTS => {
                first.is_uncertain &= !is_only;
                ((is_only).then_some(Outcome::Busy), None)
            }
            Ack::Refused(error) if error.is_passing() => {
                first.is_uncertain &=
                    !is_only || error.err_code == JetStreamError::DUPLICATE_IN_PROCESS;
                (None, None)
            }
            Ack::Refused(error) => {
                let refused = Outcome::Refused(error.to_string());
                (Some(if is_only { refused } else { Outcome::Unknown }), None)
            }
            Ack::Nobody => {
                first.is_uncertain &= !is_only;
                (None, None)
            }
            Ack::Unreadable => (None, None),
        };
        match outcome {
            Some(outcome) => {
                self.stall.answered();
                self.end_first(suffix, outcome, outbox);
            }
            None => {
                first.due_ms = now_ms + RETRY_MS;
                if !first.is_uncertain {
                    // As if it had never been sent.
                    first.sends = 0;
                }
            }
        }
        stored
    }

    /// Reports what became of the first publication of a channel, and goes on with the next.
    fn end_first(&mut self, suffix: &Arc<str>, outcome: Outcome, outbox: &mut Outbox) {
        let Some(queue) = self.channels.get_mut(suffix) else { return };
        let Some(first) = queue.pop_front() else { return };
        self.count -= 1;
        self.bytes -= first.bytes();
        outbox.answered(first.reply);
        outbox.report(JournalReport::Published { token: first.token, outcome });
        if queue.is_empty() {
            self.channels.remove(suffix);
        } else {
            self.ready.push(Arc::clone(suffix));
        }
    }

    /// Ends what has taken too long, and has the rest sent that is due.
    pub(super) fn tick(&mut self, now_ms: u64, is_open: bool, outbox: &mut Outbox) {
        if let Some(is_stalled) = self.stall.tick(now_ms, is_open && self.count > 0) {
            outbox.report(JournalReport::Stalled(is_stalled));
        }
        self.known_keys.tick(now_ms);
        let mut late = Vec::new();
        for (suffix, queue) in &self.channels {
            let Some(first) = queue.front() else { continue };
            if now_ms.saturating_sub(first.taken_ms) >= self.publish_ms {
                late.push(Arc::clone(suffix));
            } else if first.due_ms <= now_ms {
                self.ready.push(Arc::clone(suffix));
            }
        }
        for suffix in late {
            while let Some(first) = self.channels.get(&suffix).and_then(VecDeque::front)
                && now_ms.saturating_sub(first.taken_ms) >= self.publish_ms
            {
                let outcome = if first.is_uncertain { Outcome::Unknown } else { Outcome::Away };
                self.end_first(&suffix, outcome, outbox);
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

    fn publication(key: Option<&str>) -> Publication {
        Publication {
            channel: ChannelName::channel("a"),
            body: Body::Text("x".into()),
            content_type: None,
            idempotency_key: key.map(Into::into),
            excluded: None,
            expires_in_ms: None,
            receipt: None,
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
            publishing.connected(1 << 20);
            let (subjects, mut outbox) =
                (Subjects::new("throng", "channels"), Outbox::new("s".into(), "n"));
            outbox.connected();
            publishing.publish(0, 9, &publication(key), true, &mut outbox);
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
            let (token, Question::Ack(suffix)) = found else { panic!("{reply}") };
            let text = format!(r#"{{"stream":"s","seq":{sequence},"duplicate":{duplicate}}}"#);
            let answer = (Headers::new(b""), text.as_bytes());
            let stored = self.publishing.answered(50, (token, &suffix), answer, &mut self.outbox);
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
        sent.publishing.begin_epoch();
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

    #[test]
    fn a_node_knows_its_own_keys_when_the_stream_forgets_them() {
        let mut sent = Sent::with(Some("key"));
        sent.answer(8, false);
        let again = publication(Some("key"));
        let Sent { publishing, outbox, .. } = &mut sent;
        publishing.publish(100, 9, &again, true, outbox);
        let reported = outbox.actions.drain(..).collect::<Vec<_>>();
        let expected =
            published(8, true).into_iter().map(JournalAction::Report).collect::<Vec<_>>();
        assert_eq!(reported, expected);
        assert_eq!(publishing.outstanding(), 0);
        // Sequences of another epoch mean nothing.
        publishing.begin_epoch();
        publishing.publish(100, 9, &again, true, outbox);
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
