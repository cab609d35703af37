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
    Body, ChangeError, Kind, LogChange, MessageId, Publication, PublishError, Replacement,
};
use throng_wire::{ErrorCode, ErrorResponse, v1};

use super::channel_request::ChannelRequest;
use super::creation;
use super::erase::{ATTEMPTS_MAX, ErasedLog, busy, error_of};
use super::log;
use super::publish::Options;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::body::BodyKind;
use crate::http::names;
use crate::metrics::HttpCounter;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    body: &mut Incoming,
    segment: &str,
) -> Result<Answer, ApiError> {
    let mut request = ChannelRequest::begin(control, head, client, (Kind::Channel, segment))?;
    request.permit.ask(Action::End(&request.channel)).await?;
    request.check_log(head, "end")?;
    log::check_exists(&control.engine, &request.channel).await?;
    let mut answer = Vec::with_capacity(96);
    if head.method == Method::DELETE {
        let log = ErasedLog { control, channel: &request.channel };
        let head = open(&log).await?.to_string();
        v1::opened_body(&mut answer, &names::target(&request.channel), &head);
        return Ok(answer::json(StatusCode::OK, answer));
    }
    let last = last_message(&mut request, head, body).await?;
    request.permit.recheck(Action::End(&request.channel))?;
    let ids = end(&ErasedLog { control, channel: &request.channel }, last.as_ref()).await?;
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
    request: &mut ChannelRequest<'_>,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Option<Publication>, ApiError> {
    let options = Options::of(&head.headers, "", None)?;
    let bytes = request.read_body(head, body, BodyKind::Message).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let ChannelRequest { permit, channel, .. } = request;
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
        if before.creation().is_some_and(|known| known.is_over) {
            return Err(creation::being_erased());
        }
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
