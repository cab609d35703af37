//! A message, shared by everyone who is still to get it.
//!
//! Its [`Content`] lives as long as a log or a reader keeps it. How it looks on the wire is kept in
//! the [`Message`], which lives only while it is on its way: in a queue, in a replay buffer, in a
//! write that stopped half-way. A log holds the content, and the message weakly; so encodings end
//! with the fan-out, and what a log counts is what it costs.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use throng_wire::envelope::{self, Data, Envelope};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::clock;
use crate::id::{MessageId, WorkerId};
use crate::name::ChannelName;

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// UTF-8 text.
    Text(Box<str>),
    /// Text that parses as JSON.
    Json(Box<str>),
    /// Anything.
    Binary(Box<[u8]>),
}

/// The body is not what its content type says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Text must be UTF-8.
    #[error("the body is not UTF-8; publish bytes as application/octet-stream")]
    NotUtf8,
    /// `application/json` must parse.
    #[error("the body is not JSON although its content type says so: {0}")]
    NotJson(String),
}

impl From<BodyError> for ErrorResponse {
    fn from(error: BodyError) -> ErrorResponse {
        let code = match error {
            BodyError::NotUtf8 => ErrorCode::BadUtf8,
            BodyError::NotJson(_) => ErrorCode::BadJson,
        };
        ErrorResponse::new(code, error.to_string())
    }
}

/// The content type of text unless the publisher says otherwise.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of JSON.
pub const JSON: &str = "application/json";
/// The content type of bytes unless the publisher says otherwise.
pub const BINARY: &str = "application/octet-stream";

impl Body {
    /// Reads `bytes` as `content_type` says, and returns the content type to keep with them: `None`
    /// for the usual one of the body's kind.
    pub fn parse(
        bytes: &[u8],
        content_type: Option<&str>,
    ) -> Result<(Body, Option<Box<str>>), BodyError> {
        let content_type = content_type.map(str::trim).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let essence = essence.to_ascii_lowercase();
        let is_binary = essence == BINARY
            || ["image/", "audio/", "video/"].iter().any(|kind| essence.starts_with(kind));
        if is_binary {
            let kept = (!content_type.eq_ignore_ascii_case(BINARY)).then(|| content_type.into());
            return Ok((Body::Binary(bytes.into()), kept));
        }
        let text = std::str::from_utf8(bytes);
        if essence == JSON || essence.ends_with("+json") {
            let text = text.map_err(|error| BodyError::NotJson(error.to_string()))?;
            serde_json::from_str::<serde::de::IgnoredAny>(text)
                .map_err(|error| BodyError::NotJson(error.to_string()))?;
            let kept = (!content_type.eq_ignore_ascii_case(JSON)).then(|| content_type.into());
            return Ok((Body::Json(text.into()), kept));
        }
        let text = text.map_err(|_| BodyError::NotUtf8)?;
        // `curl -d` names this type unasked: it says nothing about the body.
        let is_usual = matches!(essence.as_str(), "" | "application/x-www-form-urlencoded")
            || content_type.eq_ignore_ascii_case(TEXT);
        Ok((Body::Text(text.into()), (!is_usual).then(|| content_type.into())))
    }

    /// The bytes as published.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Body::Text(text) | Body::Json(text) => text.as_bytes(),
            Body::Binary(bytes) => bytes,
        }
    }
}

/// Names a connection of the data plane, for "not to this one". From the highest bit on: the
/// worker, the generation, the index. The generation is whole, as a log keeps the name for as long
/// as the message: were it cut, a later connection of the same name would miss a message without a
/// gap. It comes again after four billion connections of one worker, at the same index only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionName(pub u64);

const WORKER_BITS: u32 = 10;
const INDEX_BITS: u32 = 22;
const _: () = assert!(WORKER_BITS + u32::BITS + INDEX_BITS == u64::BITS);

impl ConnectionName {
    /// Workers that names can tell apart.
    pub const WORKERS_MAX: usize = 1 << WORKER_BITS;

    /// Connections of one worker that names can tell apart.
    pub const INDICES_MAX: usize = 1 << INDEX_BITS;

    /// The name of the connection that a worker keeps at `index`; `generation` tells it from
    /// others that had or will have the place.
    pub fn new(worker: WorkerId, generation: u32, index: u32) -> ConnectionName {
        debug_assert!(usize::from(worker.0) < Self::WORKERS_MAX);
        debug_assert!((index as usize) < Self::INDICES_MAX);
        let worker = u64::from(worker.0) << (u64::BITS - WORKER_BITS);
        ConnectionName(worker | u64::from(generation) << INDEX_BITS | u64::from(index))
    }

    /// The connection's worker.
    pub fn worker(self) -> WorkerId {
        WorkerId((self.0 >> (u64::BITS - WORKER_BITS)) as u16)
    }

    /// Where the worker keeps it.
    pub fn index(self) -> u32 {
        self.0 as u32 & ((1 << INDEX_BITS) - 1)
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ConnectionName {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<ConnectionName, Self::Err> {
        u64::from_str_radix(text, 16).map(ConnectionName)
    }
}

/// How many encodings of one message may be kept: one for each way to frame it.
pub const ENCODINGS: usize = 6;

/// What was published, and what the engine made of it.
#[derive(Debug)]
pub struct Content {
    /// Its id.
    pub id: MessageId,
    /// The offset of the channel's message before it: a reader that stands elsewhere has a gap.
    pub previous: u64,
    /// When it was published, by [`clock::now_ms`]. Never before the log's message before it.
    pub time_ms: u64,
    /// Where.
    pub channel: ChannelName,
    /// What.
    pub body: Body,
    /// As published, unless it is the usual one of the body's kind.
    pub content_type: Option<Box<str>>,
    /// The connection that does not get it.
    pub excluded: Option<ConnectionName>,
}

/// What a message takes besides its texts: it, its content, the counts of both, and its place in a
/// log.
pub const OVERHEAD_BYTES: usize = size_of::<Message>()
    + size_of::<Content>()
    + 4 * size_of::<usize>()
    + 2 * size_of::<Arc<Content>>();

impl Content {
    /// The content type to announce.
    pub fn content_type(&self) -> &str {
        self.content_type.as_deref().unwrap_or(match self.body {
            Body::Text(_) => TEXT,
            Body::Json(_) => JSON,
            Body::Binary(_) => BINARY,
        })
    }

    /// What it counts for against limits, in bytes: all that it takes, without encodings.
    pub fn weight_bytes(&self) -> usize {
        let content_type = self.content_type.as_deref().map_or(0, str::len);
        self.body.bytes().len() + self.channel.key().len() + content_type + OVERHEAD_BYTES
    }

    /// Writes the message as one JSON object.
    pub fn write_envelope(&self, out: &mut Vec<u8>) {
        let data = match &self.body {
            Body::Text(text) => Data::Text(text),
            Body::Json(text) => Data::Json(text),
            Body::Binary(bytes) => Data::Binary(bytes),
        };
        let envelope = Envelope {
            kind: self.channel.kind(),
            name: self.channel.name(),
            id: &self.id.to_string(),
            time_ms: clock::told_ms(self.time_ms),
            content_type: Some(self.content_type()).filter(|it| *it != TEXT && *it != JSON),
            data,
        };
        envelope::write(out, &envelope);
    }
}

/// A fan-out, from the engine to the last of the workers: what its time is measured by.
#[derive(Debug)]
pub struct InFlight {
    /// When the engine accepted the message, by [`clock::now_us`](crate::clock::now_us).
    accepted_us: u64,
    /// Workers that have not offered it to all of their subscribers yet.
    workers_left: AtomicU32,
}

impl InFlight {
    /// A fan-out that begins now, to so many workers.
    pub fn to(workers: usize) -> InFlight {
        let workers_left = AtomicU32::new(u32::try_from(workers).unwrap_or(u32::MAX));
        InFlight { accepted_us: crate::clock::now_us(), workers_left }
    }

    /// A worker has offered the message to all of its subscribers. Each calls this once. Returns
    /// when the message was accepted, to the last of them.
    pub fn complete(&self) -> Option<u64> {
        // Mostly one worker follows a channel, and need not ask who else is there.
        let is_last = self.workers_left.load(Ordering::Relaxed) == 1
            || self.workers_left.fetch_sub(1, Ordering::Relaxed) == 1;
        is_last.then_some(self.accepted_us)
    }
}

/// What ends with the fan-out.
#[derive(Debug, Default)]
struct Transit {
    /// One for each way to frame a message, as far as somebody needed it.
    encodings: [OnceLock<Box<[u8]>>; ENCODINGS],
    in_flight: Option<InFlight>,
}

/// A message on its way.
#[derive(Debug)]
pub struct Message {
    content: Arc<Content>,
    /// Boxed, as most messages of most logs have none.
    transit: OnceLock<Box<Transit>>,
}

const _: () = assert!(size_of::<Message>() <= 24, "a log's weak reference may keep it allocated");

impl Message {
    /// A message that nothing has been encoded of yet.
    pub fn new(
        id: MessageId,
        previous: u64,
        time_ms: u64,
        channel: ChannelName,
        body: Body,
        content_type: Option<Box<str>>,
        excluded: Option<ConnectionName>,
    ) -> Message {
        let content = Content { id, previous, time_ms, channel, body, content_type, excluded };
        Message::from(Arc::new(content))
    }

    /// A message that is published now, and measured until it has completed everywhere.
    pub fn tracked(content: Arc<Content>, in_flight: InFlight) -> Message {
        let transit = Transit { in_flight: Some(in_flight), ..Transit::default() };
        Message { content, transit: OnceLock::from(Box::new(transit)) }
    }

    /// The fan-out that this message began with, while it lasts.
    pub fn in_flight(&self) -> Option<&InFlight> {
        self.transit.get()?.in_flight.as_ref()
    }

    /// The encoding kept in `slot` (below [`ENCODINGS`]), made by the first who asks for it and
    /// shared by all workers and connections while the message is on its way.
    pub fn encoding(&self, slot: usize, encode: impl FnOnce(&Message) -> Vec<u8>) -> &[u8] {
        self.transit.get_or_init(Box::default).encodings[slot]
            .get_or_init(|| encode(self).into_boxed_slice())
    }

    /// Whether it has anything that ends with the fan-out, which encodings do.
    pub fn is_encoded(&self) -> bool {
        self.transit.get().is_some()
    }

    /// What was published, without what is on its way.
    pub fn content(&self) -> Arc<Content> {
        Arc::clone(&self.content)
    }

    /// The same message without what ends with the fan-out.
    pub fn unencoded(&self) -> Message {
        Message::from(Arc::clone(&self.content))
    }
}

impl From<Arc<Content>> for Message {
    fn from(content: Arc<Content>) -> Message {
        Message { content, transit: OnceLock::new() }
    }
}

impl Deref for Message {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_worker_ends_the_flight() {
        let in_flight = InFlight::to(3);
        assert_eq!((in_flight.complete(), in_flight.complete()), (None, None));
        assert_eq!(in_flight.complete(), Some(in_flight.accepted_us));
        assert!(InFlight::to(1).complete().is_some());
    }

    #[test]
    fn names_hold_all_of_a_connection() {
        let name = |worker, generation, index| {
            let name = ConnectionName::new(WorkerId(worker), generation, index);
            assert_eq!((name.worker(), name.index()), (WorkerId(worker), index));
            assert_eq!(name.to_string().parse(), Ok(name));
            name
        };
        let (workers, indices) = (ConnectionName::WORKERS_MAX, ConnectionName::INDICES_MAX);
        let last = name((workers - 1) as u16, u32::MAX, (indices - 1) as u32);
        assert_eq!(last.0, u64::MAX);
        for bit in 0..32 {
            assert_ne!(name(1, 7, 5), name(1, 7 ^ (1 << bit), 5));
        }
    }

    #[test]
    fn content_type_decides_the_kind() {
        let kind = |bytes: &[u8], content_type| match Body::parse(bytes, content_type) {
            Ok((Body::Text(_), kept)) => ("text", kept),
            Ok((Body::Json(_), kept)) => ("json", kept),
            Ok((Body::Binary(_), kept)) => ("binary", kept),
            Err(BodyError::NotUtf8) => ("not utf-8", None),
            Err(BodyError::NotJson(_)) => ("not json", None),
        };
        assert_eq!(kind(b"a", None), ("text", None));
        assert_eq!(kind(b"a", Some("application/x-www-form-urlencoded")), ("text", None));
        assert_eq!(kind(b"a", Some("text/html")), ("text", Some("text/html".into())));
        assert_eq!(kind(b"{}", Some("Application/JSON")), ("json", None));
        // What a parameter says would be lost with it.
        for with_parameter in ["application/json; charset=utf-8", "Application/JSON;profile=\"x\""]
        {
            let kept = Some(with_parameter.into());
            assert_eq!(kind(b"{}", Some(with_parameter)), ("json", kept));
        }
        let with_parameter = "application/octet-stream; padding=3";
        assert_eq!(kind(b"a", Some(with_parameter)), ("binary", Some(with_parameter.into())));
        let ld = "application/ld+json";
        assert_eq!(kind(b"[1]", Some(ld)), ("json", Some(ld.into())));
        assert_eq!(kind(b"{", Some(JSON)), ("not json", None));
        assert_eq!(kind(b"\xff", Some(BINARY)), ("binary", None));
        assert_eq!(kind(b"\xff", Some("image/png")), ("binary", Some("image/png".into())));
        assert_eq!(kind(b"\xff", None), ("not utf-8", None));
        assert_eq!(kind(b"\xff", Some(JSON)), ("not json", None));
    }
}
