//! The query of a request that subscribes.
//!
//! Parameters that are not known are refused, as they are likely misspelt. Names of channels and of
//! the user stay as they are in the URL, for the caller to decode.

use crate::error::ErrorResponse;
use crate::percent::decode_query;
use crate::unknown;

/// The most messages of history one may ask to start with.
pub const HISTORY_MAX: u32 = 100_000;

/// The longest long-poll.
pub(crate) const WAIT_S_MAX: u32 = 300;

/// The parameters of a subscription.
const KNOWN: [&str; 8] =
    ["channel", "user", "since", "history", "wait", "envelope", "welcome", "transport"];

/// What `?transport=` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedTransport {
    WebSocket,
    Sse,
    LongPoll,
    Stream,
}

#[derive(Default)]
pub(super) struct Query<'a> {
    /// Raw, in order.
    pub channels: Vec<&'a str>,
    /// Raw.
    pub user: Option<&'a str>,
    /// Raw.
    since: Option<&'a str>,
    pub history: Option<u32>,
    pub wait_ms: Option<u32>,
    pub envelope: Option<bool>,
    pub welcome: Option<bool>,
    pub transport: Option<NamedTransport>,
}

impl<'a> Query<'a> {
    pub fn parse(text: &'a str) -> Result<Self, ErrorResponse> {
        let mut query = Self::default();
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A key that cannot be decoded is no known one.
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
            "wait" => once("wait", &mut self.wait_ms, read_wait(value)?)?,
            "envelope" => once("envelope", &mut self.envelope, read_bool("envelope", value)?)?,
            "welcome" => once("welcome", &mut self.welcome, read_bool("welcome", value)?)?,
            "transport" => once("transport", &mut self.transport, read_transport(value)?)?,
            _ => refuse_unknown(key, value, &KNOWN)?,
        }
        Ok(())
    }

    /// Where to resume; an empty id is none.
    pub fn since(&self) -> Result<Option<String>, ErrorResponse> {
        let Some(raw) = self.since.filter(|raw| !raw.is_empty()) else { return Ok(None) };
        match decode_query(raw) {
            Some(id) => Ok(Some(id.into_owned())),
            None => Err(ErrorResponse::bad_parameter(
                "the parameter `since` is not percent-encoded UTF-8",
            )),
        }
    }
}

/// Refuses a parameter that nothing knows, unless it is one of the client's own.
pub(super) fn refuse_unknown(key: &str, value: &str, known: &[&str]) -> Result<(), ErrorResponse> {
    match unknown::parameter(key, value, known) {
        None => Ok(()),
        Some(sentence) => Err(ErrorResponse::bad_parameter(sentence)),
    }
}

/// Two values contradict each other, and the client cannot know which one counts.
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

fn read_bool(name: &str, value: &str) -> Result<bool, ErrorResponse> {
    match decode_query(value).as_deref() {
        Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        _ => Err(ErrorResponse::bad_parameter(format!(
            "the parameter `{name}` must be `true` or `false`"
        ))),
    }
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

/// Seconds, with decimals if need be, as milliseconds; what is below those is dropped. Too large
/// a number becomes the largest.
pub(super) fn parse_seconds(text: &[u8]) -> Option<u64> {
    let mut halves = text.splitn(2, |&byte| byte == b'.');
    let whole = halves.next()?;
    let decimals = halves.next();
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !is_number(whole) || !decimals.is_none_or(is_number) {
        return None;
    }
    let decimals = decimals.unwrap_or_default().iter().copied();
    let milliseconds = decimals.chain(std::iter::repeat(b'0')).take(3);
    let digits = whole.iter().copied().chain(milliseconds);
    Some(
        digits.fold(0_u64, |sum, digit| {
            sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
        }),
    )
}
