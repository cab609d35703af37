//! The Pusher Channels protocol, version 7; see [`throng_pusher`].
//!
//! The names of an application are the server's with its prefix before them: what a client calls
//! `news` is `shop/news`. Signatures are checked here, so that all other code sees a client that
//! follows a channel of its application, and the member that the application has named.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::to_raw_value;
use throng_core::{Attribute, Body, Message};
use throng_pusher::App;
use throng_pusher::app::split_prefix;
use throng_pusher::channel::{
    Access, Channel, OF_USER, SUBSCRIPTION_COUNT, is_client_event, is_event_name,
};
use throng_pusher::client_frame::{
    ClientEvent, ClientFrame, Member, SignIn, SignedUser, Subscribe,
};
use throng_pusher::server_frame::{self, Data, PONG, Resumed, code};
use throng_wire::error::ResponseOptions;
use throng_wire::head::Head;
use throng_wire::member::member_info;
use throng_wire::response::{self, SubscriptionHeaders};
use throng_wire::subscribe::{self, Replay, Request, Route, Transport};
use throng_wire::v1::{Command, MemberEvent, Publication, RawValue, Received};
use throng_wire::websocket::{Opcode, write_close, write_frame};
use throng_wire::{ErrorCode, ErrorResponse, Kind, Labels, MemberClaim, Target, check_target_name};

use crate::close_reason::CloseReason;
use crate::dialect::{Dialect, End, Ended, Heard, Shown, Speaker};
use crate::framing::Out;
use crate::saying::{Saying, Start, Welcome};

/// The number of its encoding.
const ENCODING: u8 = 20;

/// The client asks whether the server is there when it has heard nothing for so long.
const ACTIVITY_TIMEOUT_S: u64 = 120;

/// So it never has to: no silence of the server is as long.
const SILENCE_MAX: Duration = Duration::from_secs(100);

/// The events that a client may publish in a second.
const CLIENT_EVENTS_PER_S: u32 = 10;

/// Bytes of a command beside the data of an event, which JSON may escape.
const COMMAND_SLACK_BYTES: usize = 4096;
/// A command may be this many times as large as a message: as on `throng.v1`.
const COMMAND_FACTOR: usize = 6;

/// The longest reason of a close frame.
const REASON_BYTES_MAX: usize = 123;

/// A frame of [`PONG`], alone and behind a ping of the WebSocket.
const HEARTBEAT: &[u8] = b"\x81\x23{\"event\":\"pusher:pong\",\"data\":\"{}\"}";
const PING: &[u8] = b"\x89\0\x81\x23{\"event\":\"pusher:pong\",\"data\":\"{}\"}";
/// A `pusher:ping`, which clients answer in the order of what they get.
const QUESTION: &[u8] = b"\x81\x23{\"event\":\"pusher:ping\",\"data\":\"{}\"}";
const _: () = assert!(QUESTION.len() == HEARTBEAT.len());
const _: () = assert!(PONG.len() == 0x23 && HEARTBEAT.len() == PONG.len() + 2);

/// What a client gets in place of a notice for which the protocol has no word, such as that a
/// member shows something else, or that members may be missing: a message has at least one byte,
/// and this one says nothing.
const NOTHING: &str = PONG;

/// The event of a message without one.
const MESSAGE: &str = "message";

#[derive(Debug)]
pub(crate) struct Pusher;

impl Dialect for Pusher {
    fn has_commands(&self) -> bool {
        true
    }

    fn is_of_apps(&self) -> bool {
        true
    }

    fn client_events_per_s(&self) -> Option<u32> {
        Some(CLIENT_EVENTS_PER_S)
    }

    fn confirms_with_members(&self) -> bool {
        true
    }

    fn max_input_bytes(&self, max_message_bytes: usize) -> usize {
        max_message_bytes * COMMAND_FACTOR + COMMAND_SLACK_BYTES
    }

    /// A client that no enabled key identifies, or of a page that may not use the application, is
    /// accepted, told, and closed for good. To every other
    /// refusal it gets a status, which makes it wait for longer than any close code does.
    fn refuse(
        &self,
        error: &ErrorResponse,
        request: Option<&Request>,
        options: &ResponseOptions<'_>,
        out: &mut Vec<u8>,
    ) {
        let code = match error.code {
            ErrorCode::Unauthorized => code::NO_APP,
            ErrorCode::Forbidden => code::DISABLED,
            ErrorCode::OriginRefused => code::UNAUTHORIZED,
            ErrorCode::BadVersion => code::VERSION,
            _ => return error.write_response(out, options),
        };
        let Some(Request { transport: Transport::WebSocket { accept, .. }, .. }) = request else {
            return error.write_response(out, options);
        };
        response::websocket(out, accept, None, None, &SubscriptionHeaders::default());
        let mut frame = Vec::new();
        server_frame::error(&mut frame, code, &error.message);
        write_frame(out, Opcode::Text, &frame);
        write_close(out, code, reason(&error.message));
    }

    fn message(&self, message: &Message, _: Shown<'_>, out: &mut Out<'_>) {
        let is_known = |event: &&str| is_event_name(event) || *event == SUBSCRIPTION_COUNT;
        let event = event_of(message).filter(is_known).unwrap_or(MESSAGE);
        let (prefix, own) = split_prefix(message.channel.name());
        let channel = match message.channel.kind() {
            Kind::User => Cow::Owned([OF_USER, own].concat()),
            Kind::Channel | Kind::Internal => Cow::Borrowed(own),
        };
        let is_of_client = is_client_event(event);
        let encoded;
        let data = match &message.body {
            Body::Json(json) if is_of_client => Data::Json(json),
            Body::Json(text) | Body::Text(text) => Data::Text(text),
            Body::Binary(bytes) => {
                encoded = STANDARD.encode(bytes);
                Data::Text(&encoded)
            }
        };
        let from = message.facts().from.filter(|_| is_of_client && own.starts_with("presence-"));
        let user = from.and_then(|from| from.strip_prefix(prefix));
        let id = (!message.is_volatile()).then(|| message.id.to_string());
        let mut frame = Vec::with_capacity(message.body.bytes().len() + 128);
        server_frame::event(&mut frame, (event, &channel), data, user, id.as_deref());
        out.text(&frame);
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let mut frame = Vec::new();
        match saying {
            Saying::Welcome(Welcome { socket: Some(socket), .. }) => {
                server_frame::established(&mut frame, *socket, ACTIVITY_TIMEOUT_S);
            }
            Saying::Subscribed(target, start) => return confirm(target, start, out),
            Saying::Member(event) => write_member(event, &mut frame),
            Saying::Authenticated(..) => {
                if let About::SignIn(user_data) = About::of(reference) {
                    server_frame::signed_in(&mut frame, &user_data);
                }
            }
            Saying::Unread(..) | Saying::Partial(_) => {
                frame.extend_from_slice(NOTHING.as_bytes());
            }
            Saying::Pong => frame.extend_from_slice(PONG.as_bytes()),
            Saying::Error(error) => return refuse(error, &About::of(reference), out),
            Saying::Watched { users, is_online } => {
                let own: Vec<_> = users.iter().map(|user| split_prefix(user).1).collect();
                server_frame::watchlist_events(&mut frame, *is_online, &own);
            }
            Saying::Unwatched(error) => {
                server_frame::error(&mut frame, code::WATCHLIST, &error.message);
            }
            Saying::Revoked(target, error) => {
                let refused = ("AuthError", &*error.message, error.code.status());
                server_frame::subscription_error(&mut frame, &name_of(target), refused);
            }
            // The protocol has no words for the rest, or leaves them out.
            _ => {}
        }
        if !frame.is_empty() {
            out.text(&frame);
        }
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        let close = close_code(end.reason);
        let is_over = close.is_none_or(|code| code == code::UNAUTHORIZED);
        let mut frame = Vec::new();
        if end.may_stay && !is_over {
            server_frame::error(&mut frame, code::AGAIN, end.message);
            out.text(&frame);
            return Ended::Stays;
        }
        if let Some(code) = close {
            // Some clients read no close codes.
            if code >= code::NO_APP {
                server_frame::error(&mut frame, code, end.message);
                out.text(&frame);
            }
            out.close(code, reason(end.message));
        }
        Ended::Closes
    }

    fn hear(&self, payload: &[u8], is_text: bool, speaker: &dyn Speaker) -> (Heard, usize) {
        let Some(app) = speaker.app() else {
            // The application has gone from the settings.
            return (Heard::Refused(CloseReason::Revoked), payload.len());
        };
        let text = str::from_utf8(payload).ok().filter(|_| is_text);
        let frame = text.map(ClientFrame::read);
        let (about, command) = match frame {
            None => (About::Frame, Err(bad_request("a frame is text"))),
            Some(Err(error)) => (About::Frame, Err(bad_request(error.to_string()))),
            Some(Ok(ClientFrame::Nothing)) => return (Heard::Nothing, payload.len()),
            Some(Ok(ClientFrame::Pong)) => return (Heard::Confirmed, payload.len()),
            Some(Ok(ClientFrame::Ping)) => (About::Frame, Ok(Command::Ping)),
            Some(Ok(ClientFrame::Subscribe(subscribe))) => {
                let command = subscription(app, &subscribe, speaker);
                (About::Subscription(subscribe.channel), command)
            }
            Some(Ok(ClientFrame::Unsubscribe { channel })) => {
                let target = target(app, &channel).map(|(_, target)| target);
                (About::Nothing, target.map(|target| Command::Unsubscribe { target }))
            }
            Some(Ok(ClientFrame::SignIn(sign_in))) => {
                let command = sign_in_command(app, &sign_in, speaker);
                (About::SignIn(sign_in.user_data), command)
            }
            Some(Ok(ClientFrame::Event(event))) => (About::Event, publication(app, &event)),
        };
        (Heard::Command(Received { reference: about.reference(), command }), payload.len())
    }

    fn heartbeat_interval(&self) -> Option<Duration> {
        Some(SILENCE_MAX)
    }

    fn heartbeat(&self, _: bool) -> &'static [u8] {
        HEARTBEAT
    }

    fn question(&self) -> Option<&'static [u8]> {
        Some(QUESTION)
    }

    fn ping(&self) -> &'static [u8] {
        PING
    }
}

/// What a command is about, which its answer has to know: in the place of a client's own name for
/// it.
enum About<'a> {
    /// An unsubscription, of which nothing is said.
    Nothing,
    Frame,
    Event,
    Subscription(Cow<'a, str>),
    SignIn(Cow<'a, str>),
}

impl<'a> About<'a> {
    fn reference(&self) -> Option<Box<RawValue>> {
        let json = match self {
            About::Nothing => return None,
            About::Frame => "0".to_owned(),
            About::Event => "1".to_owned(),
            About::Subscription(channel) => return to_raw_value(channel).ok(),
            About::SignIn(user_data) => return to_raw_value(&[user_data]).ok(),
        };
        RawValue::from_string(json).ok()
    }

    fn of(reference: Option<&'a RawValue>) -> About<'a> {
        let Some(json) = reference.map(RawValue::get) else { return About::Nothing };
        let text =
            |json| serde_json::from_str::<Text<'_>>(json).map_or("".into(), |Text(text)| text);
        match json.as_bytes() {
            [b'"', ..] => About::Subscription(text(json)),
            [b'[', ..] => About::SignIn(text(json.trim_matches(['[', ']']))),
            b"1" => About::Event,
            _ => About::Frame,
        }
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads `GET /app/{key}` that asks for a WebSocket. Any other request is none of this protocol.
pub(crate) fn read(head: &Head<'_>) -> Result<Route, ErrorResponse> {
    let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
    let key = path.strip_prefix("/app/").unwrap_or_default();
    let is_upgrade = head.method == "GET" && head.has_item("upgrade", "websocket");
    if !is_upgrade || key.is_empty() || key.contains('/') {
        return Ok(Route::Other);
    }
    let transport = subscribe::websocket(head)?;
    let request = Request::of(head, Vec::new(), transport)?;
    let encoding = Some(ENCODING);
    let app = if has_version(query) { key } else { "" };
    Ok(Route::Subscribe(Box::new(Request { encoding, app: Some(app.into()), ..request })))
}

/// True unless the client speaks a version whose frames are others. A client that says nothing of
/// it is believed to speak the newest.
fn has_version(query: &str) -> bool {
    let version = query.split('&').find_map(|pair| pair.strip_prefix("protocol="));
    version.is_none_or(|version| matches!(version, "4" | "5" | "6" | "7"))
}

/// The channel with this name of the application, and the server's name of it.
fn target<'c>(app: &App, name: &'c str) -> Result<(Channel<'c>, Target), ErrorResponse> {
    let bad_name = || {
        ErrorResponse::new(
            ErrorCode::BadName,
            "a channel has 1 to 200 letters, digits and characters of `_-=@,.;`",
        )
    };
    let channel = Channel::of(name).ok_or_else(bad_name)?;
    let kind = if channel.user().is_some() { Kind::User } else { Kind::Channel };
    let name = app.own(channel.user().unwrap_or(name));
    check_target_name(&name, kind.noun())?;
    Ok((channel, Target { kind, name }))
}

fn subscription(
    app: &App,
    subscribe: &Subscribe<'_>,
    speaker: &dyn Speaker,
) -> Result<Command, ErrorResponse> {
    let (channel, target) = target(app, &subscribe.channel)?;
    let unsigned = || {
        let message = "the application has not signed this subscription of this connection";
        ErrorResponse::new(ErrorCode::Unauthorized, message)
    };
    match channel.access() {
        Access::Public => {}
        Access::User if speaker.is_user(&target.name) => {}
        Access::User => {
            let message = "this is the channel of another user: sign in as that first";
            return Err(ErrorResponse::new(ErrorCode::Unauthorized, message));
        }
        Access::Private | Access::Presence => {
            let socket = speaker.socket().ok_or_else(unsigned)?;
            if !app.has_signed(&subscribe.signed_text(socket), &subscribe.auth) {
                return Err(unsigned());
            }
        }
    }
    let asks_for_earlier = subscribe.since.is_some() || subscribe.history.is_some();
    if asks_for_earlier && !app.shows_history() {
        let message = "clients of this application get no earlier events: see `history`";
        return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
    }
    let own = channel.is_cache().then_some(Replay::Newest);
    let earlier = match subscribe.history {
        Some(count) => Some(Replay::Last(count.max(u32::from(channel.is_cache())))),
        None => own,
    };
    let since = subscribe.since.as_deref().map(str::to_owned);
    let is_presence = channel.access() == Access::Presence;
    let member = is_presence.then(|| member(app, subscribe)).transpose()?;
    Ok(Command::Subscribe {
        target,
        replay: earlier.filter(|_| since.is_none()),
        since,
        presence: is_presence,
        member: member.map(Box::new),
        expires_in_s: None,
        pace_ms: None,
    })
}

/// The member that the application has signed.
fn member(app: &App, subscribe: &Subscribe<'_>) -> Result<MemberClaim, ErrorResponse> {
    let data = subscribe.channel_data.as_deref().and_then(Member::read);
    let Some(Member { user_id, user_info }) = data else {
        let message = "a presence channel needs `channel_data` with a `user_id`";
        return Err(bad_request(message));
    };
    let user = app.own(&user_id);
    check_target_name(&user, "user")?;
    let info = user_info
        .map(member_info)
        .transpose()
        .map_err(|error| bad_request(format!("`user_info` {error}")))?;
    Ok(MemberClaim { user: Some(user.into()), info })
}

fn sign_in_command(
    app: &App,
    sign_in: &SignIn<'_>,
    speaker: &dyn Speaker,
) -> Result<Command, ErrorResponse> {
    let is_signed = |socket| app.has_signed(&sign_in.signed_text(socket), &sign_in.auth);
    if !speaker.socket().is_some_and(is_signed) {
        let message = "the application has not signed this user of this connection";
        return Err(ErrorResponse::new(ErrorCode::Unauthorized, message));
    }
    let Some(SignedUser { id, watchlist }) = SignedUser::read(&sign_in.user_data) else {
        return Err(bad_request("`user_data` needs an `id`"));
    };
    check_target_name(&app.own(&id), "user")?;
    let watchlist = watchlist.into_iter().map(Into::into).collect();
    Ok(Command::SignIn { user: id.into(), watchlist })
}

fn publication(app: &App, event: &ClientEvent<'_>) -> Result<Command, ErrorResponse> {
    let (channel, target) = target(app, &event.channel)?;
    if !channel.takes_client_events() {
        let message = "clients publish to private and presence channels only";
        return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
    }
    if !is_event_name(&event.event) {
        return Err(bad_request("the name of an event has at most 200 bytes"));
    }
    let json = event.data.map_or("null", RawValue::get);
    // A text stays a text, and everything else JSON: readers get either as it came.
    let (body, content_type) = match serde_json::from_str::<Text<'_>>(json) {
        Ok(Text(text)) => (text.into_owned(), None),
        Err(_) => (json.to_owned(), Some("application/json".to_owned())),
    };
    let labels = Labels { event: Some((*event.event).into()), ..Labels::default() };
    let publication = Publication {
        body: body.into_bytes(),
        content_type,
        key: None,
        expires_in_s: None,
        is_volatile: true,
        labels,
    };
    Ok(Command::Publish { target, publication, echo: false })
}

/// The name of a message's event as its publisher has given it, also one that no envelope shows.
fn event_of(message: &Message) -> Option<&str> {
    str::from_utf8(message.extras.attributes()?.get(Attribute::Event)?).ok()
}

/// The application's name of a channel.
fn name_of(target: &Target) -> Cow<'_, str> {
    let (_, own) = split_prefix(&target.name);
    match target.kind {
        Kind::User => Cow::Owned([OF_USER, own].concat()),
        Kind::Channel | Kind::Internal => Cow::Borrowed(own),
    }
}

fn confirm(target: &Target, start: &Start, out: &mut Out<'_>) {
    let (prefix, _) = split_prefix(&target.name);
    let name = name_of(target);
    let mut frame = Vec::new();
    let id = start.recovered.map(|_| start.id.to_string()).unwrap_or_default();
    let resumed = start.recovered.map(|is_recovered| Resumed { id: &id, is_recovered });
    match &start.members {
        None => server_frame::succeeded(&mut frame, &name, resumed),
        Some(members) => {
            let members = members.iter().filter_map(|object| shown(prefix, object));
            server_frame::succeeded_with(&mut frame, &name, resumed, members);
        }
    }
    out.text(&frame);
    let has_nothing = start.head.is_none() && start.recovered.is_none();
    if has_nothing && Channel::of(&name).is_some_and(Channel::is_cache) {
        let mut miss = Vec::new();
        server_frame::cache_miss(&mut miss, &name);
        out.text(&miss);
    }
}

/// A member as the core has it.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    info: Option<&'a RawValue>,
}

/// The id of a member, and what it shows; `None` for one that is no user of the application.
fn shown<'m>(prefix: &str, object: &'m str) -> Option<(Cow<'m, str>, Option<&'m RawValue>)> {
    let Object { user, info } = serde_json::from_str(object).ok()?;
    let id = match user? {
        Cow::Borrowed(user) => Cow::Borrowed(user.strip_prefix(prefix)?),
        Cow::Owned(user) => Cow::Owned(user.strip_prefix(prefix)?.to_owned()),
    };
    Some((id, info))
}

fn write_member(event: &MemberEvent<'_>, frame: &mut Vec<u8>) {
    let (prefix, channel) = split_prefix(event.channel);
    let Some((id, info)) = shown(prefix, event.object) else {
        return frame.extend_from_slice(NOTHING.as_bytes());
    };
    match event.event {
        "join" => server_frame::member_added(frame, channel, &id, info),
        "leave" => server_frame::member_removed(frame, channel, &id),
        _ => frame.extend_from_slice(NOTHING.as_bytes()),
    }
}

fn refuse(error: &ErrorResponse, about: &About<'_>, out: &mut Out<'_>) {
    let mut frame = Vec::new();
    let status = error.code.status();
    let code = match about {
        About::Nothing => return,
        About::Frame => code::AGAIN,
        About::Event => code::CLIENT_EVENT,
        About::SignIn(_) => code::UNAUTHORIZED,
        About::Subscription(channel) => {
            let is_denied = matches!(status, 401 | 403);
            let kind = if is_denied { "AuthError" } else { "Error" };
            server_frame::subscription_error(&mut frame, channel, (kind, &error.message, status));
            out.text(&frame);
            if is_denied { code::UNAUTHORIZED } else { code::OTHER }
        }
    };
    let mut frame = Vec::new();
    server_frame::error(&mut frame, code, &error.message);
    out.text(&frame);
}

/// The close code for a reason; `None` for one that is closed without.
fn close_code(reason: CloseReason) -> Option<u16> {
    Some(match reason {
        CloseReason::PingTimeout => code::NO_PONG,
        CloseReason::Expired
        | CloseReason::TokenExpired
        | CloseReason::Unidentified
        | CloseReason::Revoked => code::UNAUTHORIZED,
        CloseReason::Disconnected(code) if code >= FOR_GOOD => code::UNAUTHORIZED,
        CloseReason::Disconnected(_)
        | CloseReason::Overload
        | CloseReason::Unanswered
        | CloseReason::Limited => code::LATER,
        CloseReason::Violation(violation) => violation.close_code(),
        CloseReason::Lagging
        | CloseReason::Slow
        | CloseReason::Draining
        | CloseReason::Ended
        | CloseReason::BadAck
        | CloseReason::BinaryCommand
        | CloseReason::Refused(_) => code::AGAIN,
        CloseReason::Complete
        | CloseReason::Peer
        | CloseReason::SocketError
        | CloseReason::Idle
        | CloseReason::Memory
        | CloseReason::Evicted
        | CloseReason::ProxyHeader
        | CloseReason::TlsFailed
        | CloseReason::Pipelining => return None,
    })
}

fn bad_request(message: impl Into<Cow<'static, str>>) -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadRequest, message)
}

/// From this code of our own on, clients are not to come back.
const FOR_GOOD: u16 = throng_wire::websocket::close_code::DISCONNECTED_FOR_GOOD;

/// As much of a message as a close frame takes.
fn reason(message: &str) -> &str {
    &message[..message.floor_char_boundary(REASON_BYTES_MAX)]
}

#[cfg(test)]
mod tests;
