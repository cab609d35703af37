//! The interface of all dialects.

use std::fmt::Debug;
use std::time::Duration;

use throng_core::message::TEXT;
use throng_core::{Body, ChannelId, Kind, Message, UnreadNotice};
use throng_pusher::{App, SocketId};
use throng_wire::error::{ResponseOptions, write_answer};
use throng_wire::response::{self, SubscriptionHeaders};
use throng_wire::subscribe::{Request, Transport};
use throng_wire::v1::{RawValue, Received};
use throng_wire::websocket::extension::Deflate;
use throng_wire::{ErrorResponse, RetryAfter, Target};

use crate::close_reason::CloseReason;
use crate::framing::Out;
use crate::saying::{Saying, of_members};

/// How one kind of client is spoken to. It has no state of its own: what it needs is shown to it.
pub trait Dialect: Debug + Sync {
    /// True if clients follow, leave and publish by commands, and are told what becomes of each
    /// channel. Others have asked for everything in one request.
    fn has_commands(&self) -> bool {
        false
    }

    /// True if its clients are those of applications.
    fn is_of_apps(&self) -> bool {
        false
    }

    /// How many events a client may publish in a second, where what clients publish are events:
    /// volatile, for channels that they follow, and showing the member that the client is there.
    fn client_events_per_s(&self) -> Option<u32> {
        None
    }

    /// True if the confirmation of a subscription has the members of its channel, where the client
    /// follows these, and is given again for a subscription that has begun already.
    fn confirms_with_members(&self) -> bool {
        false
    }

    /// How clients show who they are once their connection stands.
    fn late_identity(&self) -> LateIdentity {
        LateIdentity::default()
    }

    /// The size of the largest input, where a message has at most `max_message_bytes`.
    fn max_input_bytes(&self, max_message_bytes: usize) -> usize {
        max_message_bytes
    }

    /// Appends the head of the response that begins a stream of this dialect. `deflate` is the
    /// offer of compression that is accepted.
    fn open(
        &self,
        request: &Request,
        deflate: Option<Deflate>,
        headers: &SubscriptionHeaders<'_>,
        out: &mut Vec<u8>,
    ) {
        let is_chunked = !request.is_http10;
        match &request.transport {
            Transport::WebSocket { accept, subprotocol, .. } => {
                response::websocket(out, accept, *subprotocol, deflate, headers);
            }
            Transport::Sse => response::sse(out, is_chunked, headers),
            Transport::Stream | Transport::LongPoll { .. } => {
                let is_envelope = request.is_envelope();
                let content_type = if is_envelope { "application/x-ndjson" } else { TEXT };
                response::stream(out, is_chunked, content_type, headers);
            }
        }
    }

    /// Appends the response to a request that is refused, after which the connection ends.
    /// `request` is what it subscribes to, if that is known. Before the upgrade of a WebSocket this
    /// can still be a status.
    fn refuse(
        &self,
        error: &ErrorResponse,
        request: Option<&Request>,
        options: &ResponseOptions<'_>,
        out: &mut Vec<u8>,
    ) {
        match (self.answer(Err(error)), request) {
            (Some(answer), _) => {
                let Answer { status, headers, body } = &answer;
                write_answer(out, *status, headers, body, options);
            }
            (None, Some(request)) => error.write_for_subscriber(out, request, options),
            (None, None) => error.write_response(out, options),
        }
    }

    /// An answer of our HTTP API, its status and body or its error, as this dialect gives it;
    /// `None`: as it is.
    fn answer(&self, answer: Result<(u16, &[u8]), &ErrorResponse>) -> Option<Answer> {
        let _ = answer;
        None
    }

    /// Appends a message: at least one byte.
    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>);

    /// Appends what the server says beside messages; nothing if the dialect has no word for it.
    /// `reference` is the client's own name for the command that this answers.
    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>);

    /// Appends the last words to a connection: a close frame, an event, an error in band, or
    /// nothing. Returns what becomes of the connection.
    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended;

    /// The first of the commands in a message of the client, and the length of its bytes. The rest
    /// is heard after it has been executed.
    fn hear(&self, payload: &[u8], is_text: bool, speaker: &dyn Speaker) -> (Heard, usize) {
        let _ = (is_text, speaker);
        (Heard::Nothing, payload.len())
    }

    /// The bytes between the answers to the commands of one message, if they are joined in one
    /// frame; `None` if each is a frame of its own.
    fn between_answers(&self) -> Option<&'static [u8]> {
        None
    }

    /// The longest silence of the server; `None`: as in the settings.
    fn heartbeat_interval(&self) -> Option<Duration> {
        None
    }

    /// The bytes behind messages by which a client is asked to confirm that it has had them, where
    /// users whose connection has died can go on only if the server knows that; `None` if clients
    /// go on by themselves.
    fn question(&self) -> Option<&'static [u8]> {
        None
    }

    /// The bytes that keep an idle connection alive. They need no answer.
    fn heartbeat(&self, is_chunked: bool) -> &'static [u8];

    /// The same for a WebSocket, with a ping that needs an answer.
    fn ping(&self) -> &'static [u8] {
        PING
    }
}

/// The part of a message's form that the message does not know.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// The number of its channel on this node.
    pub number: ChannelId,
    /// True if clients are asked to acknowledge the messages of its channel, in the dialect that
    /// has this.
    pub asks: bool,
    /// The connection's position after it, if the connection shows one.
    pub position: Option<&'a str>,
}

impl Shown<'_> {
    /// Of the channel with this number, in a message that needs no acknowledgement.
    pub fn of(number: ChannelId) -> Shown<'static> {
        Shown { number, asks: false, position: None }
    }
}

/// The client that says something, as far as a dialect has to know it to understand that.
pub trait Speaker {
    /// The application whose client it is, by the key that its request has shown.
    fn app(&self) -> Option<&App>;

    /// Its connection, as that application calls it.
    fn socket(&self) -> Option<SocketId>;

    /// True if it is the user with this name.
    fn is_user(&self, name: &str) -> bool;
}

/// How clients of WebSockets show who they are once their connection stands. By default they show
/// it with their request, and nothing but a newer token of the same user later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LateIdentity {
    /// A request that shows nothing and names no channel is accepted, and its client has this long
    /// to show who it is. `None` if the request decides.
    pub within: Option<Duration>,
    /// True if an anonymous client may sign in at any time.
    pub may_sign_in: bool,
}

impl LateIdentity {
    /// Both rules together: either one is enough.
    #[must_use]
    pub fn or(self, other: LateIdentity) -> LateIdentity {
        LateIdentity {
            within: self.within.or(other.within),
            may_sign_in: self.may_sign_in || other.may_sign_in,
        }
    }
}

/// An HTTP response with a status, headers and a body of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Why a connection ends.
#[derive(Debug)]
pub struct End<'a> {
    pub reason: CloseReason,
    /// One sentence for people.
    pub message: &'a str,
    /// When the client should come back, if it is told so.
    pub retry_after: Option<RetryAfter>,
    /// True if only an input of the client is refused: the connection could go on.
    pub may_stay: bool,
}

impl End<'_> {
    /// Appends the close frame of our own dialects, if there is one for the reason.
    pub(crate) fn native(&self, out: &mut Out<'_>) -> Ended {
        if let Some((code, _)) = self.reason.close_frame() {
            out.close(code, &self.reason.named(self.message));
        }
        Ended::Closes
    }
}

/// The fate of a connection after its last words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Closes,
    /// They were an error in band, if it [may stay](End::may_stay).
    Stays,
}

/// The meaning of a client's message.
#[derive(Debug)]
pub enum Heard {
    /// Nothing to act upon, such as a heartbeat.
    Nothing,
    Command(Received),
    /// The client has had all that was written before it was [asked](Dialect::question).
    Confirmed,
    /// All of it is a message to the one channel of the connection.
    Message(Body),
    /// No input of this dialect.
    Refused(CloseReason),
}

/// A ping without payload.
const PING: &[u8] = &[0x89, 0];

/// The envelopes of a dialect's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelopes {
    None,
    Full,
    /// Short ones, with the time of publication if they are timed.
    Compact {
        is_timed: bool,
    },
}

impl Envelopes {
    /// The message in its envelope, with the position of its connection after it if there is one;
    /// `None` if there are no envelopes.
    pub(crate) fn of(self, message: &Message, shown: Shown<'_>) -> Option<Vec<u8>> {
        match self {
            Envelopes::None => None,
            Envelopes::Full => Some(envelope(message, shown.position)),
            Envelopes::Compact { is_timed } => Some(compact(message, shown, is_timed)),
        }
    }
}

/// The compact envelope of a message.
pub(crate) fn compact(message: &Message, shown: Shown<'_>, is_timed: bool) -> Vec<u8> {
    let Shown { number, position, .. } = shown;
    let mut out = Vec::with_capacity(message.body.bytes().len() + 64);
    message.write_compact(number, position, is_timed, &mut out);
    out
}

/// The envelope of a message, with the position of its connection after it if there is one.
pub(crate) fn envelope(message: &Message, position: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.body.bytes().len() + 128);
    message.write_envelope(&mut out);
    if let Some(position) = position.filter(|_| !message.is_volatile()) {
        debug_assert_eq!(out.last(), Some(&b'}'));
        out.pop();
        out.extend_from_slice(format!(r#","position":"{position}"}}"#).as_bytes());
    }
    out
}

/// Says what a [notice](crate::saying::is_notice) is about.
pub(crate) fn say_notice(message: &Message, dialect: &dyn Dialect, out: &mut Out<'_>) {
    if let Some(UnreadNotice { channel, read, unread }) = message.unread() {
        let inbox = message.channel.name();
        let (kind, name) = channel.map_or((Kind::User, inbox), |name| (Kind::Channel, name));
        let target = Target { kind, name: name.to_owned() };
        return dialect.say(&Saying::Unread(&target, read, unread), None, out);
    }
    if message.channel.is_online() {
        let users = [message.channel.name()];
        let is_online = message.body.bytes() == b"online";
        return dialect.say(&Saying::Watched { users: &users, is_online }, None, out);
    }
    let id = message.id.to_string();
    let presence = || Saying::Presence(message.body.bytes());
    dialect.say(&of_members(message, &id).unwrap_or_else(presence), None, out);
}
