//! Publications to channels that keep a state, and all other changes of these.
//!
//! The requests about a channel are handled in their order, and publications that wait together.
//! Each time the leader is asked how the channel is, and a batch is stored under the condition that
//! it still is so: messages, the copies of their keys' newest, and the record of the state
//! ([`crate::api::state`]). Another node that was faster makes it begin anew.
//!
//! # Invariants
//!
//! * One batch of a channel is under way at a time, so its requests are stored in their order.
//! * A batch is stored once at most, however often it is sent: it needs the record that it was
//!   planned for, and puts another one in its place.
//! * A batch without an answer is looked for behind that record: the first message there names the
//!   batch that came after it. If there is none, it is sent again.
//! * A request is refused for what the leader has said twice, the same each time: then it was so.

mod count;
mod interruptions;
mod outcome;
mod page;
mod plan;
mod request;
mod resolve;
mod scan;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_core::StateLimits;

use super::logs::{Entry, LogContext, send};
use super::outbox::{Outbox, Question};
use super::report::{LogOutcome, LogRequest, Outcome, PublishRequest};
use crate::api::StreamSettings;
use crate::api::ack::{self, Ack};
use crate::api::state::StateCopy;
use crate::api::{JetStreamError, NatsLimit, beside};
use crate::protocol::headers::Headers;
use count::{count, tombstones_max};
use plan::{About, Plan};
use request::{Channel, Done, Forgotten, Item, Refusal, Sent, Step, Work};
use scan::ScanRead;
pub(super) use scan::{ScanDone, ScanFor, ScanRequest, Scans};
use view::{PartOf, View};

/// Publications that are stored in one step, at most: each takes three messages.
const TOGETHER_MAX: usize = 300;

/// Bytes of their bodies, at most, but for the first.
const TOGETHER_BYTES_MAX: usize = 1 << 20;

/// After this time without an answer, what can be asked for again is.
const AGAIN_MS: u64 = 1_000;

/// After a refusal that may pass, it begins anew.
const RETRY_MS: u64 = 100;

/// So often in a row it begins anew at once if another node was faster.
const AT_ONCE_MAX: u32 = 3;

/// What there is to do for the rest of the journal.
#[derive(Debug)]
pub(super) enum StateNews {
    /// Messages up to this one are stored. Other nodes may not have got them if `is_late`.
    Stored { sequence: u64, is_late: bool },
    /// The second part of an erasure.
    Erase { token: u64, request: LogRequest, has_erased: bool },
}

/// See the module.
pub(super) struct States {
    stream: String,
    nonce: String,
    publish_ms: u64,
    window_ms: u64,
    pub(super) is_atomic: bool,
    /// By the suffix of the channel. None is without a request.
    channels: BTreeMap<Arc<str>, Channel>,
    ready: Vec<Arc<str>>,
    next_batch: u64,
    news: Vec<(Arc<str>, StateNews)>,
}

impl States {
    pub(super) fn new(stream: &StreamSettings, nonce: &str, publish_ms: u64) -> States {
        States {
            stream: stream.name(),
            nonce: nonce.to_owned(),
            publish_ms,
            window_ms: stream.duplicate_window_ms,
            is_atomic: false,
            channels: BTreeMap::new(),
            ready: Vec::new(),
            next_batch: 0,
            news: Vec::new(),
        }
    }

    /// Requests without an outcome.
    pub(super) fn outstanding(&self) -> usize {
        self.channels.values().map(|channel| channel.queue.len()).sum()
    }

    pub(super) fn take_news(&mut self) -> Vec<(Arc<str>, StateNews)> {
        std::mem::take(&mut self.news)
    }

    fn take(&mut self, now_ms: u64, suffix: Arc<str>, limits: StateLimits, work: Work) {
        let channel = self.channels.entry(Arc::clone(&suffix)).or_insert_with(|| Channel {
            queue: VecDeque::new(),
            taken: 0,
            limits,
            step: Step::Begin,
            at_ms: now_ms,
            seen: None,
            collisions: 0,
        });
        channel.limits = limits;
        channel.queue.push_back(Item { work, taken_ms: now_ms });
        self.ready.push(suffix);
    }

    /// Takes a publication.
    pub(super) fn publish(
        &mut self,
        now_ms: u64,
        (suffix, limits): (Arc<str>, StateLimits),
        request: PublishRequest,
    ) {
        self.take(now_ms, suffix, limits, Work::Publish(request));
    }

    /// Takes a change or an erasure.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        (suffix, limits): (Arc<str>, StateLimits),
        (token, request): (u64, LogRequest),
    ) {
        let work = match request {
            LogRequest::Change(edit) => Work::Change { token, edit },
            request => Work::Forget { token, request, gone: None },
        };
        self.take(now_ms, suffix, limits, work);
    }

    /// Has a channel counted, unless it is waiting for that.
    fn count(&mut self, now_ms: u64, suffix: &Arc<str>) {
        let Some(channel) = self.channels.get(suffix) else { return };
        let counts = |item: &Item| matches!(item.work, Work::Count(_));
        if !channel.queue.iter().any(counts) {
            let limits = channel.limits;
            self.take(now_ms, Arc::clone(suffix), limits, Work::Count(None));
        }
    }

    /// The state of a channel was read, for its oldest request; not if it cannot be.
    pub(super) fn scanned(
        &mut self,
        (owner, suffix): (ScanFor, &Arc<str>),
        read: Option<ScanRead>,
        (now_ms, server_ms): (u64, u64),
        outbox: &mut Outbox,
    ) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        if !matches!(channel.step, Step::Scan) {
            return;
        }
        channel.step = Step::Begin;
        let front = channel.queue.front_mut().map(|item| &mut item.work);
        match (front, read) {
            (Some(Work::Count(counted @ None)), Some(read)) if owner == ScanFor::Count => {
                *counted = count(read, channel.limits, server_ms).map(Box::new);
                if counted.is_none() {
                    return self.end_all(suffix, &LogOutcome::Erased(None), outbox);
                }
            }
            (Some(Work::Forget { request, gone, .. }), Some(read)) if owner == ScanFor::Forget => {
                let LogRequest::EraseMessage(sequence) = *request else { return };
                let is_it = |copy: &&StateCopy| copy.message.sequence == sequence;
                let key = read.copies.values().find(is_it).map(|copy| Box::from(copy.key()));
                *gone = Some((key.unwrap_or_default(), sequence));
            }
            // It is tried again, until it is too late.
            _ => return self.again(suffix, now_ms + RETRY_MS),
        }
        self.again(suffix, now_ms);
    }

    /// Begins what may begin, while the stream is open.
    pub(super) fn go_on(&mut self, scans: &mut Scans, context: &mut LogContext<'_>) {
        let mut later = Vec::new();
        for suffix in std::mem::take(&mut self.ready) {
            let Some(channel) = self.channels.get_mut(&suffix) else { continue };
            let is_to_resolve =
                matches!(&channel.step, Step::Resolve(resolving, _) if !resolving.is_asked());
            if !is_to_resolve && !matches!(channel.step, Step::Begin) {
                continue;
            }
            if channel.at_ms > context.now_ms {
                later.push(suffix);
                continue;
            }
            if is_to_resolve {
                if let Step::Resolve(_, sent) = std::mem::replace(&mut channel.step, Step::Begin) {
                    self.resolve(&suffix, sent, context);
                }
                continue;
            }
            if channel.taken == 0 {
                channel.taken = together(&channel.queue);
            }
            channel.at_ms = context.now_ms;
            let first = channel.queue.front().map(|item| &item.work);
            match first {
                Some(Work::Count(None)) => {
                    channel.step = Step::Scan;
                    scans.ask(context.now_ms, ScanRequest::all(ScanFor::Count, suffix));
                }
                Some(Work::Forget { request: LogRequest::EraseMessage(_), gone: None, .. }) => {
                    channel.step = Step::Scan;
                    scans.ask(context.now_ms, ScanRequest::all(ScanFor::Forget, suffix));
                }
                _ => {
                    channel.step = Step::Read(Vec::new(), View::default());
                    self.read_on(&suffix, context);
                }
            }
        }
        self.ready.extend(later);
    }

    fn about<'a>(
        &'a self,
        (suffix, limits): (&'a str, StateLimits),
        context: &'a LogContext<'_>,
    ) -> About<'a> {
        About {
            suffix,
            stream: &self.stream,
            nonce: &self.nonce,
            subjects: context.subjects,
            limits,
            server_ms: context.server_ms,
            window_ms: self.window_ms,
            reached: context.reached,
            first: context.first,
            bytes_max: context.outbox.payload_bytes_max,
        }
    }

    /// Asks for what is not read yet; plans once it all is.
    fn read_on(&mut self, suffix: &Arc<str>, context: &mut LogContext<'_>) {
        let Some(channel) = self.channels.get(suffix) else { return };
        let Step::Read(asked, view) = &channel.step else { return };
        if !asked.is_empty() {
            return;
        }
        let about = self.about((suffix, channel.limits), context);
        let items = channel.queue.iter().take(channel.taken);
        let mut parts: Vec<_> = items.flat_map(|item| about.parts(&item.work)).collect();
        parts.retain(|part| !view.has(part));
        parts.sort();
        parts.dedup();
        if parts.is_empty() {
            return self.plan(suffix, context);
        }
        let ask = |part: PartOf| {
            let (what, request) = part.request();
            let question = Question::State(Arc::clone(suffix));
            (context.outbox.ask_leader(question, what, request), part)
        };
        let asked = parts.into_iter().map(ask).collect();
        if let Some(Channel { step: Step::Read(own, _), .. }) = self.channels.get_mut(suffix) {
            *own = asked;
        }
    }

    /// The channel was read: plans a batch, and sends it.
    fn plan(&mut self, suffix: &Arc<str>, context: &mut LogContext<'_>) {
        self.next_batch += 1;
        let batch = format!("{}.s{}", self.nonce, self.next_batch);
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let Step::Read(_, view) = std::mem::replace(&mut channel.step, Step::Begin) else { return };
        let is_certain = channel.seen.replace(view.clone()).as_ref() == Some(&view);
        channel.queue.make_contiguous();
        let Some(channel) = self.channels.get(suffix) else { return };
        let about = self.about((suffix, channel.limits), context);
        let (items, _) = channel.queue.as_slices();
        let items = &items[..channel.taken.min(items.len())];
        let max_removed = tombstones_max(about.limits);
        let planned = plan::plan(items, &view, about, &batch);
        let Plan { entries, messages, record, removed, fates } = planned;
        let is_refused = |fate: &Result<Done, Refusal>| {
            fate.as_ref().is_err_and(|refusal| *refusal != Refusal::Nothing)
        };
        if fates.iter().any(is_refused) && !is_certain {
            return self.again(suffix, context.now_ms);
        }
        let is_full = |fate: &Result<Done, Refusal>| match fate {
            Err(Refusal::Publication(Outcome::State(error))) => *error == FULL,
            Err(Refusal::Log(LogOutcome::Failed(Outcome::State(error)))) => *error == FULL,
            _ => false,
        };
        let counts = fates.iter().any(is_full) || removed > max_removed;
        let all: Arc<[Entry]> = entries.into();
        let entries = Vec::from(&*all);
        let sent = Sent { batch, record, all, entries: entries.len(), messages, fates, sends: 1 };
        if entries.is_empty() {
            self.end(suffix, sent, 0, context);
        } else if let Some(why) = plan::unsupported(self.is_atomic, entries.len()) {
            self.end_all(suffix, &LogOutcome::Unsupported(why), context.outbox);
        } else {
            let question = Question::State(Arc::clone(suffix));
            match send(entries, &sent.batch, question, context.outbox) {
                Ok(token) => self.set(suffix, Step::Store(token, sent), context.now_ms),
                Err(bytes_max) => {
                    let outcome = LogOutcome::Failed(Outcome::TooLarge { bytes_max });
                    self.end_all(suffix, &outcome, context.outbox);
                }
            }
        }
        if counts {
            self.count(context.now_ms, suffix);
        }
    }

    fn set(&mut self, suffix: &Arc<str>, step: Step, now_ms: u64) {
        if let Some(channel) = self.channels.get_mut(suffix) {
            (channel.step, channel.at_ms) = (step, now_ms);
        }
    }

    /// Begins anew at this time, with what the leader says then.
    fn again(&mut self, suffix: &Arc<str>, at_ms: u64) {
        self.set(suffix, Step::Begin, at_ms);
        self.ready.push(Arc::clone(suffix));
    }

    /// Takes an answer.
    pub(super) fn answered(
        &mut self,
        (token, suffix): (u64, &Arc<str>),
        (headers, payload): (Headers<'_>, &[u8]),
        context: &mut LogContext<'_>,
    ) {
        context.outbox.answered(token);
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        match &mut channel.step {
            Step::Read(asked, view) => {
                let Some(at) = asked.iter().position(|(own, _)| *own == token) else { return };
                let (_, part) = asked.swap_remove(at);
                match view.take(part, payload) {
                    Ok(()) => self.read_on(suffix, context),
                    Err(error) => self.refused(suffix, &error, context),
                }
            }
            Step::Store(own, _) if *own == token => {
                let answer = ack::parse(&self.stream, headers, payload);
                self.acknowledged(suffix, answer, context);
            }
            Step::Resolve(..) => self.resolved(suffix, token, payload, context),
            Step::Remove(own, ..) if *own == token => match beside::erased(payload) {
                Ok(_) => {
                    let step = std::mem::replace(&mut channel.step, Step::Begin);
                    let Step::Remove(_, sent, last) = step else { return };
                    self.end(suffix, sent, last, context);
                }
                Err(error) => self.refused(suffix, &error, context),
            },
            _ => {}
        }
    }

    fn acknowledged(&mut self, suffix: &Arc<str>, answer: Ack, context: &mut LogContext<'_>) {
        let Some(channel) = self.channels.get_mut(suffix) else { return };
        let Step::Store(_, sent) = std::mem::replace(&mut channel.step, Step::Begin) else {
            return;
        };
        let is_only = sent.sends == 1;
        match answer {
            Ack::Stored { sequence, .. } => self.stored(suffix, sent, sequence, context),
            Ack::Unreadable => self.resolve(suffix, sent, context),
            _ if !is_only => self.resolve(suffix, sent, context),
            Ack::Refused(error) if error.is_conflict() => {
                channel.collisions += 1;
                let is_at_once = channel.collisions <= AT_ONCE_MAX;
                let wait_ms = if is_at_once { 0 } else { RETRY_MS };
                self.again(suffix, context.now_ms + wait_ms);
            }
            Ack::Refused(error) if error.err_code == JetStreamError::TOO_MANY_REQUESTS => {
                self.end_all(suffix, &LogOutcome::Failed(Outcome::Busy), context.outbox);
            }
            Ack::Refused(error) => self.refused(suffix, &error, context),
            Ack::Nobody => self.again(suffix, context.now_ms + RETRY_MS),
        }
    }

    /// A batch is stored, whose last message has this sequence.
    fn stored(&mut self, suffix: &Arc<str>, sent: Sent, last: u64, context: &mut LogContext<'_>) {
        let first = (last + 1).saturating_sub(sent.entries as u64);
        if sent.messages > 0 {
            let sequence = first + sent.messages as u64 - 1;
            let news = StateNews::Stored { sequence, is_late: sent.sends > 1 };
            self.news.push((Arc::clone(suffix), news));
        }
        if let Some(channel) = self.channels.get_mut(suffix) {
            channel.collisions = 0;
        }
        let question = || Question::State(Arc::clone(suffix));
        let forgotten = sent.fates.iter().find_map(|fate| match fate {
            Ok(Done::Forgotten(forgotten)) => Some(*forgotten),
            _ => None,
        });
        let token = match forgotten {
            Some(Forgotten::Copy(copy)) if copy > 0 => {
                context.outbox.ask_leader(question(), "MSG.DELETE", beside::erase(copy))
            }
            Some(Forgotten::UpTo(_)) => {
                let keys = context.subjects.keys(suffix);
                // Copies that come later stay, and so does the record.
                let request = beside::purge(&keys, last - 1);
                context.outbox.ask_leader(question(), "PURGE", request)
            }
            _ => return self.end(suffix, sent, last, context),
        };
        self.set(suffix, Step::Remove(token, sent, last), context.now_ms);
    }

    fn refused(&mut self, suffix: &Arc<str>, error: &JetStreamError, context: &mut LogContext<'_>) {
        self.forget_questions(suffix, context.outbox);
        let is_batch = JetStreamError::BATCH_NOT_STORED.contains(&error.err_code);
        if error.is_passing() || is_batch {
            return self.again(suffix, context.now_ms + RETRY_MS);
        }
        let limit = NatsLimit::of(error);
        let refused = Outcome::Refused { reason: error.advised(), limit };
        self.end_all(suffix, &LogOutcome::Failed(refused), context.outbox);
    }

    /// No answer to its questions is expected any more.
    fn forget_questions(&self, suffix: &str, outbox: &mut Outbox) {
        let Some(channel) = self.channels.get(suffix) else { return };
        match &channel.step {
            Step::Begin | Step::Scan => {}
            Step::Read(asked, _) => asked.iter().for_each(|(token, _)| outbox.answered(*token)),
            Step::Store(token, _) | Step::Remove(token, ..) => outbox.answered(*token),
            Step::Resolve(resolving, _) => resolving.forget(outbox),
        }
    }
}

/// The refusal after which a channel is counted: values may be gone that nobody has removed.
const FULL: throng_core::PublishError = throng_core::PublishError::StateFull;

/// How many of these are handled together.
fn together(queue: &VecDeque<Item>) -> usize {
    let mut bytes = 0;
    let publications = queue.iter().take(TOGETHER_MAX).take_while(|item| match &item.work {
        Work::Publish(request) => {
            let is_first = bytes == 0;
            bytes += request.publication.body.bytes().len() + 1;
            is_first || bytes <= TOGETHER_BYTES_MAX
        }
        _ => false,
    });
    publications.count().max(1)
}
