//! `HEAD` of the URLs that subscribe: what the same `GET` would be told, without a subscription.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Version};
use throng_core::id::IdError;
use throng_core::{Action, ChannelName, HistoryQuery, Position};
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::subscribe::{self, Request, Route, Transport};

use crate::answer::{self, Answer, Code, Refused, THRONG_RECOVERED};
use crate::api::{permit, set_id};
use crate::control::Control;

/// The request has passed its limits already.
const LIMITS: Limits = Limits { head_bytes_max: usize::MAX };

pub(crate) fn answer(control: &Control, head: &Parts) -> Result<Answer, Refused> {
    let request = as_get(head)?;
    let max = control.settings.channels_max;
    if request.targets.len() > max {
        let sentence = format!("one connection may follow at most {max} channels");
        return Err(Refused::parameter(sentence));
    }
    let names = request.targets.iter().map(|target| ChannelName::new(target.kind, &target.name));
    let channels: Vec<_> = names.collect();
    for channel in &channels {
        permit(control, Action::Subscribe(channel))?;
    }
    let since = since(&request, channels.len())?;
    let now_ms = control.now_ms();
    let mut position = Vec::with_capacity(channels.len());
    let mut is_recovered = true;
    for (nth, channel) in channels.iter().enumerate() {
        let id = since.as_ref().map(|since| since.0[nth]);
        let asked = id.map_or(HistoryQuery::Newest, HistoryQuery::After);
        let history = control.engine.history(now_ms, channel, asked, 0);
        is_recovered &= history.is_recovered.unwrap_or(true);
        position.push(history.head);
    }
    let mut answer = answer::empty(StatusCode::OK);
    if !position.is_empty() {
        set_id(&mut answer, Position(position));
    }
    let headers = answer.headers_mut();
    if since.is_some() {
        let value = HeaderValue::from_static(if is_recovered { "true" } else { "false" });
        headers.insert(THRONG_RECOVERED, value);
    }
    if let Some(content_type) = content_type(&request) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    Ok(answer)
}

/// What the same request would ask for as a `GET`. It is put together again for the reader that
/// the workers have too, so that both refuse the same.
fn as_get(head: &Parts) -> Result<Box<Request>, Refused> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let version = if head.version == Version::HTTP_10 { "1.0" } else { "1.1" };
    let mut bytes = format!("GET {target} HTTP/{version}\r\n").into_bytes();
    for (name, value) in &head.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    match head::parse(&bytes, LIMITS)? {
        Parsed::Complete { head, .. } => match subscribe::route(&head)? {
            Route::Subscribe(request) => Ok(request),
            Route::Other => Err(Refused::not_found()),
        },
        Parsed::Incomplete => Err(Refused::new(Code::BadRequest, "the request head is malformed")),
    }
}

/// The ids to go on from.
fn since(request: &Request, channels: usize) -> Result<Option<Position>, Refused> {
    let Some(text) = &request.since else { return Ok(None) };
    let bad = |error: IdError| Refused::new(Code::BadId, error.to_string());
    let position: Position = text.parse().map_err(bad)?;
    let ids = position.0.len();
    if ids != channels {
        let sentence = format!(
            "{ids} ids were given for {channels} channels; give one each, joined by commas"
        );
        return Err(Refused::new(Code::BadId, sentence));
    }
    Ok(Some(position))
}

/// What would follow, as far as that is known before a message comes.
fn content_type(request: &Request) -> Option<&'static str> {
    match request.transport {
        Transport::Sse => Some("text/event-stream"),
        Transport::Stream if request.envelope => Some("application/x-ndjson"),
        Transport::Stream => Some("text/plain; charset=utf-8"),
        Transport::Poll { .. } | Transport::WebSocket { .. } => None,
    }
}
