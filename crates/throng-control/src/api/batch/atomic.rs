//! A batch of which all messages are published or none: one change of one channel's log, under the
//! condition that its head is the one that the publisher knows, if it gives that.

use std::convert::Infallible;

use http::HeaderMap;
use http::header::IF_MATCH;
use throng_core::{
    ChangeError, ChannelName, Condition, Later, LogChange, MessageId, Publication, PublishError,
    clock,
};
use throng_wire::v1;
use throng_wire::{ErrorCode, ErrorResponse};

use super::super::limit::Limited;
use super::super::permit::Permit;
use super::super::publish::{OUTCOME_TIMEOUT, only};
use super::items::Form;
use super::prepared::{LINES_PER_TURN, Prepared, prepare};
use crate::control::Control;
use crate::http::answer::ApiError;
use crate::late_answer::within;
use crate::metrics::HttpCounter;

/// As many as the servers of NATS store in one step, with what belongs to them.
const MESSAGES_MAX: usize = 998;

/// Publishes all lines or none. Returns the answers to them.
pub(super) async fn publish(
    control: &Control,
    headers: &HeaderMap,
    (publisher, permit): (&Limited<'_>, &mut Permit<'_>),
    (form, lines): (Form, Vec<&[u8]>),
) -> Result<Vec<u8>, ApiError> {
    let head = match only(headers, &IF_MATCH)? {
        None => None,
        Some(id) => Some(head_of(id.to_str().unwrap_or_default())?),
    };
    let messages = messages(control, (publisher, permit), lines, None).await?;
    let Some(first) = messages.first() else {
        if head.is_some() {
            // Without a message there is no channel whose head that could be.
            let message = "the batch is empty, so the header `If-Match` is about no channel";
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        return Ok(written(form, &[], 0));
    };
    let channel = first.channel.clone();
    let condition = Condition { head, ..Condition::default() };
    let change = LogChange { condition, ..LogChange::append(channel.clone(), messages) };
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(control.engine.change(clock::now_ms(), change, later))
    };
    let Ok(outcome) = within(OUTCOME_TIMEOUT, ask).await;
    let changed = outcome.unwrap_or(Err(PublishError::Unknown.into())).map_err(refusal)?;
    changed.ids.iter().for_each(|_| control.metrics.count(HttpCounter::Published));
    Ok(written(form, &changed.ids, control.engine.audience(&channel).subscribers))
}

/// The messages of these lines, all of one channel, which the request may name.
pub(in super::super) async fn messages(
    control: &Control,
    (publisher, permit): (&Limited<'_>, &mut Permit<'_>),
    lines: Vec<&[u8]>,
    of_request: Option<&ChannelName>,
) -> Result<Vec<Publication>, ApiError> {
    if lines.len() > MESSAGES_MAX {
        let message = format!("at most {MESSAGES_MAX} messages are published in one step");
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    publisher.count(lines.len() as u32, 0).map_err(ApiError::limited)?;
    let mut messages: Vec<Publication> = Vec::with_capacity(lines.len());
    for (line, number) in lines.into_iter().zip(1..) {
        if number % LINES_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
        let message = prepare(control, permit, (line, of_request)).await;
        let message = message.and_then(of_atomic_batch);
        let message = message.map_err(|error| of_line(number, &error))?;
        if messages.first().is_some_and(|first| first.channel != message.channel) {
            let other = "all messages of an atomic batch are for one channel or user";
            return Err(of_line(number, &ErrorResponse::new(ErrorCode::BadRequest, other)).into());
        }
        messages.push(message);
    }
    Ok(messages)
}

fn head_of(text: &str) -> Result<MessageId, ApiError> {
    text.trim_matches('"').parse().map_err(|_| {
        ApiError::parameter(
            "the header `If-Match` must be the id of the channel's newest message, as history \
             has it",
        )
    })
}

/// Fails for what has no place among others.
fn of_atomic_batch(prepared: Prepared) -> Result<Publication, ErrorResponse> {
    match prepared {
        Prepared::Volatile(_) => {
            let message = "messages that are published in one step are kept: none is volatile";
            Err(ErrorResponse::new(ErrorCode::BadRequest, message))
        }
        Prepared::Kept(publication) if publication.idempotency_key.is_some() => {
            let message = "a message that is published in one step with others has no idempotency \
                           key: give an atomic batch the header `If-Match`, and repeat it";
            Err(ErrorResponse::new(ErrorCode::BadRequest, message))
        }
        Prepared::Kept(publication) => Ok(publication),
    }
}

/// Turns the error of one line into the error of the whole batch.
fn of_line(number: usize, error: &ErrorResponse) -> ErrorResponse {
    ErrorResponse::new(error.code, format!("message {number}: {}", error.message))
}

fn refusal(error: ChangeError) -> ErrorResponse {
    match error {
        ChangeError::Conflict(state) => {
            let message = format!("the newest message of the channel is {}", state.head);
            ErrorResponse::new(ErrorCode::Conflict, message)
        }
        other => other.into(),
    }
}

/// The answers to all lines.
fn written(form: Form, ids: &[MessageId], subscribers: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 * ids.len() + 2);
    let (begin, between, end): (&[u8], &[u8], &[u8]) = match form {
        Form::Lines => (b"", b"", b""),
        Form::Array => (b"[", b",", b"]"),
    };
    out.extend_from_slice(begin);
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(between);
        }
        v1::published_body(&mut out, Some(&id.to_string()), subscribers.into(), false);
        if form == Form::Lines {
            out.push(b'\n');
        }
    }
    out.extend_from_slice(end);
    out
}
