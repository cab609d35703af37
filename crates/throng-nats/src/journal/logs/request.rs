//! One request about a log, and its steps.

use std::sync::Arc;

use serde_json::Value;

use super::batch::only_last;
use super::context::LogContext;
use super::edit::{self, OLD_STREAM, SentEdit};
use super::view::{LogView, PARTS};
use crate::api::ack::{self, Ack};
use crate::api::beside::{self, EXPECTED, Found};
use crate::api::state;
use crate::api::stream::{self, StreamAbilities};
use crate::api::{JetStreamError, NatsLimit, get};
use crate::journal::outbox::{Outbox, Question};
use crate::journal::report::{LogEdit, LogOutcome, LogRequest, Outcome};
use crate::protocol::headers::Headers;

/// After this time without an answer, what can be asked for again is.
const AGAIN_MS: u64 = 1_000;

/// After a refusal that may pass, a request begins anew.
const RETRY_MS: u64 = 100;

/// News from an answer for the rest of the journal.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::journal) enum LogNews {
    /// Messages up to this sequence are stored.
    Stored(u64),
    /// The channel's messages with the sequences between these, both included, are erased.
    Erased(u64, u64),
}

/// The next step of a request after an answer.
pub(super) enum Next {
    Wait,
    /// It begins anew.
    Again,
    End(LogOutcome),
}

/// Where a request stands.
#[derive(Debug)]
enum Step {
    Begin,
    /// The log is read: the tokens of the questions, and what was found.
    Read([u64; PARTS], Box<[Option<Option<Found>>; PARTS]>),
    /// The log had no message. The stream is asked which sequences it has, since one may have come
    /// after the head that a change wants, and have expired.
    Bound {
        token: u64,
        view: Box<LogView>,
    },
    Store(SentEdit),
    /// It is written down what will be erased.
    Mark {
        token: u64,
        up_to: u64,
    },
    Erase {
        token: u64,
        sequence: u64,
    },
    Purge {
        token: u64,
        up_to: u64,
    },
    PurgeRecord {
        token: u64,
    },
}

/// The names that a request needs: the suffix of its channel, the stream, the node, and what the
/// stream can do.
pub(super) type Names<'a> = (&'a Arc<str>, &'a str, &'a str, StreamAbilities);

pub(super) struct OpenRequest {
    pub(super) token: u64,
    request: LogRequest,
    began_ms: u64,
    /// When it was asked for last, or is to be.
    at_ms: u64,
    step: Step,
    /// The log when it was read before.
    seen: Option<LogView>,
    /// The first and last sequence of the stream when it was asked for them; zeros before.
    bounds: (u64, u64),
    /// True if messages may be erased already.
    has_erased: bool,
    /// The message with the record that is erased.
    record_sequence: u64,
}

impl OpenRequest {
    pub(super) fn new(
        now_ms: u64,
        token: u64,
        request: LogRequest,
        has_erased: bool,
    ) -> OpenRequest {
        OpenRequest {
            token,
            request,
            began_ms: now_ms,
            at_ms: now_ms,
            step: Step::Begin,
            seen: None,
            bounds: (0, 0),
            has_erased,
            record_sequence: 0,
        }
    }

    pub(super) fn is_change(&self) -> bool {
        matches!(self.request, LogRequest::Change(_))
    }

    /// True if it waits to begin.
    pub(super) fn waits(&self) -> bool {
        matches!(self.step, Step::Begin)
    }

    /// True if it may begin.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.waits() && self.at_ms <= now_ms
    }

    /// True if it is not tried any more.
    pub(super) fn is_late(&self, now_ms: u64, patience_ms: u64) -> bool {
        now_ms.saturating_sub(self.began_ms) >= patience_ms
    }

    /// The outcome if it is not tried any more.
    pub(super) fn unanswered(&self) -> LogOutcome {
        let is_uncertain = self.has_erased || matches!(self.step, Step::Store(_));
        LogOutcome::Failed(if is_uncertain { Outcome::Unknown } else { Outcome::Away })
    }

    /// Answers are lost. Returns its outcome, if it cannot begin anew.
    pub(super) fn disconnected(&mut self) -> Option<LogOutcome> {
        let outcome = matches!(self.step, Step::Store(_)).then(|| self.unanswered());
        (self.step, self.seen) = (Step::Begin, None);
        outcome
    }

    /// Whether it has waited for long, and begins anew.
    pub(super) fn restarts(&mut self, now_ms: u64) -> bool {
        let is_silent = now_ms.saturating_sub(self.at_ms) >= AGAIN_MS;
        let restarts = is_silent && !matches!(self.step, Step::Begin | Step::Store(_));
        if restarts {
            self.step = Step::Begin;
        }
        restarts
    }

    /// True if it waits for an answer to what was sent to a subject.
    pub(super) fn asks(&self, subject: &str) -> bool {
        let what = match self.step {
            Step::Begin | Step::Store(_) | Step::Mark { .. } => return false,
            Step::Read(..) => "$JS.API.STREAM.MSG.GET.",
            Step::Bound { .. } => "$JS.API.STREAM.INFO.",
            Step::Erase { .. } => "$JS.API.STREAM.MSG.DELETE.",
            Step::Purge { .. } | Step::PurgeRecord { .. } => "$JS.API.STREAM.PURGE.",
        };
        subject.starts_with(what)
    }

    /// No answer to its questions is expected any more.
    pub(super) fn forget(&self, outbox: &mut Outbox) {
        let mut answered = |token: u64| outbox.answered(token);
        match &self.step {
            Step::Begin => {}
            Step::Read(tokens, _) => tokens.iter().copied().for_each(answered),
            Step::Store(sent) => answered(sent.token),
            Step::Bound { token, .. }
            | Step::Mark { token, .. }
            | Step::Erase { token, .. }
            | Step::Purge { token, .. }
            | Step::PurgeRecord { token } => answered(*token),
        }
    }

    /// Begins to read the log. Returns its outcome, if the stream cannot do it.
    pub(super) fn begin(
        &mut self,
        suffix: &Arc<str>,
        abilities: StreamAbilities,
        context: &mut LogContext<'_>,
    ) -> Option<LogOutcome> {
        let is_possible = abilities.can_erase
            || match &self.request {
                LogRequest::State => true,
                LogRequest::Change(edit) => edit.needs_no_more_than_messages(),
                LogRequest::EraseMessage(_) | LogRequest::EraseHistory { .. } => false,
            };
        if !is_possible {
            return Some(LogOutcome::Unsupported(OLD_STREAM));
        }
        let subjects = context.subjects;
        let target = match self.request {
            LogRequest::EraseMessage(sequence) => Some(beside::message(sequence)),
            _ => None,
        };
        let beside = |subject: String| abilities.can_erase.then(|| get::last(&subject));
        let wanted = [
            Some(get::last(&subjects.ingest(suffix))),
            beside(subjects.record(suffix)),
            beside(subjects.erasures(suffix)),
            target,
        ];
        let (mut tokens, mut found) = ([0; PARTS], [const { Some(None) }; PARTS]);
        for (at, request) in wanted.into_iter().enumerate() {
            let Some(request) = request else { continue };
            let question = Question::Log(Arc::clone(suffix));
            tokens[at] = context.outbox.ask_leader(question, "MSG.GET", request);
            found[at] = None;
        }
        (self.step, self.at_ms) = (Step::Read(tokens, Box::new(found)), context.now_ms);
        None
    }

    /// Takes an answer.
    pub(super) fn answered(
        &mut self,
        token: u64,
        answer: (Headers<'_>, &[u8]),
        names: Names<'_>,
        next_batch: &mut u64,
        context: &mut LogContext<'_>,
    ) -> (Next, Option<LogNews>) {
        context.outbox.answered(token);
        let (headers, payload) = answer;
        match &mut self.step {
            Step::Read(tokens, all) => {
                let Some(at) = tokens.iter().position(|one| *one == token) else {
                    return (Next::Wait, None);
                };
                match beside::found(payload) {
                    Ok(found) => all[at] = Some(found),
                    Err(error) => return (self.refused(&error, context), None),
                }
                if all.iter().any(Option::is_none) {
                    return (Next::Wait, None);
                }
                let view = LogView::of(std::mem::take(&mut **all).map(Option::flatten));
                *next_batch += 1;
                let next = self.read(view, names, *next_batch, context);
                (next, None)
            }
            Step::Bound { token: own, .. } if *own == token => {
                *next_batch += 1;
                (self.bound(payload, names, *next_batch, context), None)
            }
            Step::Store(sent) if sent.token == token => {
                let sent = *sent;
                self.step = Step::Begin;
                match ack::parse(names.1, headers, payload) {
                    Ack::Stored { sequence, .. } => {
                        (Next::End(sent.stored(sequence)), Some(LogNews::Stored(sequence)))
                    }
                    Ack::Unreadable => (Next::End(LogOutcome::Failed(Outcome::Unknown)), None),
                    refused => (self.not_stored(refused, context), None),
                }
            }
            Step::Mark { token: own, up_to } if *own == token => {
                let up_to = *up_to;
                self.step = Step::Begin;
                match ack::parse(names.1, headers, payload) {
                    Ack::Stored { .. } => (self.erase(names.0, up_to, context), None),
                    refused => (self.not_stored(refused, context), None),
                }
            }
            Step::Erase { token: own, .. }
            | Step::Purge { token: own, .. }
            | Step::PurgeRecord { token: own }
                if *own == token =>
            {
                match beside::erased(payload) {
                    Ok(was_there) => self.erased(was_there, names.0, context),
                    Err(error) => (self.refused(&error, context), None),
                }
            }
            _ => (Next::Wait, None),
        }
    }

    /// Begins anew a little later.
    fn later(&mut self, context: &mut LogContext<'_>) -> Next {
        self.forget(context.outbox);
        (self.step, self.at_ms) = (Step::Begin, context.now_ms + RETRY_MS);
        Next::Again
    }

    /// Begins anew at once.
    fn again(&mut self, context: &LogContext<'_>) -> Next {
        (self.step, self.at_ms) = (Step::Begin, context.now_ms);
        Next::Again
    }

    fn refused(&mut self, error: &JetStreamError, context: &mut LogContext<'_>) -> Next {
        let is_batch = JetStreamError::BATCH_NOT_STORED.contains(&error.err_code);
        if error.is_passing() || is_batch {
            return self.later(context);
        }
        let limit = NatsLimit::of(error);
        let reason = error.advised();
        Next::End(LogOutcome::Failed(Outcome::Refused { reason, limit }))
    }

    /// A message, or those of a change, are certainly not stored.
    fn not_stored(&mut self, ack: Ack, context: &mut LogContext<'_>) -> Next {
        match ack {
            // The log is read anew: either a condition does not hold, or another node was faster.
            Ack::Refused(error) if error.is_conflict() => self.again(context),
            Ack::Refused(error) if error.err_code == JetStreamError::TOO_MANY_REQUESTS => {
                Next::End(LogOutcome::Failed(Outcome::Busy))
            }
            Ack::Refused(error) => self.refused(&error, context),
            Ack::Nobody | Ack::Unreadable | Ack::Stored { .. } => self.later(context),
        }
    }

    /// The log is so.
    fn read(
        &mut self,
        view: LogView,
        names: Names<'_>,
        batch: u64,
        context: &mut LogContext<'_>,
    ) -> Next {
        // Its parts were read one after another. If they are the same twice, the log was so.
        let is_certain = self.seen.as_ref() == Some(&view);
        let (first, reached) = self.bounds;
        let (first, reached) = (first.max(context.first), reached.max(context.reached));
        let bounds = (first, reached.max(view.last));
        let holds = |edit: &LogEdit| view.holds(edit, bounds);
        let refused = match &self.request {
            LogRequest::Change(edit) => edit.refused_after(view.record().as_ref()),
            _ => None,
        };
        match &self.request {
            LogRequest::State if is_certain => Next::End(LogOutcome::State(view.facts(reached))),
            LogRequest::Change(edit) if is_certain && !holds(edit) => {
                Next::End(LogOutcome::Conflict(view.facts(reached)))
            }
            LogRequest::Change(_) if refused.is_some() => match refused {
                Some(refused) if is_certain => Next::End(LogOutcome::Failed(refused)),
                _ => {
                    self.seen = Some(view);
                    self.again(context)
                }
            },
            // The known sequences of the stream may be some seconds old.
            LogRequest::Change(edit) if edit.head.is_some() && view.is_empty() => {
                let token = context.outbox.ask_state(Question::Log(Arc::clone(names.0)));
                self.step = Step::Bound { token, view: Box::new(view) };
                self.at_ms = context.now_ms;
                Next::Wait
            }
            LogRequest::Change(edit) if holds(edit) => self.store(&view, names, batch, context),
            LogRequest::State | LogRequest::Change(_) => {
                self.seen = Some(view);
                self.again(context)
            }
            LogRequest::EraseMessage(_) | LogRequest::EraseHistory { .. } => {
                self.mark(&view, names, context)
            }
        }
    }

    /// The stream has answered which sequences it has, after the log was read as empty.
    fn bound(
        &mut self,
        payload: &[u8],
        names: Names<'_>,
        batch: u64,
        context: &mut LogContext<'_>,
    ) -> Next {
        let (LogRequest::Change(edit), Step::Bound { view, .. }) =
            (&self.request, std::mem::replace(&mut self.step, Step::Begin))
        else {
            return Next::Wait;
        };
        match stream::parse(payload, &Value::Null) {
            Ok(info) => {
                self.bounds = (info.first, info.last.max(context.reached));
                if view.holds(edit, self.bounds) {
                    return self.store(&view, names, batch, context);
                }
                self.seen = Some(*view);
                self.again(context)
            }
            Err(_) => self.later(context),
        }
    }

    /// Sends a change of a log that is as in this view.
    fn store(
        &mut self,
        view: &LogView,
        names: Names<'_>,
        batch: u64,
        context: &mut LogContext<'_>,
    ) -> Next {
        let LogRequest::Change(edit) = &self.request else { return Next::Wait };
        self.seen = None;
        let (suffix, stream, nonce, abilities) = names;
        let names = (suffix, stream, format!("{nonce}.{batch}"));
        match edit::send(edit, view, names, abilities, context) {
            Ok(sent) => {
                self.step = Step::Store(sent);
                Next::Wait
            }
            Err(outcome) => Next::End(outcome),
        }
    }

    /// Writes down what will be erased, if there is anything.
    fn mark(&mut self, view: &LogView, names: Names<'_>, context: &mut LogContext<'_>) -> Next {
        let (suffix, stream, ..) = names;
        let (erasures, up_to) = match self.request {
            LogRequest::EraseMessage(sequence) => {
                if view.target() != Some(&*context.subjects.ingest(suffix)) {
                    // Of a request that began anew, it may be this one that has erased it.
                    let count = (!self.has_erased).then_some(0);
                    return Next::End(LogOutcome::Erased(count));
                }
                let link = view.target_message().and_then(state::link_of);
                let erasures = view.erasures().with_message(sequence, view.last);
                (erasures.with_link(sequence, link), sequence)
            }
            _ if view.last == 0 && view.record_sequence() == 0 => {
                return Next::End(LogOutcome::Erased(None));
            }
            _ => {
                // No later one: the request may reach the servers late.
                self.record_sequence = view.record_sequence();
                let up_to = match self.request {
                    LogRequest::EraseHistory { up_to: Some(up_to), .. } => up_to.min(view.last),
                    _ => view.last,
                };
                (view.erasures().with_history(up_to), up_to)
            }
        };
        let headers = only_last(stream).field(EXPECTED, view.erasures_sequence()).finish();
        let (token, subject) = (context.outbox.token(), context.subjects.erasures(suffix));
        let content = (headers.into(), erasures.block().into());
        let question = Question::Log(Arc::clone(suffix));
        context.outbox.ask_again(token, question, subject, content);
        self.step = Step::Mark { token, up_to };
        self.at_ms = context.now_ms;
        Next::Wait
    }

    /// Erases what was written down.
    fn erase(&mut self, suffix: &Arc<str>, up_to: u64, context: &mut LogContext<'_>) -> Next {
        self.has_erased = true;
        self.at_ms = context.now_ms;
        let question = Question::Log(Arc::clone(suffix));
        self.step = match self.request {
            LogRequest::EraseMessage(sequence) => {
                let request = beside::erase(sequence);
                let token = context.outbox.ask_leader(question, "MSG.DELETE", request);
                Step::Erase { token, sequence }
            }
            _ => {
                let request = beside::purge(&context.subjects.ingest(suffix), up_to);
                let token = context.outbox.ask_leader(question, "PURGE", request);
                Step::Purge { token, up_to }
            }
        };
        Next::Wait
    }

    /// Messages are erased, or were not there any more.
    fn erased(
        &mut self,
        was_there: bool,
        suffix: &Arc<str>,
        context: &mut LogContext<'_>,
    ) -> (Next, Option<LogNews>) {
        match self.step {
            Step::Erase { sequence, .. } => {
                // The stream has one more than can be read.
                let outcome = LogOutcome::Erased((!was_there).then_some(0));
                (Next::End(outcome), Some(LogNews::Erased(sequence, sequence)))
            }
            Step::Purge { up_to, .. } => {
                let news = Some(LogNews::Erased(0, up_to));
                if !matches!(self.request, LogRequest::EraseHistory { with_record: true, .. }) {
                    return (Next::End(LogOutcome::Erased(None)), news);
                }
                let request = beside::purge(&context.subjects.record(suffix), self.record_sequence);
                let question = Question::Log(Arc::clone(suffix));
                let token = context.outbox.ask_leader(question, "PURGE", request);
                (self.step, self.at_ms) = (Step::PurgeRecord { token }, context.now_ms);
                (Next::Wait, news)
            }
            _ => (Next::End(LogOutcome::Erased(None)), None),
        }
    }
}

impl LogEdit {
    /// True if any stream can do it: it has one message, and no condition on the record.
    fn needs_no_more_than_messages(&self) -> bool {
        let keeps = matches!(self.record, throng_core::RecordChange::Keep);
        keeps && self.record_version.is_none() && self.messages.len() <= 1
    }
}
