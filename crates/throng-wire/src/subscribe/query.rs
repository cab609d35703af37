//! The query parameters of a request that subscribes.
//!
//! Unknown parameters are refused, because they are probably misspelt. The names of channels and of
//! the user stay percent-encoded, for the caller to decode.

use super::options::{self, Options};
use crate::error::ErrorResponse;
use crate::percent::decode_query;
use crate::prefer::parse_seconds;
use crate::unknown;

/// The latest time that a client may name: the largest number that JSON carries exactly.
pub const TIME_MS_MAX: u64 = (1 << 53) - 1;

/// The limit on messages of history at the start of a subscription.
pub const HISTORY_MAX: u32 = 100_000;

/// The longest wait of a long-poll, in seconds.
pub const WAIT_S_MAX: u32 = 300;

/// The parameters that a subscription may have, apart from its options.
const OWN: [&str; 10] = [
    "channel",
    "user",
    "since",
    "since_time",
    "history",
    "state",
    "wait",
    "presence",
    "transport",
    "token",
];

/// The parameters that a subscription may have.
pub const PARAMETERS: [&str; OWN.len() + options::NAMES.len()] = {
    let (mut all, mut at) = ([""; OWN.len() + options::NAMES.len()], 0);
    while at < all.len() {
        all[at] = if at < OWN.len() { OWN[at] } else { options::NAMES[at - OWN.len()] };
        at += 1;
    }
    all
};

/// The header `Last-Event-ID` as a parameter, without case, hyphens and underscores. Libraries for
/// browsers append it to the URL when they reconnect, each with its own spelling.
const RESUME: &str = "lasteventid";

/// The last presence event that a client knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownPresence {
    /// The one of this time, in milliseconds since 1970.
    Time(u64),
    /// The one about members that has this id.
    Id(Box<str>),
}

/// The value of `?presence=`.
#[derive(Debug)]
pub(super) enum PresenceParameter {
    /// The same for all channels: whether to tell who is there.
    All(bool),
    /// One for each channel, in the order of the URL.
    Each(Vec<PresenceOfChannel>),
}

/// A client's request for the presence of one channel.
#[derive(Debug, Clone)]
pub(super) enum PresenceOfChannel {
    Nothing,
    /// The present members, and events.
    Events,
    /// Events after this one.
    After(KnownPresence),
}

/// The values of `?transport=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedTransport {
    WebSocket,
    Sse,
    LongPoll,
    Stream,
}

#[derive(Default)]
pub(super) struct Query<'a> {
    /// Percent-encoded, in order.
    pub channels: Vec<&'a str>,
    /// The parameter, still percent-encoded.
    pub user: Option<&'a str>,
    /// The parameter, still percent-encoded.
    since: Option<&'a str>,
    /// A parameter named as the header `Last-Event-ID`, still percent-encoded.
    last_event_id: Option<&'a str>,
    pub history: Option<u32>,
    /// In milliseconds since 1970.
    pub since_time: Option<u64>,
    /// Whether to begin with the newest message of each key.
    pub state: Option<bool>,
    pub wait_ms: Option<u32>,
    /// Whether to tell who is in the channels, and what of it is known.
    pub presence: Option<PresenceParameter>,
    pub transport: Option<NamedTransport>,
    pub options: Options,
    /// The parameter, still percent-encoded; [`credential`](crate::credential) reads it.
    pub token: Option<&'a str>,
}

impl<'a> Query<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, ErrorResponse> {
        let mut query = Self::default();
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A key that cannot be decoded is unknown, and refused as such.
            let decoded = decode_query(key);
            query.set(decoded.as_deref().unwrap_or(key), value)?;
        }
        Ok(query)
    }

    fn set(&mut self, key: &str, value: &'a str) -> Result<(), ErrorResponse> {
        match key {
            "channel" => self.channels.push(value),
            "user" => once("user", &mut self.user, value)?,
            "since" => once("since", &mut self.since, value)?,
            "history" => once("history", &mut self.history, read_history(value)?)?,
            "since_time" => once("since_time", &mut self.since_time, read_time(value)?)?,
            "state" => once("state", &mut self.state, read_state(value)?)?,
            "wait" => once("wait", &mut self.wait_ms, read_wait(value)?)?,
            "presence" => once("presence", &mut self.presence, read_presence(value)?)?,
            "transport" => once("transport", &mut self.transport, read_transport(value)?)?,
            "token" => once("token", &mut self.token, value)?,
            _ if self.options.read(key, value)? => {}
            _ if names_last_event(key) => once(key, &mut self.last_event_id, value)?,
            _ => refuse_unknown(key, value, &PARAMETERS)?,
        }
        Ok(())
    }

    /// The id to resume after; an empty one counts as none. The newer one overrides the first
    /// URL's, as the header does.
    pub(super) fn since(&self) -> Result<Option<String>, ErrorResponse> {
        let mut values = [self.last_event_id, self.since].into_iter().flatten();
        let Some(raw) = values.find(|raw| !raw.is_empty()) else { return Ok(None) };
        match decode_query(raw) {
            Some(id) => Ok(Some(id.into_owned())),
            None => Err(ErrorResponse::bad_parameter(
                "the parameter `since` is not percent-encoded UTF-8",
            )),
        }
    }
}

/// Refuses an unknown parameter, unless its name marks it as the client's own.
pub(super) fn refuse_unknown(key: &str, value: &str, known: &[&str]) -> Result<(), ErrorResponse> {
    match unknown::parameter(key, value, known) {
        None => Ok(()),
        Some(message) => Err(ErrorResponse::bad_parameter(message)),
    }
}

/// Sets `slot`, once: the client could not know which of two values counts.
fn once<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), ErrorResponse> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => {
            Err(ErrorResponse::bad_parameter(format!("the parameter `{name}` is given twice")))
        }
    }
}

fn read_history(value: &str) -> Result<u32, ErrorResponse> {
    decode_query(value)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .filter(|&count| count <= HISTORY_MAX)
        .ok_or_else(|| {
            ErrorResponse::bad_parameter(format!(
                "the parameter `history` must be a number of messages, 0 to {HISTORY_MAX}"
            ))
        })
}

/// A time in milliseconds since 1970, as envelopes have it.
pub fn read_time(value: &str) -> Result<u64, ErrorResponse> {
    decode_query(value)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .filter(|time_ms| *time_ms <= TIME_MS_MAX)
        .ok_or_else(|| {
            ErrorResponse::bad_parameter(
                "the parameter `since_time` must be a time in milliseconds since 1970",
            )
        })
}

fn read_state(value: &str) -> Result<bool, ErrorResponse> {
    match decode_query(value).as_deref() {
        Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        _ => Err(ErrorResponse::bad_parameter("the parameter `state` must be `true` or `false`")),
    }
}

fn read_wait(value: &str) -> Result<u32, ErrorResponse> {
    decode_query(value)
        .and_then(|value| parse_seconds(value.as_bytes()))
        .filter(|&wait_ms| wait_ms <= u64::from(WAIT_S_MAX) * 1000)
        .and_then(|wait_ms| u32::try_from(wait_ms).ok())
        .ok_or_else(|| {
            ErrorResponse::bad_parameter(format!(
                "the parameter `wait` must be a number of seconds, 0 to {WAIT_S_MAX}"
            ))
        })
}

/// True if a parameter is the header `Last-Event-ID`, in any of its usual spellings.
fn names_last_event(key: &str) -> bool {
    let letters = key.bytes().filter(|byte| !matches!(byte, b'-' | b'_'));
    letters.map(|byte| byte.to_ascii_lowercase()).eq(RESUME.bytes())
}

/// `true` or `false` for all channels; or one for each: that, or the time or the id of its last
/// event.
fn read_presence(value: &str) -> Result<PresenceParameter, ErrorResponse> {
    let of_channel = |text: &str| match text {
        "true" => Some(PresenceOfChannel::Events),
        "false" => Some(PresenceOfChannel::Nothing),
        known => known_presence(known).map(PresenceOfChannel::After),
    };
    let decoded = decode_query(value);
    let presence = match decoded.as_deref() {
        Some("true" | "1") => Some(PresenceParameter::All(true)),
        Some("false" | "0") => Some(PresenceParameter::All(false)),
        Some(list) => {
            list.split(',').map(of_channel).collect::<Option<_>>().map(PresenceParameter::Each)
        }
        None => None,
    };
    presence.ok_or_else(|| {
        ErrorResponse::bad_parameter(
            "the parameter `presence` must be `true` or `false`, or have one value for each \
             channel, joined by commas: `true`, `false`, or the `time` or `id` of its last \
             presence event",
        )
    })
}

/// The last event that a client knows: its time in digits, or its id.
fn known_presence(text: &str) -> Option<KnownPresence> {
    let Some((epoch, offset)) = text.split_once('-') else {
        return text.parse().ok().map(KnownPresence::Time);
    };
    let is_id = !epoch.is_empty()
        && epoch.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && offset.parse::<u64>().is_ok();
    is_id.then(|| KnownPresence::Id(text.into()))
}

fn read_transport(value: &str) -> Result<NamedTransport, ErrorResponse> {
    match decode_query(value).as_deref() {
        Some("websocket") => Ok(NamedTransport::WebSocket),
        Some("sse") => Ok(NamedTransport::Sse),
        Some("poll") => Ok(NamedTransport::LongPoll),
        Some("stream") => Ok(NamedTransport::Stream),
        _ => Err(ErrorResponse::bad_parameter(
            "the parameter `transport` must be `websocket`, `sse`, `poll` or `stream`",
        )),
    }
}
