//! A message as a stream stores it, and as it comes back.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use throng_core::{
    Attributes, Body, ChannelName, ConnectionName, NodeTag, Publication, UnreadNotice,
    VolatilePublication,
};

use super::link::Link;
use crate::protocol::headers::{HeaderWriter, Headers};

/// A message that a stream has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its place in the stream. The sequences of a channel's messages grow and skip.
    pub sequence: u64,
    /// When the stream stored it, in milliseconds since 1970 by the server's clock.
    pub wall_ms: u64,
    pub body: Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<Box<str>>,
    /// The connection that does not get it.
    pub excluded: Option<ConnectionName>,
    pub attributes: Option<Attributes>,
    /// For how long it is worth anything after it was stored, in milliseconds.
    pub expires_in_ms: Option<u64>,
    /// The name of the receipt that its publisher wants: the text given to [`headers`].
    pub receipt: Option<Box<str>>,
    /// The messages before it, if its channel keeps a state.
    pub link: Option<Link>,
}

impl StoredMessage {
    /// The key of the channel's state that it sets or removes.
    pub fn key(&self) -> Option<&str> {
        self.attributes.as_ref()?.key()
    }

    pub(crate) fn removes_key(&self) -> bool {
        self.attributes.as_ref().is_some_and(Attributes::removes_key)
    }

    /// When it expires, by the clock of the servers.
    pub(crate) fn expires_wall_ms(&self) -> Option<u64> {
        Some(self.wall_ms.saturating_add(self.expires_in_ms?))
    }
}

const KIND: &str = "Throng-Kind";
const TYPE: &str = "Throng-Type";
const EXCEPT: &str = "Throng-Except";
/// A block of attributes. A node of version 0.1.0 leaves it where it is, as any unknown header.
const ATTRIBUTES: &str = "Throng-Attributes";
const EXPIRES: &str = "Throng-Expires-In";
const RECEIPT: &str = "Throng-Receipt";
pub(crate) const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
const MESSAGE_ID: &str = "Nats-Msg-Id";
const SEQUENCE: &str = "Nats-Sequence";
/// The node that has published a volatile message.
const VOLATILE: &str = "Throng-Volatile";
/// The same of a notice, which nodes of earlier versions pass over.
const NOTICE: &str = "Throng-Notice";
/// The same of a notice about a channel, which nodes that know the other ones pass over.
const CHANNEL_NOTICE: &str = "Throng-Channel-Notice";

/// The headers of a publication. Within the stream's window it is stored once, however often it is
/// sent with this id. `receipt` comes back with the message.
///
/// They do not name the stream that is meant, but its answer is checked: servers look for some
/// twenty headers in each message, so that this one took a tenth of their time for it.
pub fn headers(publication: &Publication, id: &str, receipt: Option<&str>) -> Vec<u8> {
    let headers = HeaderWriter::default().field(MESSAGE_ID, id);
    with_receipt(published(headers, publication), receipt).finish()
}

/// Adds the name of the receipt that the publisher wants, if that is so.
pub(crate) fn with_receipt(headers: HeaderWriter, receipt: Option<&str>) -> HeaderWriter {
    receipt.into_iter().fold(headers, |headers, receipt| headers.field(RECEIPT, receipt))
}

/// Adds the headers that describe a stored publication, as they are.
pub(crate) fn described_again(headers: HeaderWriter, block: Headers<'_>) -> HeaderWriter {
    [KIND, TYPE, EXCEPT, ATTRIBUTES, EXPIRES].into_iter().fold(headers, |headers, name| {
        block.get(name).into_iter().fold(headers, |headers, value| headers.field(name, value))
    })
}

/// Adds the headers that describe a publication.
pub(crate) fn published(headers: HeaderWriter, publication: &Publication) -> HeaderWriter {
    let Publication { body, content_type, excluded, attributes, .. } = publication;
    let extras = (*excluded, attributes.as_ref());
    let headers = described(headers, body, content_type.as_deref(), extras);
    match publication.expires_in_ms {
        Some(expires_in_ms) => headers.field(EXPIRES, expires_in_ms),
        None => headers,
    }
}

/// The headers of a volatile message, which no stream stores. `node` is the node that has it.
pub(crate) fn volatile_headers(publication: &VolatilePublication, node: NodeTag) -> Vec<u8> {
    let VolatilePublication { body, content_type, excluded, attributes, .. } = publication;
    let name = match publication.notice() {
        None => VOLATILE,
        Some(UnreadNotice { channel: None, .. }) => NOTICE,
        Some(_) => CHANNEL_NOTICE,
    };
    let headers = HeaderWriter::default().field(name, node.number());
    let extras = (*excluded, attributes.as_ref());
    described(headers, body, content_type.as_deref(), extras).finish()
}

/// Adds the headers that all messages have.
fn described(
    mut headers: HeaderWriter,
    body: &Body,
    content_type: Option<&str>,
    (excluded, attributes): (Option<ConnectionName>, Option<&Attributes>),
) -> HeaderWriter {
    // Text, the usual kind, goes without saying.
    match body {
        Body::Text(_) => {}
        Body::Json(_) => headers = headers.field(KIND, "json"),
        Body::Binary(_) => headers = headers.field(KIND, "binary"),
    }
    if let Some(content_type) = content_type {
        headers = headers.field(TYPE, content_type);
    }
    if let Some(name) = excluded {
        headers = headers.field(EXCEPT, name);
    }
    if let Some(attributes) = attributes {
        headers = headers.field(ATTRIBUTES, URL_SAFE_NO_PAD.encode(attributes.block()));
    }
    headers
}

/// True if a message is volatile. One with a sequence is a stream's, whatever its publisher claims.
pub(crate) fn is_volatile(headers: Headers<'_>) -> bool {
    let has = |name| headers.get(name).is_some();
    [VOLATILE, NOTICE, CHANNEL_NOTICE].into_iter().any(has) && !has(SEQUENCE)
}

/// Reads a volatile message, and the node that has published it; `None` if it is none.
pub(crate) fn parse_volatile(
    headers: Headers<'_>,
    payload: &[u8],
    channel: ChannelName,
) -> Option<(NodeTag, VolatilePublication)> {
    let node = [VOLATILE, NOTICE, CHANNEL_NOTICE].into_iter().find_map(|it| headers.number(it));
    let node = NodeTag::numbered(node.filter(|_| is_volatile(headers))?);
    let (body, content_type) = body(headers.get(KIND), headers.get(TYPE), payload);
    let excluded = headers.get(EXCEPT).and_then(|name| name.parse().ok());
    let attributes = headers.get(ATTRIBUTES).and_then(attributes);
    Some((node, VolatilePublication { channel, body, content_type, excluded, attributes }))
}

/// The body of a message and its content type. A body that is not what its headers say is binary:
/// somebody else than a node has published it.
fn body(
    kind: Option<&str>,
    content_type: Option<&str>,
    payload: &[u8],
) -> (Body, Option<Box<str>>) {
    let text = || std::str::from_utf8(payload).ok().map(Box::<str>::from);
    let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
    let body = match kind {
        None => text().map(Body::Text),
        Some("json") => text().filter(|_| is_json()).map(|text| Body::stored_json(&text)),
        Some(_) => None,
    };
    // The type of JSON would be wrong for text, which an older node's may have become.
    let is_degraded = kind.is_some() && matches!(body, Some(Body::Text(_)));
    let body = body.unwrap_or_else(|| Body::Binary(payload.into()));
    (body, content_type.filter(|_| !is_degraded).map(Box::from))
}

/// The attributes in a header. Those that cannot be read are left out.
fn attributes(value: &str) -> Option<Attributes> {
    Attributes::read(&URL_SAFE_NO_PAD.decode(value).ok()?).ok()
}

/// Reads a message; `None` if it has no sequence, so that no stream has stored it.
pub fn parse(headers: Headers<'_>, payload: &[u8]) -> Option<StoredMessage> {
    let [mut sequence, mut time, mut kind, mut content_type] = [None; 4];
    let [mut excluded, mut block, mut expires_in_ms, mut receipt, mut link] = [None; 5];
    for (name, value) in headers.last_first() {
        let place = match name {
            SEQUENCE => &mut sequence,
            "Nats-Time-Stamp" => &mut time,
            KIND => &mut kind,
            TYPE => &mut content_type,
            EXCEPT => &mut excluded,
            ATTRIBUTES => &mut block,
            EXPIRES => &mut expires_in_ms,
            RECEIPT => &mut receipt,
            _ if Link::is_field(name) => &mut link,
            _ => continue,
        };
        place.get_or_insert(value);
    }
    let sequence = sequence?.parse().ok()?;
    let (body, content_type) = body(kind, content_type, payload);
    Some(StoredMessage {
        sequence,
        wall_ms: time.and_then(wall_ms).unwrap_or(0),
        body,
        content_type,
        excluded: excluded.and_then(|name: &str| name.parse().ok()),
        attributes: block.and_then(attributes),
        expires_in_ms: expires_in_ms.and_then(|value: &str| value.parse().ok()),
        receipt: receipt.map(Box::from),
        link: link.and_then(|link| Link::read(link, sequence)),
    })
}

/// Parses a time in UTC as RFC 3339 has it: `2026-01-02T03:04:05.678901234Z`.
pub fn wall_ms(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    let is_time = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !is_time || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let milliseconds = fraction.bytes().chain(*b"000").take(3);
    let milliseconds = milliseconds.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    // Years begin in March, so that the day that leap years have is their last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    let days = days.checked_sub(DAYS_TO_1970)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milliseconds)
}

/// Writes a time in UTC as RFC 3339 has it.
pub(crate) fn time_text(wall_ms: u64) -> String {
    let (seconds, milliseconds) = (wall_ms / 1000, wall_ms % 1000);
    let (days, of_day) = (seconds / 86_400 + DAYS_TO_1970 - 1, seconds % 86_400);
    // Years begin in March, as above. Each 400 of them have as many days.
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = cycle * 400 + year + later;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// The days that the sum above gives for 1970-01-01.
const DAYS_TO_1970: u64 = 719_469;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read() {
        assert_eq!(wall_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(wall_ms("2000-02-29T12:00:00.5Z"), Some(951_825_600_500));
        assert_eq!(wall_ms("2026-11-23T13:33:39.123456789Z"), Some(1_795_440_819_123));
        assert_eq!(wall_ms("2024-12-31T23:59:59.999Z"), Some(1_735_689_599_999));
        for text in ["", "Z", "1970-01-01T00:00:00", "1969-12-31T00:00:00Z", "1970-13-01T00:00:00Z"]
        {
            assert_eq!(wall_ms(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_is_written(wall_ms in 0u64..253_402_300_800_000) {
            let text = time_text(wall_ms);
            prop_assert_eq!(super::wall_ms(&text), Some(wall_ms), "{}", text);
        }
    }

    #[test]
    fn what_is_not_as_it_says_is_binary() {
        let parse = |block: &[u8], payload: &[u8]| {
            parse(Headers::new(block), payload).map(|message| message.body)
        };
        let json = b"NATS/1.0\r\nThrong-Kind: json\r\nNats-Sequence: 1\r\n\r\n";
        assert_eq!(parse(json, b"{}"), Some(Body::Json("{}".into())));
        assert_eq!(parse(json, b"{"), Some(Body::Binary(b"{".as_slice().into())));
        let text = b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n";
        assert_eq!(parse(text, b"\xff"), Some(Body::Binary(b"\xff".as_slice().into())));
        assert_eq!(parse(b"NATS/1.0\r\n\r\n", b"x"), None);
    }

    /// A message for each kind of body and each header.
    fn all() -> Vec<Publication> {
        let plain = Publication::new(ChannelName::channel("a"), Body::Text("plain text, é".into()));
        let json = Publication {
            body: Body::Json("{\"n\":1}".into()),
            content_type: Some("application/cloudevents+json".into()),
            excluded: Some(ConnectionName::numbered(7).on(NodeTag::numbered(9))),
            ..plain.clone()
        };
        let binary = Publication {
            body: Body::Binary(b"\x00\x01".as_slice().into()),
            content_type: Some("image/png".into()),
            expires_in_ms: Some(60_000),
            ..plain.clone()
        };
        vec![plain, json, binary]
    }

    /// One that builds before attributes did not write.
    fn with_attributes() -> Publication {
        let attributes = Attributes::of(&[(1, b"price"), (9_999, b"\xff")]).ok();
        let body = Body::Text("42".into());
        Publication { attributes, ..Publication::new(ChannelName::channel("a"), body) }
    }

    #[test]
    fn kept_messages_are_read() {
        let line = |publication: &Publication| {
            let block = headers(publication, "id", Some("r.1"));
            let block = String::from_utf8(block).unwrap();
            let payload = String::from_utf8(publication.body.bytes().to_vec()).unwrap();
            serde_json::json!([block, payload]).to_string()
        };
        let current: Vec<String> = all().iter().map(line).collect();
        let mut kept = crate::kept::lines("messages", &current);
        assert_eq!(kept.len(), all().len());
        kept.extend(crate::kept::lines("attributes", &[line(&with_attributes())]));
        for (kept, publication) in kept.iter().zip(all().into_iter().chain([with_attributes()])) {
            let (block, payload): (String, String) = serde_json::from_str(kept).unwrap();
            let stored = "Nats-Sequence: 7\r\nNats-Time-Stamp: 1970-01-01T00:00:05Z\r\n\r\n";
            let block = format!("{}{stored}", block.strip_suffix("\r\n").unwrap());
            let found = parse(Headers::new(block.as_bytes()), payload.as_bytes());
            let expected = StoredMessage {
                sequence: 7,
                wall_ms: 5_000,
                body: publication.body,
                content_type: publication.content_type,
                excluded: publication.excluded,
                attributes: publication.attributes,
                expires_in_ms: publication.expires_in_ms,
                receipt: Some("r.1".into()),
                link: None,
            };
            assert_eq!(found, Some(expected), "{kept}");
        }
    }

    #[test]
    fn a_volatile_message_round_trips_and_a_stored_one_is_none() {
        for Publication { channel, body, content_type, excluded, attributes, .. } in
            all().into_iter().chain([with_attributes()])
        {
            let volatile =
                VolatilePublication { channel, body, content_type, excluded, attributes };
            let mut block = volatile_headers(&volatile, NodeTag::numbered(9));
            let read = |block: &[u8]| {
                let name = volatile.channel.clone();
                parse_volatile(Headers::new(block), volatile.body.bytes(), name)
            };
            let (node, found) = read(&block).expect("it is volatile");
            assert_eq!((node, &found.channel), (NodeTag::numbered(9), &volatile.channel));
            assert_eq!(
                (&found.body, &found.content_type),
                (&volatile.body, &volatile.content_type)
            );
            assert_eq!(found.excluded, volatile.excluded);
            assert_eq!(found.attributes, volatile.attributes);
            assert_eq!(super::parse(Headers::new(&block), b""), None, "no stream has it");
            block.truncate(block.len() - 2);
            block.extend_from_slice(b"Nats-Sequence: 7\r\n\r\n");
            assert!(read(&block).is_none());
        }
        assert!(parse_volatile(Headers::default(), b"x", ChannelName::channel("a")).is_none());
    }

    #[test]
    fn attributes_that_cannot_be_read_are_left_out() {
        for value in ["", "AQ", "AQAAAA=", "AQABAP8", "?"] {
            let block = format!("NATS/1.0\r\n{ATTRIBUTES}: {value}\r\nNats-Sequence: 1\r\n\r\n");
            let read = parse(Headers::new(block.as_bytes()), b"x").expect("it has a sequence");
            assert_eq!((read.body, read.attributes), (Body::Text("x".into()), None), "{value}");
        }
    }

    fn bodies() -> impl Strategy<Value = Body> {
        prop_oneof![
            "(?s).{0,20}".prop_map(|text| Body::Text(text.into())),
            any::<u32>().prop_map(|number| Body::Json(number.to_string().into())),
            any::<Vec<u8>>().prop_map(|bytes| Body::Binary(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            body in bodies(),
            content_type in prop::option::of("[a-z]{1,9}/[a-z;= ]{0,9}[a-z]"),
            excluded in prop::option::of(any::<[u64; 2]>()),
            expires_in_ms: Option<u64>,
            value in prop::option::of(any::<Vec<u8>>()),
            sequence in 1u64..,
        ) {
            let publication = Publication {
                content_type: content_type.map(Box::from),
                excluded: excluded.map(|[node, number]| {
                    ConnectionName::numbered(number).on(NodeTag::numbered(node))
                }),
                attributes: value.map(|value| Attributes::of(&[(7, &value)]).expect("it is short")),
                expires_in_ms,
                ..Publication::new(ChannelName::channel("a"), body)
            };
            let mut block = headers(&publication, "id", Some("r.1"));
            block.truncate(block.len() - 2);
            block.extend_from_slice(format!("Nats-Sequence: {sequence}\r\n\r\n").as_bytes());
            let headers = Headers::new(&block);
            prop_assert_eq!(headers.get(MESSAGE_ID), Some("id"));
            let found = parse(headers, publication.body.bytes()).expect("it has a sequence");
            prop_assert_eq!(found.sequence, sequence);
            prop_assert_eq!(found.body, publication.body);
            prop_assert_eq!(found.content_type, publication.content_type);
            prop_assert_eq!(found.excluded, publication.excluded);
            prop_assert_eq!(found.attributes, publication.attributes);
            prop_assert_eq!(found.expires_in_ms, publication.expires_in_ms);
            prop_assert_eq!(found.receipt.as_deref(), Some("r.1"));
        }
    }
}
