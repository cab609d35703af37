//! Publications under way: in order for each channel, and again until it is known what became of
//! them.
//!
//! Each has an id, under which the stream stores it once. So it can be sent again after anything:
//! a lost answer, a lost connection, a leader that died. A copy that was under way when the
//! connection was lost may still reach the stream much later, from a server that was frozen, and
//! no check before sending again excludes that. Only the id does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use throng_core::Publication;

use super::outbox::{Outbox, Question};
use super::report::{Outcome, Report};
use super::stall::Stall;
use crate::api::ack::{self, Ack};
use crate::api::{ApiError, message};
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};

/// Publications whose outcome is not known, at most. Beyond it they are refused: the stream does
/// not keep up. A server would refuse after 100,000 of all nodes.
const OUTSTANDING_MAX: usize = 4_096;

/// Bytes of these publications, at most.
const OUTSTANDING_BYTES_MAX: usize = 64 << 20;

/// After this time without an answer a publication is sent again.
const RESEND_MS: u64 = 1_000;

/// After a refusal that may pass, a publication is sent again.
const RETRY_MS: u64 = 100;

/// What a message carries whose publisher wants a receipt: which node and which publication.
fn receipt(nonce: &str, token: u64) -> String {
    format!("{nonce}.{token}")
}

/// The token of the node's publication with this receipt; `None` if it is another node's.
pub fn token_of_receipt(nonce: &str, receipt: &str) -> Option<u64> {
    receipt.strip_prefix(nonce)?.strip_prefix('.')?.parse().ok()
}

/// What the rest of the journal learns from an answer.
pub(super) struct Stored {
    pub(super) sequence: u64,
    /// Whether other nodes may not have got it.
    pub(super) needs_hint: bool,
}

struct Outstanding {
    token: u64,
    /// Under which its answer comes.
    reply: u64,
    headers: Arc<[u8]>,
    body: Arc<[u8]>,
    has_key: bool,
    taken_ms: u64,
    /// When it is sent, or sent again; 0 for now.
    due_ms: u64,
    sends: u32,
    /// Whether a copy may have been stored: it was sent, and not refused.
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
        outbox.report(Report::Published { token, outcome });
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
        let id = self.id(publication);
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
            has_key: publication.idempotency_key.is_some(),
            taken_ms: now_ms,
            due_ms: 0,
            sends: 0,
            is_uncertain: false,
        };
        self.count += 1;
        self.bytes += bytes;
        let suffix: Arc<str> = suffix.into();
        let queue = self.channels.entry(Arc::clone(&suffix)).or_default();
        queue.push_back(outstanding);
        if queue.len() == 1 {
            self.ready.push(suffix);
        }
        Ok(())
    }

    /// An id of its own, or that of all publications to the channel with this key.
    fn id(&mut self, publication: &Publication) -> String {
        let Some(key) = &publication.idempotency_key else {
            self.next_id += 1;
            return format!("{}.{}", self.nonce, self.next_id);
        };
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(publication.channel.key().as_bytes());
        // No name contains it.
        hash.update(&[0]);
        hash.update(key.as_bytes());
        // Nonces have no dash.
        format!("k-{}", URL_SAFE_NO_PAD.encode(&hash.finish().as_ref()[..16]))
    }

    /// Sends what is first in its channel and due.
    pub(super) fn send(&mut self, now_ms: u64, subjects: &Subjects, outbox: &mut Outbox) {
        for suffix in std::mem::take(&mut self.ready) {
            let Some(first) = self.channels.get_mut(&suffix).and_then(VecDeque::front_mut) else {
                continue;
            };
            if first.due_ms > now_ms {
                continue;
            }
            first.due_ms = now_ms + RESEND_MS;
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
    ) -> Option<Stored> {
        let first = self.channels.get_mut(suffix)?.front_mut()?;
        if first.reply != reply {
            return None;
        }
        // Of an earlier copy nothing is known when a later one is refused.
        let is_only = first.sends == 1;
        let (outcome, stored) = match ack::parse(headers, payload) {
            Ack::Stored { sequence, is_duplicate } => {
                let is_known = is_duplicate && first.has_key && is_only;
                let stored = Stored { sequence, needs_hint: is_duplicate && !is_only };
                (Some(Outcome::Stored { sequence, is_duplicate: is_known }), Some(stored))
            }
            Ack::Refused(error) if error.err_code == ApiError::TOO_MANY_REQUESTS => {
                first.is_uncertain &= !is_only;
                ((is_only).then_some(Outcome::Busy), None)
            }
            Ack::Refused(error) if error.is_passing() => {
                first.is_uncertain &= !is_only || error.err_code == ApiError::DUPLICATE_IN_PROCESS;
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
        outbox.report(Report::Published { token: first.token, outcome });
        if queue.is_empty() {
            self.channels.remove(suffix);
        } else {
            self.ready.push(Arc::clone(suffix));
        }
    }

    /// Ends what has taken too long, and has the rest sent that is due.
    pub(super) fn tick(&mut self, now_ms: u64, is_open: bool, outbox: &mut Outbox) {
        if let Some(is_stalled) = self.stall.tick(now_ms, is_open && self.count > 0) {
            outbox.report(Report::Stalled(is_stalled));
        }
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
