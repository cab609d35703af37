//! `HEAD` of the URLs that subscribe: the response head of the same `GET`, without a subscription.
//!
//! Three things differ from the `GET`, as the reference says:
//!
//! * There is no `Throng-Connection`, because there is no subscription.
//! * A long-poll does not wait. Without messages the response is that of a `GET` that timed out.
//! * For a long-poll with messages `Throng-Id` is the id before the body, not the id after it: the
//!   client has not seen the body, and continues from this id.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Version};
use throng_access::Action;
use throng_access::limit::READ_BYTES_MIN;
use throng_core::{
    ChannelName, Channels, HistoryQuery, Listener, MessageId, Position, RefusedForMemory, StartAt,
};
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::response::MESSAGE_POLICY;
use throng_wire::subscribe::{Request, Route, Transport};
use throng_wire::{ErrorCode, ErrorResponse};

use super::limit::Limited;
use super::log::{self, FETCH_TIMEOUT};
use super::parameters::set_id;
use super::permit::Permit;
use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError, THRONG_RECOVERED};
use crate::http::caller::Caller;
use crate::http::origin;

/// The head has passed the limits of the settings already.
const LIMITS: Limits = Limits { max_head_bytes: usize::MAX };

/// Tells nginx not to buffer the response.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(crate) async fn answer(control: &Control, head: &Parts) -> Result<Answer, ApiError> {
    if control.is_draining() {
        return Err(ErrorCode::Draining.into());
    }
    let bytes = as_get(head);
    let (get, request) = parse(&bytes)?;
    if request.is_status() {
        control.authentication.check_operator(&control.settings, head, Operation::Status)?;
    } else if Caller::of(head).listener == Listener::Admin {
        origin::check_viewer(&control.settings, Listener::Admin, &request)?;
    }
    control.check_memory(RefusedForMemory::Subscription)?;
    let names = request.targets.iter().map(|target| ChannelName::new(target.kind, &target.name));
    let channels: Vec<_> = names.collect();
    if !request.is_status() {
        let authentication = &control.authentication;
        let client = authentication.subscriber(&control.settings, head, (&get, &request)).await?;
        let granted = client.credentials().max_channels();
        let max = control.settings.max_channels_per_connection.max(granted);
        if request.targets.len() > max {
            return Err(ErrorResponse::too_many_channels(max).into());
        }
        let mut permit = Permit::of(control, head, &client)?.with_user(request.user());
        for channel in &channels {
            permit.ask(Action::Subscribe(channel)).await?;
        }
        let limited = Limited::of(control, head, &client)?;
        limited.begin_reading().map_err(ApiError::limited)?;
        // Each channel is a look at a log.
        limited.charge_read(channels.len() * READ_BYTES_MIN);
    }
    // The header fields of a `GET` (RFC 9110 section 9.3.2), but nothing is subscribed.
    let starts = StartAt::of_request(&request)?;
    let (mut cursors, mut wait_left) = (Vec::new(), FETCH_TIMEOUT);
    for (channel, start) in channels.iter().zip(starts) {
        log::check_exists(&control.engine, channel).await?;
        cursors.push(Cursor::find(&control.engine, channel, start, &mut wait_left).await?);
    }
    let is_empty = cursors.iter().all(|cursor| !cursor.has_backlog);
    let is_poll = matches!(request.transport, Transport::LongPoll { .. });
    let status = if is_poll && is_empty { StatusCode::NO_CONTENT } else { StatusCode::OK };
    let mut answer = answer::empty(status);
    if !cursors.is_empty() {
        set_id(&mut answer, Position(cursors.iter().map(|cursor| cursor.id).collect()));
    }
    let headers = answer.headers_mut();
    let recovered = cursors.iter().filter_map(|cursor| cursor.is_recovered);
    if let Some(is_recovered) = recovered.reduce(|all, one| all && one) {
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
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    }
    Ok(answer)
}

/// Where a subscription of one channel would start.
struct Cursor {
    /// The id of the last message before the subscription.
    id: MessageId,
    /// True if the log has messages after `id`.
    has_backlog: bool,
    /// True if the log has all messages after the requested id; `None` if none was requested.
    is_recovered: Option<bool>,
}

impl Cursor {
    /// Finds what [`Channels::follow`] would return, without following: the same position, of which
    /// `follow` may return a later id.
    async fn find(
        engine: &Channels,
        channel: &ChannelName,
        start: StartAt,
        wait_left: &mut Duration,
    ) -> Result<Cursor, ErrorResponse> {
        let (query, limit) = match start {
            StartAt::Live => (HistoryQuery::Newest, 0),
            StartAt::Last(count) => (HistoryQuery::FirstOfLast(count), 1),
            // The oldest message is enough to know where a gap ends.
            StartAt::After(id) => (HistoryQuery::After(id), 1),
            StartAt::Since(position) => (HistoryQuery::Since(position), 1),
            StartAt::From(time_ms) => (HistoryQuery::From(time_ms), 1),
            StartAt::State => (HistoryQuery::From(0), 1),
        };
        let history = log::read(engine, channel, query, limit, wait_left).await?;
        let is_recovered = history.is_recovered;
        let first = history.messages.first();
        let id = match (start, first) {
            (StartAt::After(id), _) if is_recovered == Some(true) => id,
            (_, Some(first)) => MessageId { offset: first.previous, ..history.head },
            (_, None) => history.head,
        };
        Ok(Cursor { id, has_backlog: first.is_some(), is_recovered })
    }
}

/// The head of the same request with `GET`, for the parser that the workers use, so that both
/// planes refuse the same requests.
fn as_get(head: &Parts) -> Vec<u8> {
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
    bytes
}

/// The head and the subscription that it asks for.
fn parse(bytes: &[u8]) -> Result<(Head<'_>, Box<Request>), ApiError> {
    match head::parse(bytes, LIMITS)? {
        Parsed::Complete { head, .. } => match throng_dialect::route(&head)? {
            Route::Subscribe(request) => Ok((head, request)),
            Route::Other => Err(ErrorCode::NotFound.into()),
        },
        Parsed::Incomplete => {
            Err(ApiError::new(ErrorCode::BadRequest, "the request head is malformed"))
        }
    }
}

/// The content type of the body; `None` if it depends on the message, and for WebSockets.
fn content_type(request: &Request) -> Option<&'static str> {
    match request.transport {
        Transport::Sse => Some("text/event-stream"),
        Transport::Stream if request.is_envelope() => Some("application/x-ndjson"),
        Transport::Stream => Some("text/plain; charset=utf-8"),
        Transport::LongPoll { .. } | Transport::WebSocket { .. } => None,
    }
}
