//! `POST /channels/{channel}/end` ends a channel, with the body as its last message; `DELETE` opens
//! it again.
//!
//! The last message, the notice of the end and the record that refuses later messages are one
//! change of the log.

use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use throng_access::{Action, Client};
use throng_core::{
    Body, ChangeError, ChannelName, Kind, LogChange, MessageId, Publication, PublishError,
    Replacement,
};
use throng_wire::{ErrorCode, ErrorResponse, check_target_name, v1};

use super::erase::{ATTEMPTS_MAX, ErasedLog, busy, error_of};
use super::limit::Limited;
use super::log;
use super::permit::Permit;
use super::publish::Options;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::{body, names, query};
use crate::metrics::HttpCounter;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    segment: &str,
) -> Result<Answer, ApiError> {
    // Until it is dropped, the drain of the workers does not begin.
    let _in_progress = control.drain.begin_publication()?;
    let publisher = Limited::of(control, head, client)?;
    publisher.begin(head, 1).map_err(ApiError::limited)?;
    let channel = names::from_segment(Kind::Channel, segment)?;
    check_target_name(channel.name(), Kind::Channel.noun())?;
    let mut permit = Permit::of(control, head, client)?;
    permit.ask(Action::End(&channel)).await?;
    query::of(head, &[])?;
    if control.engine.rule(&channel).retention.is_none() {
        let message = "the channel keeps no messages, so it cannot end: see `messages` of its rule";
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    }
    log::check_exists(&control.engine, &channel).await?;
    let log = ErasedLog { control, channel: &channel };
    let mut answer = Vec::with_capacity(96);
    if head.method == Method::DELETE {
        let head = open(&log).await?.to_string();
        v1::opened_body(&mut answer, &names::target(&channel), &head);
        return Ok(answer::json(StatusCode::OK, answer));
    }
    let last = last_message(control, head, (&publisher, &mut permit), body, &channel).await?;
    permit.recheck(Action::End(&channel))?;
    let ids = end(&log, last.as_ref()).await?;
    control.metrics.count(HttpCounter::Published);
    let (end, last) = match &ids[..] {
        [last, end] => (end, Some(last.to_string())),
        [end] => (end, None),
        _ => return Err(ErrorResponse::from(PublishError::Unknown).into()),
    };
    v1::ended_body(&mut answer, &end.to_string(), last.as_deref());
    Ok(answer::json(StatusCode::CREATED, answer))
}

/// The last message of the channel; `None` if the body is empty.
async fn last_message(
    control: &Control,
    head: &Parts,
    (publisher, permit): (&Limited<'_>, &mut Permit<'_>),
    body: &mut Incoming,
    channel: &ChannelName,
) -> Result<Option<Publication>, ApiError> {
    let options = Options::of(&head.headers, "", None)?;
    let kind = body::BodyKind::Message;
    let is_counted = publisher.charge_body(head, kind)?;
    let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
    if !is_counted {
        publisher.count(0, bytes.len()).map_err(ApiError::limited)?;
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    permit.ask_before_content(channel).await?;
    let (body, content_type) = Body::parse(&bytes, options.content_type)?;
    let content = Replacement { body, content_type };
    let Replacement { body, content_type } =
        permit.ask_about(channel, content, &options.labels).await?;
    Ok(Some(Publication {
        content_type,
        excluded: options.excluded,
        attributes: permit.attributes(channel, &options.labels),
        expires_in_ms: options.expires_in_ms,
        ..Publication::new(channel.clone(), body)
    }))
}

/// Ends a channel. Returns the ids of the last message, if there is one, and of the notice.
async fn end(
    log: &ErasedLog<'_>,
    last: Option<&Publication>,
) -> Result<Vec<MessageId>, ErrorResponse> {
    for _ in 0..ATTEMPTS_MAX {
        let before = log.state().await?;
        if before.is_ended() {
            return Err(PublishError::Ended.into());
        }
        let change = LogChange::end(log.channel.clone(), last.cloned(), &before);
        match log.make(change).await {
            Ok(changed) => return Ok(changed.ids),
            Err(ChangeError::Conflict(_)) => {}
            Err(error) => return Err(error_of(error)),
        }
    }
    Err(busy())
}

/// Opens a channel again. Returns the id of its newest message.
async fn open(log: &ErasedLog<'_>) -> Result<MessageId, ErrorResponse> {
    for _ in 0..ATTEMPTS_MAX {
        let before = log.state().await?;
        let Some(change) = LogChange::open(log.channel.clone(), &before) else {
            let message = "the channel has not ended, so it is open";
            return Err(ErrorResponse::new(ErrorCode::NotFound, message));
        };
        match log.make(change).await {
            Ok(_) => return Ok(before.head),
            Err(ChangeError::Conflict(_)) => {}
            Err(error) => return Err(error_of(error)),
        }
    }
    Err(busy())
}
