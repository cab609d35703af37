//! Requests that subscribe: which channels, from where on, on which transport.
//!
//! [`route`] checks everything that a client can get wrong, with a message that says what would be
//! right. A [`Request`] needs no further checks, except for the ids in `since`, whose format
//! belongs to the log.

mod handshake;
mod negotiate;
pub mod options;
mod query;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::handshake::WebSocketHandshake;
use self::query::{PresenceOfChannel, PresenceParameter, Query};
use crate::error::{ErrorCode, ErrorResponse};
use crate::head::{Head, Version};
use crate::name::{Kind, NameError, STATUS, Target, check_target_name};
use crate::percent::{decode_query, decode_segment};

pub use self::handshake::Subprotocol;
pub use self::negotiate::Transport;
pub use self::options::{ConnectionOption, Options, PACE_MS_MAX, PACE_MS_MIN};
pub use self::query::{HISTORY_MAX, KnownPresence, PARAMETERS, TIME_MS_MAX, WAIT_S_MAX, read_time};

/// The plane that serves a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The worker, which parks the connection.
    Subscribe(Box<Request>),
    /// The control plane.
    Other,
}

/// A channel whose presence events a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPresence {
    /// Its place among the targets of the request.
    pub target: usize,
    /// The last event that the client knows.
    pub known: Option<KnownPresence>,
}

/// The earlier messages with which a subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// This many of the newest ones.
    Last(u32),
    /// The newest one, with which the channel begins for everybody: nobody has asked for it.
    Newest,
    /// Those that were published at this time or later, in milliseconds since 1970.
    SinceTime(u64),
    /// The newest one of each key, and a notice where these end.
    State,
}

/// The earlier messages that a client asks for, by one of three fields or parameters.
pub(crate) fn replay(
    history: Option<u32>,
    since_time: Option<u64>,
    state: bool,
) -> Result<Option<Replay>, &'static str> {
    match (history, since_time, state) {
        (Some(_), Some(_), _) => Err("`history` and `since_time` exclude each other"),
        (Some(_), _, true) | (_, Some(_), true) => {
            Err("`state` excludes `history` and `since_time`")
        }
        (Some(count), None, false) => Ok(Some(Replay::Last(count))),
        (None, Some(ms), false) => Ok(Some(Replay::SinceTime(ms))),
        (None, None, is_wanted) => Ok(is_wanted.then_some(Replay::State)),
    }
}

/// A request for a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The channels in the order of the URL, then the user. No two are equal.
    pub targets: Vec<Target>,
    pub transport: Transport,
    /// The number of the encoding that its path asks for, in a dialect of others; `None`: the
    /// transport says it.
    pub encoding: Option<u8>,
    /// The public key of the application whose client it is, in a dialect that has such.
    pub app: Option<Box<str>>,
    /// The id to resume after, or one id for each target, joined by commas.
    pub since: Option<String>,
    /// The earlier messages to start with.
    pub replay: Option<Replay>,
    pub options: Options,
    /// The channels whose presence events the client wants, in the order of the URL.
    pub presence: Vec<WantedPresence>,
    /// True if the client speaks HTTP/1.0, which has no chunks.
    pub is_http10: bool,
    /// True if the connection stays open after a long-poll.
    pub keep_alive: bool,
    /// True if the query contains a token, which the referrer of a page would give away.
    pub has_query_token: bool,
    /// The id that the request brings for itself.
    pub request_id: Option<String>,
    /// The header `Origin`, which only browsers send.
    pub origin: Option<String>,
    /// The host and port that the request is for.
    pub host: Option<String>,
}

impl Request {
    /// A request to follow these from now on, with all that the head says of it.
    pub fn of(
        head: &Head<'_>,
        targets: Vec<Target>,
        transport: Transport,
    ) -> Result<Request, ErrorResponse> {
        Ok(Request {
            targets,
            transport,
            encoding: None,
            app: None,
            since: None,
            replay: None,
            options: Options::default(),
            presence: Vec::new(),
            is_http10: head.version == Version::Http10,
            keep_alive: head.keep_alive(),
            has_query_token: false,
            request_id: head.request_id().map(str::to_owned),
            origin: origin(head)?,
            host: head.host().map(str::to_owned),
        })
    }

    /// True if ids are joined by commas, one for each of several channels.
    pub fn is_multiple(&self) -> bool {
        self.targets.len() > 1
    }

    /// True if each message arrives as an envelope, a compact one or another: by itself, where the
    /// client wants a state, since a body alone does not tell its key.
    pub fn is_envelope(&self) -> bool {
        self.options.flag(ConnectionOption::Envelope).unwrap_or(self.wants_state())
    }

    /// True if the client wants the state of the channels.
    pub fn wants_state(&self) -> bool {
        self.replay == Some(Replay::State)
    }

    /// True if envelopes are compact.
    pub fn is_compact(&self) -> bool {
        self.options.get(ConnectionOption::Envelope) == Some(options::COMPACT)
    }

    /// True if compact envelopes carry the time of publication.
    pub fn is_timed(&self) -> bool {
        self.options.flag(ConnectionOption::Time).unwrap_or(false)
    }

    /// Fails if its options do not agree with each other or with the transport.
    fn check_options(&self) -> Result<(), ErrorResponse> {
        let has_compact = match self.transport {
            Transport::WebSocket { .. } => self.transport.is_v1(),
            Transport::Sse | Transport::Stream => true,
            Transport::LongPoll { .. } => false,
        };
        if self.is_compact() && !has_compact {
            return Err(ErrorResponse::bad_parameter(
                "`envelope=compact` is for `throng.v1`, SSE and streams; a WebSocket without that \
                 sub-protocol and a long-poll have `envelope=true`",
            ));
        }
        if self.options.get(ConnectionOption::Pace).is_some()
            && matches!(self.transport, Transport::LongPoll { .. })
        {
            return Err(ErrorResponse::bad_parameter(
                "a long-poll has no `pace`: its client decides when it asks again",
            ));
        }
        Ok(())
    }

    /// The user that the connection will belong to, if the request names one.
    pub fn user(&self) -> Option<&str> {
        let user = self.targets.iter().find(|target| target.kind == Kind::User)?;
        Some(&user.name)
    }

    /// True if it subscribes to the samples of the status page.
    pub fn is_status(&self) -> bool {
        self.targets.first().is_some_and(|target| target.kind == Kind::Internal)
    }
}

/// The URLs that subscribe.
#[derive(Clone, Copy)]
enum Endpoint<'a> {
    One(Kind, &'a str),
    Several,
    /// The stream of the status page.
    Status,
}

/// Decides whether the request subscribes, and parses the subscription.
pub fn route(head: &Head<'_>) -> Result<Route, ErrorResponse> {
    if head.method != "GET" {
        return Ok(Route::Other);
    }
    let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
    let Some(endpoint) = endpoint(path) else { return Ok(Route::Other) };
    if head.has_body() {
        return Err(has_body());
    }
    if let Endpoint::Status = endpoint {
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            query::refuse_unknown(key, value, &[])?;
        }
        return Ok(Route::Subscribe(Box::new(status(head)?)));
    }
    let query = Query::parse(query)?;
    let transport = negotiate::transport(head, &query)?;
    let targets = targets(endpoint, &query)?;
    if targets.is_empty() && !transport.is_v1() {
        return Err(ErrorResponse::bad_parameter(
            "name at least one `channel`, or a `user`; only with `throng.v1` may both be missing",
        ));
    }
    let presence = presence(&query, &targets)?;
    let request = Request {
        since: since(head, &query)?,
        replay: replay(query.history, query.since_time, query.state.unwrap_or(false))
            .map_err(ErrorResponse::bad_parameter)?,
        options: query.options,
        presence,
        has_query_token: query.token.is_some(),
        ..Request::of(head, targets, transport)?
    };
    request.check_options()?;
    Ok(Route::Subscribe(Box::new(request)))
}

/// The refusal of a request that subscribes and has a body. Of a chunked one only its bytes show
/// that: see [`chunked_body`](crate::head::chunked_body).
pub fn has_body() -> ErrorResponse {
    ErrorResponse::bad_request("a request that subscribes has no body")
}

/// A subscription to the samples of the status page, from the next one on; the control plane serves
/// earlier ones. The transport is always SSE: a WebSocket could publish, which this log does not
/// allow.
fn status(head: &Head<'_>) -> Result<Request, ErrorResponse> {
    let targets = vec![Target { kind: Kind::Internal, name: STATUS.to_owned() }];
    let request = Request::of(head, targets, Transport::Sse)?;
    Ok(Request { options: Options::default().with(ConnectionOption::Welcome, 0), ..request })
}

/// The WebSocket that a request asks for, whatever its sub-protocols.
pub fn websocket(head: &Head<'_>) -> Result<Transport, ErrorResponse> {
    let WebSocketHandshake { accept, subprotocol: _, deflate } = handshake::read(head)?;
    Ok(Transport::WebSocket { accept, subprotocol: None, deflate })
}

fn endpoint(path: &str) -> Option<Endpoint<'_>> {
    match path {
        "/subscribe" => return Some(Endpoint::Several),
        "/status/stream" => return Some(Endpoint::Status),
        _ => {}
    }
    let (kind, segment) = match path.strip_prefix("/channels/") {
        Some(segment) => (Kind::Channel, segment),
        None => (Kind::User, path.strip_prefix("/users/")?),
    };
    (!segment.contains('/')).then_some(Endpoint::One(kind, segment))
}

fn targets(endpoint: Endpoint<'_>, query: &Query<'_>) -> Result<Vec<Target>, ErrorResponse> {
    let mut targets = Vec::with_capacity(1);
    match endpoint {
        Endpoint::One(..) if !query.channels.is_empty() => {
            return Err(ErrorResponse::bad_parameter(
                "the parameter `channel` belongs to /subscribe; here the path names the channel",
            ));
        }
        Endpoint::One(Kind::User, _) if query.user.is_some() => {
            return Err(ErrorResponse::bad_parameter(
                "the parameter `user` does not belong to /users; there the path names the user",
            ));
        }
        Endpoint::One(kind, segment) => targets.push(target(kind, decode_segment(segment))?),
        Endpoint::Several => {
            for raw in &query.channels {
                targets.push(target(Kind::Channel, decode_query(raw))?);
            }
            refuse_repeated(&targets)?;
        }
        Endpoint::Status => {}
    }
    if let Some(raw) = query.user {
        targets.push(target(Kind::User, decode_query(raw))?);
    }
    Ok(targets)
}

fn target(kind: Kind, name: Option<Cow<'_, str>>) -> Result<Target, ErrorResponse> {
    let noun = kind.noun();
    let name = name.ok_or(NameError::NotUtf8(noun))?;
    check_target_name(&name, noun)?;
    Ok(Target { kind, name: name.into_owned() })
}

/// The channels whose presence events the client wants.
fn presence(query: &Query<'_>, targets: &[Target]) -> Result<Vec<WantedPresence>, ErrorResponse> {
    let Some(presence) = &query.presence else { return Ok(Vec::new()) };
    if let PresenceParameter::All(false) = presence {
        return Ok(Vec::new());
    }
    let channels = targets.iter().filter(|target| target.kind == Kind::Channel).count();
    if channels < targets.len().min(1) {
        return Err(ErrorResponse::bad_parameter(
            "the parameter `presence` is about channels, and the request names none",
        ));
    }
    let PresenceParameter::Each(each) = presence else {
        return Ok((0..channels).map(|target| WantedPresence { target, known: None }).collect());
    };
    let values = each.len();
    if values != channels {
        return Err(ErrorResponse::bad_parameter(format!(
            "the parameter `presence` has {values} values for {channels} channels; give one each, \
             joined by commas",
        )));
    }
    let wanted = each.iter().enumerate().filter_map(|(target, of_channel)| match of_channel {
        PresenceOfChannel::Nothing => None,
        PresenceOfChannel::Events => Some(WantedPresence { target, known: None }),
        PresenceOfChannel::After(known) => {
            Some(WantedPresence { target, known: Some(known.clone()) })
        }
    });
    Ok(wanted.collect())
}

/// Refuses channels that are named twice. Sorts, because a URL can name a thousand.
fn refuse_repeated(channels: &[Target]) -> Result<(), ErrorResponse> {
    let mut names: Vec<&str> = channels.iter().map(|target| target.name.as_str()).collect();
    names.sort_unstable();
    match names.array_windows().find(|[left, right]| left == right) {
        Some([name, _]) => {
            Err(ErrorResponse::bad_parameter(format!("the channel `{name}` is named twice")))
        }
        None => Ok(()),
    }
}

/// The id to resume after. The header overrides the query: `EventSource` reconnects with its first
/// URL, and sends the newer id in the header.
fn since(head: &Head<'_>, query: &Query<'_>) -> Result<Option<String>, ErrorResponse> {
    let mut ids = head.headers("last-event-id");
    let id = ids.next();
    if ids.next().is_some() {
        // Of two, the older one would repeat messages, and the newer one perhaps lose some.
        let message = "the header `Last-Event-ID` is given twice";
        return Err(ErrorResponse::new(ErrorCode::BadRequest, message));
    }
    match id {
        None | Some([]) => query.since(),
        Some(id) => match str::from_utf8(id) {
            Ok(id) => Ok(Some(id.to_owned())),
            Err(_) => {
                Err(ErrorResponse::new(ErrorCode::BadId, "the header `Last-Event-ID` is not an id"))
            }
        },
    }
}

/// The header `Origin`. Bytes that are not UTF-8 are replaced, not dropped: the result equals no
/// allowed origin, whereas a request without an origin would be allowed.
fn origin(head: &Head<'_>) -> Result<Option<String>, ErrorResponse> {
    let mut values = head.headers("origin");
    let origin = values.next().map(|value| String::from_utf8_lossy(value).into_owned());
    match values.next() {
        None => Ok(origin),
        Some(_) => Err(ErrorResponse::bad_request("the header `Origin` is given twice")),
    }
}
