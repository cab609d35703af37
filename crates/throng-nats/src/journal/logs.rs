//! Requests about logs: changes of several messages under conditions, records, and erasure.
//!
//! The requests about a channel are handled one after another. Each reads from the leader how the
//! log is, and sends what it has to under the condition that it is still so. A refusal begins anew.
//!
//! # Invariants
//!
//! * A change waits until all earlier publications to its channel are answered, and later ones wait
//!   for its outcome: so it is stored between them.
//! * A change whose answer is lost is not sent again: it may be stored.
//! * Messages of a change for a channel that may end are stored only if the record is the one that
//!   was read, and is none of an end.
//! * A change that wants a certain head of a log without messages is sent only after the leader
//!   has said which sequences the stream has: what this node knew of that before may be seconds
//!   old, and a later message may have come and expired.
//! * What is erased is written down before it is erased. So an erasure can begin anew at any time.
//! * A message that is replaced is written down as erased together with the new one, so one change
//!   alone replaces it.

mod batch;
mod context;
mod edit;
mod request;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::outbox::Outbox;
use super::publishing::Publishing;
use super::report::{JournalReport, LogOutcome, LogRequest, Outcome, PublishRequest};
use crate::api::stream::StreamAbilities;
use crate::protocol::headers::Headers;
use crate::subject;
use request::{Next, OpenRequest};

pub(super) use batch::{BATCH_MAX, Entry, only_last, require, send};
pub(super) use context::LogContext;
pub(super) use edit::{NO_BATCHES, TOO_MANY};
pub(super) use request::LogNews;
pub(super) use view::LogView;

enum Queued {
    Request(Box<OpenRequest>),
    /// One that came after a change.
    Publication(PublishRequest),
}

/// See the module.
pub(super) struct Logs {
    stream: String,
    nonce: String,
    publish_ms: u64,
    pub(super) abilities: StreamAbilities,
    /// By the suffix of the channel, the oldest first. None is empty.
    channels: BTreeMap<Arc<str>, VecDeque<Queued>>,
    /// Channels whose oldest request may begin.
    ready: Vec<Arc<str>>,
    next_batch: u64,
}

impl Logs {
    pub(super) fn new(stream: String, nonce: &str, publish_ms: u64) -> Logs {
        Logs {
            stream,
            nonce: nonce.to_owned(),
            publish_ms,
            abilities: StreamAbilities::default(),
            channels: BTreeMap::new(),
            ready: Vec::new(),
            next_batch: 0,
        }
    }

    /// Requests without an outcome, and publications that wait for one.
    pub(super) fn outstanding(&self) -> usize {
        self.channels.values().map(VecDeque::len).sum()
    }

    /// Takes a request about the channel with this suffix, and whether a part of what it erases may
    /// be erased already.
    pub(super) fn take(
        &mut self,
        now_ms: u64,
        token: u64,
        suffix: Arc<str>,
        (request, has_erased): (LogRequest, bool),
    ) {
        let request = Box::new(OpenRequest::new(now_ms, token, request, has_erased));
        let queue = self.channels.entry(Arc::clone(&suffix)).or_default();
        queue.push_back(Queued::Request(request));
        if queue.len() == 1 {
            self.ready.push(suffix);
        }
    }

    /// Keeps a publication that came after a change of its channel; gives it back if there is none.
    pub(super) fn hold(&mut self, published: PublishRequest) -> Option<PublishRequest> {
        let is_behind = |queued: &Queued| match queued {
            Queued::Request(request) => request.is_change(),
            Queued::Publication(_) => true,
        };
        // Mostly nothing is changed.
        let suffix =
            (!self.channels.is_empty()).then(|| subject::suffix(&published.publication.channel));
        let queue = self.channels.get_mut(&*suffix.flatten().unwrap_or_default());
        match queue.filter(|queue| queue.iter().any(is_behind)) {
            Some(queue) => {
                queue.push_back(Queued::Publication(published));
                None
            }
            None => Some(published),
        }
    }

    /// Begins the requests that may, and hands on the publications that have waited.
    pub(super) fn go_on(
        &mut self,
        is_open: bool,
        publishing: &mut Publishing,
        context: &mut LogContext<'_>,
    ) {
        for suffix in std::mem::take(&mut self.ready) {
            while let Some(queue) = self.channels.get_mut(&suffix) {
                let Some(Queued::Request(request)) = queue.front_mut() else {
                    if let Some(Queued::Publication(request)) = queue.pop_front() {
                        let about = (context.subjects, is_open);
                        publishing.publish(context.now_ms, &request, about, context.outbox);
                    }
                    self.forget_if_empty(&suffix);
                    continue;
                };
                if !request.waits() {
                    break;
                }
                let is_behind = request.is_change() && publishing.is_under_way(&suffix);
                if !is_open || is_behind || !request.is_due(context.now_ms) {
                    self.ready.push(suffix);
                    break;
                }
                match request.begin(&suffix, self.abilities, context) {
                    Some(outcome) => self.end(&suffix, outcome, context.outbox),
                    None => break,
                }
            }
        }
    }

    fn forget_if_empty(&mut self, suffix: &Arc<str>) {
        if self.channels.get(suffix).is_some_and(VecDeque::is_empty) {
            self.channels.remove(suffix);
        }
    }

    /// The oldest request about a channel has this outcome.
    fn end(&mut self, suffix: &Arc<str>, outcome: LogOutcome, outbox: &mut Outbox) {
        let queue = self.channels.get_mut(suffix);
        if let Some(Queued::Request(ended)) = queue.and_then(VecDeque::pop_front) {
            ended.forget(outbox);
            outbox.report(JournalReport::Log { token: ended.token, outcome });
        }
        self.forget_if_empty(suffix);
    }

    /// Takes an answer. Returns what it tells the rest of the journal.
    pub(super) fn answered(
        &mut self,
        (token, suffix): (u64, &Arc<str>),
        answer: (Headers<'_>, &[u8]),
        context: &mut LogContext<'_>,
    ) -> Option<LogNews> {
        let Some(Queued::Request(request)) = self.channels.get_mut(suffix)?.front_mut() else {
            return None;
        };
        let names = (suffix, &*self.stream, &*self.nonce, self.abilities);
        let (next, news) = request.answered(token, answer, names, &mut self.next_batch, context);
        match next {
            Next::Wait => {}
            Next::Again => self.ready.push(Arc::clone(suffix)),
            Next::End(outcome) => {
                self.end(suffix, outcome, context.outbox);
                self.ready.push(Arc::clone(suffix));
            }
        }
        news
    }

    /// Answers are lost.
    pub(super) fn disconnected(&mut self, outbox: &mut Outbox) {
        self.restart(outbox, OpenRequest::disconnected);
    }

    /// The stream is another one: no condition means anything any more.
    pub(super) fn begin_epoch(&mut self, outbox: &mut Outbox) {
        self.restart(outbox, |request| Some(request.unanswered()));
    }

    /// Has the oldest request of each channel end with an outcome, or begin anew.
    fn restart(
        &mut self,
        outbox: &mut Outbox,
        outcome: impl Fn(&mut OpenRequest) -> Option<LogOutcome>,
    ) {
        let suffixes: Vec<Arc<str>> = self.channels.keys().cloned().collect();
        for suffix in &suffixes {
            let queue = self.channels.get_mut(suffix);
            let front = queue.and_then(|queue| queue.front_mut());
            let Some(Queued::Request(request)) = front else { continue };
            request.forget(outbox);
            if let Some(outcome) = outcome(request) {
                self.end(suffix, outcome, outbox);
            }
        }
        self.ready = suffixes;
    }

    /// The servers do not let this node publish to a subject.
    pub(super) fn denied(&mut self, subject: &str, error: &str, outbox: &mut Outbox) {
        let reason = || format!("NATS does not let this node publish to {subject}: {error}");
        self.restart(outbox, |request| {
            let is_asked = request.asks(subject);
            is_asked.then(|| LogOutcome::Failed(Outcome::Refused { reason: reason(), limit: None }))
        });
    }

    /// Ends what has taken too long, and asks again what has no answer.
    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let suffixes: Vec<Arc<str>> = self.channels.keys().cloned().collect();
        for suffix in suffixes {
            let queue = self.channels.get_mut(&suffix);
            let front = queue.and_then(|queue| queue.front_mut());
            let Some(Queued::Request(request)) = front else { continue };
            if request.is_late(now_ms, self.publish_ms) {
                let outcome = request.unanswered();
                self.end(&suffix, outcome, outbox);
                self.ready.push(suffix);
            } else if request.restarts(now_ms) {
                request.forget(outbox);
                self.ready.push(suffix);
            }
        }
    }
}
