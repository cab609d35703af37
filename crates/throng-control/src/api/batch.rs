//! `POST /publish`: a batch of messages, one JSON object per line or the elements of an array. The
//! response has one line or element for each of them, in the same order. With `atomic=true` all of
//! them are published or none.

pub(super) mod atomic;
pub(super) mod items;
mod prepared;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::header::IF_MATCH;
use http::request::Parts;
use hyper::body::Incoming;
use throng_access::{Action, Client, RefusedClient};
use throng_core::{AskerId, PublishError, RefusedForMemory};
use throng_wire::ErrorResponse;
use throng_wire::v1;

use super::count::{CountedNodes, Elsewhere};
use super::limit::Limited;
use super::permit::Permit;
use super::publish::{self, OUTCOME_TIMEOUT, Submitted};
use crate::control::Control;
use crate::http::answer::{Answer, ApiError};
use crate::http::large_answer::{self, EncodedBody};
use crate::http::{body, query};
use crate::memory_quota::Reservation;
use items::Form;
use prepared::{LINES_PER_TURN, Prepared, prepare};

/// Approximate maximum size of a response line. Memory for all lines is reserved before the first
/// message is published, so that a batch is not refused half-way.
const ANSWER_LINE_BYTES_MAX: usize = 256;

/// Lines of a batch that wait for a journal of several nodes, at most: more than it sends at a
/// time, and a small part of the places that it has for all publishers.
const LINES_WAITING_MAX: usize = 512;

/// After this time no line is handed to a journal of several nodes any more, so that the response
/// does not take longer than clients wait for it.
const LINES_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
) -> Result<Answer, ApiError> {
    // Until it is dropped, the drain of the workers does not begin.
    let _publication = control.drain.begin_publication()?;
    control.check_memory(RefusedForMemory::Batch)?;
    let publisher = Limited::of(control, head, client)?;
    publisher.begin(head, 0).map_err(ApiError::limited)?;
    // Before the body is read: a client that may not publish must not occupy memory.
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::PublishBatch).await?;
    let query = query::of(head, &["count", "atomic"])?;
    let (counted, is_atomic) =
        (CountedNodes::of(query)?, query::flag(query, "atomic")?.unwrap_or(false));
    if !is_atomic && head.headers.contains_key(IF_MATCH) {
        let message = "a batch takes the header `If-Match` with the parameter `atomic=true` only: \
                       add that, or leave the header out";
        return Err(ApiError::parameter(message));
    }
    let kind = body::BodyKind::Batch;
    let is_counted = publisher.charge_body(head, kind)?;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    if bytes.was_awaited() {
        permit.recheck(Action::PublishBatch)?;
    }
    if !is_counted {
        publisher.count(0, bytes.len()).map_err(ApiError::limited)?;
    }
    let (form, items) = items::divide(&bytes)?;
    // Before the first line is published: a refusal has to mean that none was.
    let reservation =
        large_answer::reserve(&control.publish_answers, items.len() * ANSWER_LINE_BYTES_MAX)?;
    if is_atomic {
        let client = (&publisher, &mut permit);
        let answers = atomic::publish(control, &head.headers, client, (form, items)).await?;
        return respond(control, head, (form, answers), reservation).await;
    }
    let mut answers = Answers::new(control, form);
    let asker = AskerId::next();
    let deadline = control.engine.is_shared().then(|| Instant::now() + LINES_TIMEOUT);
    // All lines share it, and its time, so that a policy that is silent is not awaited for each.
    for (index, line) in items.into_iter().enumerate() {
        if index % LINES_PER_TURN == LINES_PER_TURN - 1 {
            // A line that waits for nothing does not yield, and a batch would hold up other
            // requests.
            tokio::task::yield_now().await;
        }
        let submitted = match publisher.count(1, 0) {
            Ok(()) if deadline.is_some_and(|end| Instant::now() > end) => {
                Err(PublishError::Busy.into())
            }
            Ok(()) => submit_line(control, &mut permit, (line, asker), counted).await,
            Err(refusal) => Err(refusal.into()),
        };
        answers.add(submitted).await;
    }
    respond(control, head, (form, answers.finish().await), reservation).await
}

async fn respond(
    control: &Control,
    head: &Parts,
    (form, answers): (Form, Vec<u8>),
    reservation: Reservation,
) -> Result<Answer, ApiError> {
    let content_type = HeaderValue::from_static(match form {
        Form::Lines => "application/x-ndjson",
        Form::Array => "application/json",
    });
    // Ids and errors of this client: nothing that it does not know.
    let body = EncodedBody::of(answers, &[], &control.settings, &head.headers).await;
    Ok(large_answer::encoded(content_type, body, reservation))
}

/// The response, with the answers to the lines in their order.
///
/// A line does not wait for the outcome of the one before it: all lines of a batch share what a
/// journal waits for, such as one sync of a disk. Only [`LINES_WAITING_MAX`] wait for a journal of
/// several nodes, which leaves places for other publishers.
struct Answers<'a> {
    control: &'a Control,
    form: Form,
    written: Vec<u8>,
    /// The answers from the first one on that is not known yet.
    waiting: VecDeque<Result<Line, ErrorResponse>>,
}

/// A line that was published, or is with the engine.
enum Line {
    Kept(Submitted, Elsewhere),
    /// A volatile message, with the number of its subscribers.
    Volatile(u64, Elsewhere),
}

impl Line {
    fn is_answered(&self) -> bool {
        match self {
            Line::Kept(submitted, _) => submitted.is_answered(),
            Line::Volatile(..) => true,
        }
    }
}

fn is_answered(line: &Result<Line, ErrorResponse>) -> bool {
    line.as_ref().map_or(true, Line::is_answered)
}

impl<'a> Answers<'a> {
    fn new(control: &'a Control, form: Form) -> Answers<'a> {
        let written = if form == Form::Array { vec![b'['] } else { Vec::new() };
        Answers { control, form, written, waiting: VecDeque::new() }
    }

    async fn add(&mut self, line: Result<Line, ErrorResponse>) {
        let is_known = is_answered(&line);
        if self.waiting.is_empty() && is_known {
            self.write(line, Duration::ZERO).await;
        } else {
            self.waiting.push_back(line);
        }
        if self.waiting.len() >= LINES_WAITING_MAX && self.control.engine.is_shared() {
            self.write_first(LINES_WAITING_MAX / 2).await;
        }
    }

    /// Waits for the first outcomes.
    async fn write_first(&mut self, count: usize) {
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        // As in [`Answers::finish`].
        let last = self.waiting.get_mut(count - 1);
        if let Some(Ok(Line::Kept(submitted, _))) = last.filter(|line| !is_answered(line)) {
            submitted.wait(OUTCOME_TIMEOUT).await;
        }
        for _ in 0..count {
            let Some(line) = self.waiting.pop_front() else { return };
            self.write(line, deadline.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Waits for the outcomes that are not known yet.
    async fn finish(mut self) -> Vec<u8> {
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        // Mostly they come in the order of the lines: with the last one all are there, and the task
        // is woken once.
        let mut submitted = self.waiting.iter_mut().rev().filter_map(|line| match line {
            Ok(Line::Kept(submitted, _)) => Some(submitted),
            Ok(Line::Volatile(..)) | Err(_) => None,
        });
        if let Some(last) = submitted.find(|submitted| !submitted.is_answered()) {
            last.wait(OUTCOME_TIMEOUT).await;
        }
        while let Some(line) = self.waiting.pop_front() {
            self.write(line, deadline.saturating_duration_since(Instant::now())).await;
        }
        if self.form == Form::Array {
            self.written.push(b']');
        }
        self.written
    }

    async fn write(&mut self, line: Result<Line, ErrorResponse>, max_wait: Duration) {
        if self.form == Form::Array && self.written.len() > 1 {
            self.written.push(b',');
        }
        let written = match line {
            Ok(Line::Kept(submitted, elsewhere)) => {
                match submitted.outcome(self.control, max_wait).await {
                    Ok(published) => {
                        elsewhere.write(&mut self.written, &published).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
            Ok(Line::Volatile(own, elsewhere)) => {
                v1::published_body(&mut self.written, None, elsewhere.and(own).await, false);
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            self.control.refusals.record(error.code);
            self.control.tell_refusal(&error, RefusedClient::default);
            error.write_body(&mut self.written);
        }
        if self.form == Form::Lines {
            self.written.push(b'\n');
        }
    }
}

async fn submit_line(
    control: &Control,
    permit: &mut Permit<'_>,
    (line, asker): (&[u8], AskerId),
    counted: CountedNodes,
) -> Result<Line, ErrorResponse> {
    match prepare(control, permit, (line, None)).await? {
        Prepared::Volatile(volatile) => {
            let elsewhere = Elsewhere::ask(control, counted, &volatile.channel);
            let published = publish::publish_volatile(control, permit, volatile).await;
            published.map(|own| Line::Volatile(own, elsewhere))
        }
        Prepared::Kept(publication) => {
            let elsewhere = Elsewhere::ask(control, counted, &publication.channel);
            let submitted = publish::submit(control, permit, (publication, asker)).await?;
            Ok(Line::Kept(submitted, elsewhere))
        }
    }
}
