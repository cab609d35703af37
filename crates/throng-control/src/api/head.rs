//! `HEAD` of the URLs that subscribe: what the same `GET` would be told, without a subscription.
//!
//! Three things differ, as the reference says. There is no `Throng-Connection`, because nothing is
//! connected. A long-poll is not waited for: without messages it is told what the `GET` would be
//! once its time is up. And where the `GET` of one would say in `Throng-Id` what comes after its
//! body, here stands what comes before it: whoever goes on from there has not seen the body.

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Version};
use throng_core::{Action, ChannelName, HistoryQuery, Listener, MessageId, Position, Start};
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::response::MESSAGE_POLICY;
use throng_wire::subscribe::{self, Request, Route, Transport};

use crate::api::{permit, set_id};
use crate::control::Control;
use crate::http::answer::{self, Answer, Refused, THRONG_RECOVERED};
use crate::http::caller::Caller;
use crate::http::origin;
use throng_wire::{ErrorCode, ErrorResponse};

/// The request has passed its limits already.
const LIMITS: Limits = Limits { head_bytes_max: usize::MAX };

/// Asks proxies not to collect what should arrive at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(crate) fn answer(control: &Control, head: &Parts) -> Result<Answer, Refused> {
    if control.is_draining() {
        return Err(Refused::from(ErrorCode::Draining));
    }
    let request = as_get(head)?;
    if request.is_status() {
        origin::check_status(&control.settings, head)?;
    } else if Caller::of(head).listener == Listener::Admin {
        origin::check_viewer(&control.settings, &request)?;
    }
    let max = control.settings.channels_max;
    if request.targets.len() > max {
        return Err(ErrorResponse::too_many_channels(max).into());
    }
    let names = request.targets.iter().map(|target| ChannelName::new(target.kind, &target.name));
    let channels: Vec<_> = names.collect();
    for channel in &channels {
        permit(control, head, Action::Subscribe(channel))?;
    }
    let starts = Start::of_request(&request)?;
    let places: Vec<_> = channels
        .iter()
        .zip(starts)
        .map(|(channel, start)| Place::find(control, channel, start))
        .collect();
    let is_empty = places.iter().all(|place| !place.has_backlog);
    let is_poll = matches!(request.transport, Transport::Poll { .. });
    let status = if is_poll && is_empty { StatusCode::NO_CONTENT } else { StatusCode::OK };
    let mut answer = answer::empty(status);
    if !places.is_empty() {
        set_id(&mut answer, Position(places.iter().map(|place| place.cursor).collect()));
    }
    let headers = answer.headers_mut();
    let told = places.iter().filter_map(|place| place.is_recovered);
    if let Some(is_recovered) = told.reduce(|all, one| all && one) {
        let value = HeaderValue::from_static(if is_recovered { "true" } else { "false" });
        headers.insert(THRONG_RECOVERED, value);
    }
    if !matches!(request.transport, Transport::WebSocket { .. }) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if is_poll && !is_empty {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(MESSAGE_POLICY));
    }
    if let Some(content_type) = content_type(&request) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
    Ok(answer)
}

/// Where a subscription of one channel would start.
struct Place {
    /// The id after which it would.
    cursor: MessageId,
    /// Whether messages are there already.
    has_backlog: bool,
    /// If an id was given, whether everything after it is there.
    is_recovered: Option<bool>,
}

impl Place {
    /// Finds out what [`Engine::follow`](throng_core::Engine::follow) would say, without following.
    fn find(control: &Control, channel: &ChannelName, start: Start) -> Place {
        let (query, limit) = match start {
            Start::Live => (HistoryQuery::Newest, 0),
            Start::Last(count) => (HistoryQuery::Newest, count),
            // The oldest of them is enough to know where the gap ends.
            Start::After(id) => (HistoryQuery::After(id), 1),
        };
        let history = control.engine.history(control.now_ms(), channel, query, limit);
        let is_recovered = history.is_recovered;
        let first = history.messages.first();
        let cursor = match (start, first) {
            (Start::After(id), _) if is_recovered == Some(true) => id,
            (_, Some(first)) => MessageId { offset: first.previous, ..history.head },
            (_, None) => history.head,
        };
        Place { cursor, has_backlog: first.is_some(), is_recovered }
    }
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
            Route::Other => Err(Refused::from(ErrorCode::NotFound)),
        },
        Parsed::Incomplete => {
            Err(Refused::new(ErrorCode::BadRequest, "the request head is malformed"))
        }
    }
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
