//! A message, shared by all that still have to get it.
//!
//! Its [`Content`] lives as long as a log or a reader keeps it. How it looks on the wire is kept in
//! the [`Message`], which lives only while it is on its way: in a queue, in a replay buffer, in a
//! write that stopped half-way. A log holds the content, and the message weakly; so encodings end
//! with the fan-out, and what a log counts is what it costs.

mod in_flight;

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use throng_wire::envelope::{self, Compact, Data, Envelope, Erased, Facts};
use throng_wire::interchange::{self, NotInterchange};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::attributes::{Attribute, Attributes, Erasure, Extras};
use crate::clock;
use crate::connection_name::ConnectionName;
use crate::id::{ChannelId, MessageId};
use crate::name::{ChannelName, Kind};
use crate::read_marker::UnreadNotice;
use crate::stamp::Stamp;

pub use in_flight::InFlight;

/// The body of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Text in valid UTF-8.
    Text(Box<str>),
    /// JSON that every parser reads: see [`interchange`].
    Json(Box<str>),
    /// Bytes of any value.
    Binary(Box<[u8]>),
}

/// A body that does not agree with its content type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Text must be UTF-8.
    #[error("the body is not UTF-8; publish bytes as application/octet-stream")]
    NotUtf8,
    /// `application/json` must parse.
    #[error("this is not JSON, although its content type says so: {0}")]
    NotJson(String),
    /// Subscribers must be able to read it.
    #[error("{0}")]
    NotInterchange(#[from] NotInterchange),
}

impl From<BodyError> for ErrorResponse {
    fn from(error: BodyError) -> ErrorResponse {
        let code = match error {
            BodyError::NotUtf8 => ErrorCode::BadUtf8,
            BodyError::NotJson(_) | BodyError::NotInterchange(_) => ErrorCode::BadJson,
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
    /// Parses `bytes` as `content_type` says. Returns the content type to keep with the body as
    /// well: `None` for the usual one of its kind.
    pub fn parse(
        bytes: &[u8],
        content_type: Option<&str>,
    ) -> Result<(Body, Option<Box<str>>), BodyError> {
        let content_type = content_type.map(str::trim).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        // Types ignore case (RFC 9110 section 8.3.1).
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
            // Only checked: the text is kept as it was published.
            serde_json::from_str::<serde::de::IgnoredAny>(text)
                .map_err(|error| BodyError::NotJson(interchange::fault(&error)))?;
            interchange::check(text)?;
            let kept = (!content_type.eq_ignore_ascii_case(JSON)).then(|| content_type.into());
            return Ok((Body::Json(text.into()), kept));
        }
        let text = text.map_err(|_| BodyError::NotUtf8)?;
        // `curl -d` sends this type by itself, so it says nothing about the body.
        let is_usual = matches!(essence.as_str(), "" | "application/x-www-form-urlencoded")
            || content_type.eq_ignore_ascii_case(TEXT);
        Ok((Body::Text(text.into()), (!is_usual).then(|| content_type.into())))
    }

    /// JSON that another program than a node may have stored. JSON that not every subscriber can
    /// read becomes text.
    pub fn stored_json(text: &str) -> Body {
        match interchange::check(text) {
            Ok(()) => Body::Json(text.into()),
            Err(_) => Body::Text(text.into()),
        }
    }

    /// The bytes as published.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Body::Text(text) | Body::Json(text) => text.as_bytes(),
            Body::Binary(bytes) => bytes,
        }
    }
}

/// A publication, with the engine's additions.
#[derive(Debug)]
pub struct Content {
    /// Its offset is 0 if the message is volatile, so that it has no id.
    pub id: MessageId,
    /// Its place among the messages of all channels.
    pub stamp: Stamp,
    /// The offset of the channel's previous message. A subscription with a lower cursor has a gap.
    pub previous: u64,
    /// When it was published, by [`clock::now_ms`]. Never earlier than the log's previous message.
    pub time_ms: u64,
    /// The channel or user that it was published to.
    pub channel: ChannelName,
    pub body: Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<Box<str>>,
    /// The connection that does not get the message, and its attributes.
    pub extras: Extras,
    /// When the message expires, by [`clock::now_ms`]; `None` if it does not. From then on nobody
    /// gets it: subscriptions pass over it, which is no gap.
    pub expires_ms: Option<NonZeroU64>,
}

/// The connection that may get a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    pub name: ConnectionName,
    /// True if it is shown notices that messages are erased: its messages are more than bodies.
    pub has_notices: bool,
}

/// The time of expiry that a log leaves in the place of an expired message.
const EXPIRED: Option<NonZeroU64> = Some(NonZeroU64::MIN);

/// Bytes that a message takes besides its texts: message and content, the reference counts of both,
/// and its place in a log.
pub const OVERHEAD_BYTES: usize = size_of::<Message>()
    + size_of::<Content>()
    + 4 * size_of::<usize>()
    + 2 * size_of::<Arc<Content>>();

impl Content {
    /// A message of the usual content type for every subscriber, with the stamp of a server's only
    /// channel.
    pub fn new(
        id: MessageId,
        previous: u64,
        time_ms: u64,
        channel: ChannelName,
        body: Body,
    ) -> Content {
        Content {
            id,
            stamp: Stamp(id.offset),
            previous,
            time_ms,
            channel,
            body,
            content_type: None,
            extras: Extras::NONE,
            expires_ms: None,
        }
    }

    /// The key of the channel's state that the message sets or removes.
    pub fn key(&self) -> Option<&str> {
        self.extras.attributes()?.key()
    }

    /// True if the message removes its key.
    pub fn removes_key(&self) -> bool {
        self.extras.attributes().is_some_and(Attributes::removes_key)
    }

    /// True if the message sets a key.
    pub fn sets_key(&self) -> bool {
        self.extras.attributes().is_some_and(|it| it.key().is_some() && !it.removes_key())
    }

    /// True if the message is in no log: it has no id, and moves no cursor.
    pub fn is_volatile(&self) -> bool {
        self.id.offset == 0
    }

    /// The content type of the body.
    pub fn content_type(&self) -> &str {
        self.content_type.as_deref().unwrap_or(match self.body {
            Body::Text(_) => TEXT,
            Body::Json(_) => JSON,
            Body::Binary(_) => BINARY,
        })
    }

    /// True if the message has expired at `now_ms`.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms.get() <= now_ms)
    }

    /// True if a connection gets the message at `now_ms`. Otherwise its subscription passes over
    /// the message.
    pub fn is_for(&self, reader: Reader, now_ms: u64) -> bool {
        self.extras.excluded() != Some(reader.name)
            && !self.is_expired(now_ms)
            && !self.is_end()
            && (reader.has_notices || self.erasure().is_none() && self.unread().is_none())
    }

    /// True if it is for every client, at any time.
    pub(crate) fn is_for_everyone(&self) -> bool {
        let has_special = |it: &Attributes| {
            it.get(Attribute::End).is_some() || it.erasure().is_some() || it.unread().is_some()
        };
        self.expires_ms.is_none()
            && self.extras.excluded().is_none()
            && !self.extras.attributes().is_some_and(has_special)
    }

    /// True if it is the notice that its channel ends. It is never sent as a message: whoever has
    /// come to it is told in another way.
    pub fn is_end(&self) -> bool {
        self.extras.attributes().is_some_and(|it| it.get(Attribute::End).is_some())
    }

    /// True if the server has appended it beside what was published: a notice of erasure, or of the
    /// end. It has no body, and is not unread.
    pub fn is_notice(&self) -> bool {
        self.is_end() || self.erasure().is_some()
    }

    /// The messages that are gone once this one is there: it is a notice of that, or in the place
    /// of one.
    pub(crate) fn erases(&self) -> Option<Erasure> {
        let attributes = self.extras.attributes()?;
        attributes.erasure().or_else(|| attributes.replaces().map(Erasure::of))
    }

    /// The messages that are erased, if this is a notice of that.
    pub fn erasure(&self) -> Option<Erasure> {
        self.extras.attributes()?.erasure()
    }

    /// The new place of the read marker of the inbox, if this is a notice of that. In a log, a
    /// message is none, whoever has put it there.
    pub fn unread(&self) -> Option<UnreadNotice<'_>> {
        let attributes = self.extras.attributes()?;
        attributes.unread().filter(|_| self.is_volatile() && self.channel.kind() == Kind::User)
    }

    /// The same message at another place in the order of all channels.
    #[must_use]
    pub fn with_stamp(&self, stamp: Stamp) -> Content {
        Content {
            stamp,
            channel: self.channel.clone(),
            body: self.body.clone(),
            content_type: self.content_type.clone(),
            extras: self.extras.clone(),
            ..*self
        }
    }

    /// The placeholder of an expired message: its offset and time, so that the log has no hole.
    #[must_use]
    pub fn without_body(&self) -> Content {
        Content {
            body: Body::Text("".into()),
            content_type: None,
            extras: Extras::NONE,
            expires_ms: EXPIRED,
            channel: self.channel.clone(),
            ..*self
        }
    }

    /// True if this is what a log keeps in the place of an expired message.
    pub(crate) fn is_without_body(&self) -> bool {
        self.expires_ms == EXPIRED
    }

    /// The weight that counts against limits, in bytes: everything but encodings.
    pub fn weight_bytes(&self) -> usize {
        let content_type = self.content_type.as_deref().map_or(0, str::len);
        let texts = self.body.bytes().len() + self.channel.key().len() + content_type;
        texts + self.extras.weight_bytes() + OVERHEAD_BYTES
    }

    /// The attributes as clients are shown them.
    pub fn facts(&self) -> Facts<'_> {
        self.extras.attributes().map_or_else(Facts::default, Attributes::facts)
    }

    fn data(&self) -> Data<'_> {
        match &self.body {
            _ if self.is_notice() => Data::None,
            Body::Text(text) => Data::Text(text),
            Body::Json(text) => Data::Json(text),
            Body::Binary(bytes) => Data::Binary(bytes),
        }
    }

    /// The content type as envelopes have it: not where the data say it.
    fn shown_content_type(&self) -> Option<&str> {
        Some(self.content_type()).filter(|content_type| !matches!(*content_type, TEXT | JSON))
    }

    fn shown_ids(&self) -> ShownIds {
        let Some(attributes) = self.extras.attributes() else { return ShownIds::default() };
        let id = |offset| Some(MessageId { offset, ..self.id }.to_string());
        let erasure = attributes.erasure();
        let (one, range) =
            (erasure.filter(|it| it.is_single()), erasure.filter(|it| !it.is_single()));
        ShownIds {
            erased: one.and_then(|erasure| id(erasure.last)),
            erased_up_to: range.and_then(|erasure| id(erasure.last)),
            replaces: attributes.replaces().and_then(id),
        }
    }

    /// Writes the content of a notice of erasure, as one JSON object, such as
    /// `{"erased":"k3v9x2-17"}`. Nothing if the message is none.
    pub fn write_erased(&self, out: &mut Vec<u8>) {
        if let Some(erased) = self.shown_ids().erased() {
            envelope::write_erased(out, erased);
        }
    }

    /// Writes the message as a JSON array: as one of the channel with this number, with the
    /// position of its connection if there is one, and with the time if it is timed.
    pub fn write_compact(
        &self,
        ChannelId(number): ChannelId,
        position: Option<&str>,
        is_timed: bool,
        out: &mut Vec<u8>,
    ) {
        let shown = self.shown_ids();
        let compact = Compact {
            number,
            offset: (!self.is_volatile()).then_some(self.id.offset),
            time_ms: is_timed.then(|| clock::wall_ms(self.time_ms)),
            expires_ms: self.expires_ms.map(|expires_ms| clock::wall_ms(expires_ms.get())),
            facts: shown.add_to(self.facts()),
            content_type: self.shown_content_type(),
            data: self.data(),
            position: position.filter(|_| !self.is_volatile()),
        };
        envelope::write_compact(out, &compact);
    }

    /// Writes the message as one JSON object.
    pub fn write_envelope(&self, out: &mut Vec<u8>) {
        let id = (!self.is_volatile()).then(|| self.id.to_string());
        let shown = self.shown_ids();
        let envelope = Envelope {
            kind: self.channel.kind(),
            name: self.channel.name(),
            id: id.as_deref(),
            time_ms: clock::wall_ms(self.time_ms),
            expires_ms: self.expires_ms.map(|expires_ms| clock::wall_ms(expires_ms.get())),
            facts: shown.add_to(self.facts()),
            content_type: self.shown_content_type(),
            data: self.data(),
        };
        envelope::write(out, &envelope);
    }
}

/// The ids of other messages that a message shows.
#[derive(Debug, Default)]
struct ShownIds {
    erased: Option<String>,
    erased_up_to: Option<String>,
    replaces: Option<String>,
}

impl ShownIds {
    fn erased(&self) -> Option<Erased<'_>> {
        let one = self.erased.as_deref().map(Erased::Message);
        one.or_else(|| self.erased_up_to.as_deref().map(Erased::UpTo))
    }

    fn add_to<'a>(&'a self, facts: Facts<'a>) -> Facts<'a> {
        Facts { erased: self.erased(), replaces: self.replaces.as_deref(), ..facts }
    }
}

/// State of a message until its fan-out ends.
#[derive(Debug, Default)]
struct Transit {
    /// The first of a list with one entry for each framing that a subscriber needed. Mostly there
    /// are one or two, whatever the number of framings.
    encodings: OnceLock<Box<Encoded>>,
    in_flight: Option<InFlight>,
}

/// A message in one framing.
#[derive(Debug)]
struct Encoded {
    slot: u8,
    /// Made by the first caller; others wait for it.
    bytes: OnceLock<Box<[u8]>>,
    next: OnceLock<Box<Encoded>>,
}

impl Transit {
    /// The place of the encoding in `slot`, which is added if there is none.
    fn place(&self, slot: u8) -> &OnceLock<Box<[u8]>> {
        let new = || Box::new(Encoded { slot, bytes: OnceLock::new(), next: OnceLock::new() });
        let mut entry = self.encodings.get_or_init(new);
        while entry.slot != slot {
            entry = entry.next.get_or_init(new);
        }
        &entry.bytes
    }

    fn made(&self, slot: u8) -> Option<&[u8]> {
        let mut entry = self.encodings.get()?;
        while entry.slot != slot {
            entry = entry.next.get()?;
        }
        entry.bytes.get().map(|bytes| &**bytes)
    }
}

/// A message on its way to subscribers.
#[derive(Debug)]
pub struct Message {
    content: Arc<Content>,
    /// Boxed, as most messages in logs have none.
    transit: OnceLock<Box<Transit>>,
}

const _: () = assert!(size_of::<Message>() <= 24, "a log's weak reference may keep it allocated");

impl Message {
    /// A message as [`Content::new`] makes it, without encodings.
    pub fn new(
        id: MessageId,
        previous: u64,
        time_ms: u64,
        channel: ChannelName,
        body: Body,
    ) -> Message {
        Message::from(Arc::new(Content::new(id, previous, time_ms, channel, body)))
    }

    /// A message that is published now, and measured until it is complete.
    pub fn tracked(content: Arc<Content>, in_flight: InFlight) -> Message {
        let transit = Transit { in_flight: Some(in_flight), ..Transit::default() };
        Message { content, transit: OnceLock::from(Box::new(transit)) }
    }

    /// The message's flight, if it is measured and not over.
    pub fn in_flight(&self) -> Option<&InFlight> {
        self.transit.get()?.in_flight.as_ref()
    }

    /// The encoding in `slot`. The first caller makes it; all workers and connections share it
    /// while the message is on its way. An unused slot takes no memory.
    pub fn encoding(&self, slot: u8, encode: impl FnOnce(&Message) -> Vec<u8>) -> &[u8] {
        let place = self.transit.get_or_init(Box::default).place(slot);
        place.get_or_init(|| encode(self).into_boxed_slice())
    }

    /// The encoding in `slot`, if it is made.
    pub fn made_encoding(&self, slot: u8) -> Option<&[u8]> {
        self.transit.get()?.made(slot)
    }

    /// True if it has anything that ends with the fan-out, as encodings do.
    pub(crate) fn is_encoded(&self) -> bool {
        self.transit.get().is_some()
    }

    /// The content, without encodings.
    pub fn content(&self) -> Arc<Content> {
        Arc::clone(&self.content)
    }

    /// The same message without encodings.
    pub(crate) fn unencoded(&self) -> Message {
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn each_encoding_is_made_once_whatever_their_number() {
        let id = MessageId { epoch: crate::Epoch::numbered(1), offset: 7 };
        let body = Body::Text("hi".into());
        let message = Message::new(id, 6, 1234, ChannelName::channel("a"), body);
        let made = AtomicU32::new(0);
        let encode = |slot: u8| {
            message.encoding(slot, |_| {
                made.fetch_add(1, Ordering::Relaxed);
                vec![slot]
            })
        };
        std::thread::scope(|scope| {
            for worker in 0..4u8 {
                scope.spawn(move || {
                    (0..32).for_each(|at| assert_eq!(encode((at + worker) % 32).len(), 1))
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 32);
        for slot in 0..32 {
            assert_eq!(message.made_encoding(slot), Some(&[slot][..]));
        }
        assert_eq!(message.made_encoding(32), None);
        assert!(size_of::<Transit>() <= 40, "beside what is encoded");
    }

    #[test]
    fn content_type_decides_the_kind() {
        let kind = |bytes: &[u8], content_type| match Body::parse(bytes, content_type) {
            Ok((Body::Text(_), kept)) => ("text", kept),
            Ok((Body::Json(_), kept)) => ("json", kept),
            Ok((Body::Binary(_), kept)) => ("binary", kept),
            Err(BodyError::NotUtf8) => ("not utf-8", None),
            Err(BodyError::NotJson(_)) => ("not json", None),
            Err(BodyError::NotInterchange(_)) => ("not for interchange", None),
        };
        assert_eq!(kind(b"a", None), ("text", None));
        assert_eq!(kind(b"a", Some("application/x-www-form-urlencoded")), ("text", None));
        assert_eq!(kind(b"a", Some("text/html")), ("text", Some("text/html".into())));
        assert_eq!(kind(b"{}", Some("Application/JSON")), ("json", None));
        // The parameters would be lost.
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
        assert_eq!(kind(br#""\ud83d""#, Some(JSON)), ("not for interchange", None));
        assert_eq!(kind(br#""\ud83d""#, None), ("text", None));
        let deep = "[".repeat(129) + &"]".repeat(129);
        assert_eq!(kind(deep.as_bytes(), Some(ld)), ("not for interchange", None));
        assert_eq!(kind(b"\xff", Some(BINARY)), ("binary", None));
        assert_eq!(kind(b"\xff", Some("image/png")), ("binary", Some("image/png".into())));
        assert_eq!(kind(b"\xff", None), ("not utf-8", None));
        assert_eq!(kind(b"\xff", Some(JSON)), ("not json", None));
    }
}
