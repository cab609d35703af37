//! Envelopes: a message as one JSON object on one line, or as a short JSON array.

use std::io::Write as _;

use crate::json::{write_base64, write_json_line, write_json_string};
use crate::name::Kind;

/// The body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data<'a> {
    /// Text, written as a JSON string.
    Text(&'a str),
    /// A valid JSON value, embedded unchanged but for line breaks.
    Json(&'a str),
    /// Bytes, written as base64.
    Binary(&'a [u8]),
    /// The message is a notice and has no body.
    None,
}

/// The messages that are erased, in a notice of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erased<'a> {
    /// The message with this id.
    Message(&'a str),
    /// All messages of the channel up to this id.
    UpTo(&'a str),
}

impl Erased<'_> {
    /// Appends it as a member of an object.
    fn write(self, out: &mut Vec<u8>) {
        let (name, id): (&[u8], _) = match self {
            Erased::Message(id) => (br#""erased":"#, id),
            Erased::UpTo(id) => (br#""erased_up_to":"#, id),
        };
        out.extend_from_slice(name);
        write_json_string(out, id);
    }
}

/// Appends a notice of erasure as a JSON object of its own.
pub fn write_erased(out: &mut Vec<u8>, erased: Erased<'_>) {
    out.push(b'{');
    erased.write(out);
    out.push(b'}');
}

/// The attributes of a message, as envelopes show them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The name of the event.
    pub event: Option<&'a str>,
    /// The tags, as [`parse_tags`](crate::labels::parse_tags) makes them.
    pub tags: Option<&'a str>,
    /// The publisher.
    pub from: Option<&'a str>,
    /// The messages that are erased; `None` unless the message is a notice of that.
    pub erased: Option<Erased<'a>>,
    /// The id of the message in whose place it is.
    pub replaces: Option<&'a str>,
    /// The key that the message sets, or removes if it is a tombstone.
    pub key: Option<&'a str>,
    /// True if the message removes its key.
    pub is_tombstone: bool,
}

impl Facts<'_> {
    /// Appends them as members of an object, each behind a comma.
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(event) = self.event {
            out.extend_from_slice(br#","event":"#);
            write_json_string(out, event);
        }
        if let Some(tags) = self.tags {
            out.extend_from_slice(br#","tags":"#);
            out.extend_from_slice(tags.as_bytes());
        }
        if let Some(from) = self.from {
            out.extend_from_slice(br#","from":"#);
            write_json_string(out, from);
        }
        if let Some(replaces) = self.replaces {
            out.extend_from_slice(br#","replaces":"#);
            write_json_string(out, replaces);
        }
        if let Some(erased) = self.erased {
            out.push(b',');
            erased.write(out);
        }
        if let Some(key) = self.key {
            out.extend_from_slice(br#","state_key":"#);
            write_json_string(out, key);
        }
        if self.is_tombstone {
            out.extend_from_slice(br#","tombstone":true"#);
        }
    }
}

/// The fields of an envelope.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Whether `name` is a channel or a user.
    pub kind: Kind,
    /// The name of that channel or user.
    pub name: &'a str,
    /// `None` if the message is volatile.
    pub id: Option<&'a str>,
    /// When the message was published, in milliseconds since 1970.
    pub time_ms: u64,
    /// When it expires, in milliseconds since 1970; `None` if it does not.
    pub expires_ms: Option<u64>,
    pub facts: Facts<'a>,
    /// The content type; `None` if it is the default of this kind of data.
    pub content_type: Option<&'a str>,
    pub data: Data<'a>,
}

/// Appends the envelope, without line breaks.
pub fn write(out: &mut Vec<u8>, envelope: &Envelope<'_>) {
    let is_notice = envelope.facts.erased.is_some();
    let start: &[u8] = if is_notice { br#"{"type":"erased",""# } else { br#"{"type":"message",""# };
    out.extend_from_slice(start);
    out.extend_from_slice(envelope.kind.noun().as_bytes());
    out.extend_from_slice(br#"":"#);
    write_json_string(out, envelope.name);
    if let Some(id) = envelope.id {
        out.extend_from_slice(br#","id":"#);
        write_json_string(out, id);
    }
    // Writing to a Vec cannot fail.
    let _ = write!(out, r#","time":{}"#, envelope.time_ms);
    if let Some(expires_ms) = envelope.expires_ms {
        let _ = write!(out, r#","expires":{expires_ms}"#);
    }
    envelope.facts.write(out);
    if let Some(content_type) = envelope.content_type {
        out.extend_from_slice(br#","content_type":"#);
        write_json_string(out, content_type);
    }
    match envelope.data {
        Data::Text(text) => {
            out.extend_from_slice(br#","data":"#);
            write_json_string(out, text);
        }
        Data::Json(json) => {
            out.extend_from_slice(br#","data":"#);
            write_json_line(out, json);
        }
        Data::Binary(bytes) => {
            out.extend_from_slice(br#","encoding":"base64","data":""#);
            write_base64(out, bytes);
            out.push(b'"');
        }
        Data::None => {}
    }
    out.push(b'}');
}

/// A message in a compact envelope. The id of the message is the epoch of its channel's log, which
/// the client knows, a hyphen and the offset.
#[derive(Debug, Clone, Copy)]
pub struct Compact<'a> {
    /// The number of the channel on this node.
    pub number: u32,
    /// `None` for a message without an id.
    pub offset: Option<u64>,
    /// When the message was published, in milliseconds since 1970, if the client asks for it.
    pub time_ms: Option<u64>,
    /// As in [`Envelope`].
    pub expires_ms: Option<u64>,
    /// As in [`Envelope`].
    pub facts: Facts<'a>,
    /// As in [`Envelope`].
    pub content_type: Option<&'a str>,
    pub data: Data<'a>,
    /// The position of the connection after the message, if the connection has one in all of its
    /// channels.
    pub position: Option<&'a str>,
}

/// Appends the compact envelope, without line breaks: number, offset and data; the time, if it is
/// asked for; and an object with whatever else there is, left out if that is nothing.
pub fn write_compact(out: &mut Vec<u8>, compact: &Compact<'_>) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "[{},", compact.number);
    match compact.offset {
        Some(offset) => drop(write!(out, "{offset},")),
        None => out.extend_from_slice(b"null,"),
    }
    match compact.data {
        Data::Text(text) => write_json_string(out, text),
        Data::Json(json) => write_json_line(out, json),
        Data::Binary(bytes) => {
            out.push(b'"');
            write_base64(out, bytes);
            out.push(b'"');
        }
        Data::None => out.extend_from_slice(b"null"),
    }
    if let Some(time_ms) = compact.time_ms {
        let _ = write!(out, ",{time_ms}");
    }
    let before = out.len();
    compact.facts.write(out);
    if let Some(content_type) = compact.content_type {
        out.extend_from_slice(br#","content_type":"#);
        write_json_string(out, content_type);
    }
    if matches!(compact.data, Data::Binary(_)) {
        out.extend_from_slice(br#","encoding":"base64""#);
    }
    if let Some(expires_ms) = compact.expires_ms {
        let _ = write!(out, r#","expires":{expires_ms}"#);
    }
    if let Some(position) = compact.position {
        out.extend_from_slice(br#","position":"#);
        write_json_string(out, position);
    }
    if out.len() > before {
        out.insert(before + 1, b'{');
        out.push(b'}');
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn envelope<'a>(data: Data<'a>, content_type: Option<&'a str>) -> Envelope<'a> {
        let time_ms = 1_763_756_766_123;
        let kind = Kind::Channel;
        let (name, id) = ("news", Some("k3v9x2-17"));
        let (expires_ms, facts) = (None, Facts::default());
        Envelope { kind, name, id, time_ms, expires_ms, facts, content_type, data }
    }

    fn written(envelope: &Envelope<'_>) -> String {
        let mut out = Vec::new();
        write(&mut out, envelope);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_a_string() {
        assert_eq!(
            written(&envelope(Data::Text("hello"), None)),
            concat!(
                r#"{"type":"message","channel":"news","id":"k3v9x2-17","time":1763756766123,"#,
                r#""data":"hello"}"#
            )
        );
    }

    #[test]
    fn json_is_embedded_on_one_line() {
        let json = "{\r\n \"a\\n\": [1,\n2, \"\u{2028}\"] }";
        assert_eq!(
            written(&envelope(Data::Json(json), Some("application/vnd.x+json"))),
            concat!(
                r#"{"type":"message","channel":"news","id":"k3v9x2-17","time":1763756766123,"#,
                r#""content_type":"application/vnd.x+json","data":{   "a\n": [1, 2, ""#,
                "\u{2028}\"] }}"
            )
        );
    }

    #[test]
    fn a_message_that_expires_says_when() {
        let expires_ms = Some(1_763_756_771_123);
        assert_eq!(
            written(&Envelope { expires_ms, ..envelope(Data::Text("hello"), None) }),
            concat!(
                r#"{"type":"message","channel":"news","id":"k3v9x2-17","time":1763756766123,"#,
                r#""expires":1763756771123,"data":"hello"}"#
            )
        );
    }

    #[test]
    fn attributes_are_shown_before_the_data() {
        let facts = Facts {
            event: Some("a\"b"),
            tags: Some(r#"{"n":2,"s":"x"}"#),
            from: Some("ann"),
            key: Some("k/\""),
            is_tombstone: true,
            erased: None,
            replaces: None,
        };
        let shown = concat!(
            r#","event":"a\"b","tags":{"n":2,"s":"x"},"from":"ann","state_key":"k/\"","#,
            r#""tombstone":true"#
        );
        assert_eq!(
            written(&Envelope { facts, ..envelope(Data::Text("hello"), Some("text/css")) }),
            [
                r#"{"type":"message","channel":"news","id":"k3v9x2-17","time":1763756766123"#,
                shown,
                r#","content_type":"text/css","data":"hello"}"#
            ]
            .concat()
        );
        let line = written_compact(&Compact { facts, ..compact(Data::Binary(&[])) });
        assert_eq!(line, format!(r#"[17,5,"",{{{},"encoding":"base64"}}]"#, &shown[1..]));
        let event = Facts { event: facts.event, ..Facts::default() };
        let line = written_compact(&Compact { facts: event, ..compact(Data::Text("hi")) });
        assert_eq!(line, r#"[17,5,"hi",{"event":"a\"b"}]"#);
    }

    #[test]
    fn a_notice_of_erasure_has_no_data() {
        let of = |erased| Facts { erased: Some(erased), ..Facts::default() };
        let facts = of(Erased::Message("k3v9x2-9"));
        assert_eq!(
            written(&Envelope { facts, ..envelope(Data::None, None) }),
            concat!(
                r#"{"type":"erased","channel":"news","id":"k3v9x2-17","time":1763756766123,"#,
                r#""erased":"k3v9x2-9"}"#
            )
        );
        let facts = of(Erased::UpTo("k3v9x2-9"));
        let line = written_compact(&Compact { facts, ..compact(Data::None) });
        assert_eq!(line, r#"[17,5,null,{"erased_up_to":"k3v9x2-9"}]"#);
        let mut alone = Vec::new();
        write_erased(&mut alone, Erased::Message("k3v9x2-9"));
        assert_eq!(alone, br#"{"erased":"k3v9x2-9"}"#);
    }

    #[test]
    fn a_message_names_the_one_that_it_replaces() {
        let facts = Facts { replaces: Some("k3v9x2-9"), from: Some("ann"), ..Facts::default() };
        let shown = r#","from":"ann","replaces":"k3v9x2-9""#;
        let full = written(&Envelope { facts, ..envelope(Data::Text("new"), None) });
        assert!(full.ends_with(&format!(r#"{shown},"data":"new"}}"#)), "{full}");
        let line = written_compact(&Compact { facts, ..compact(Data::Text("new")) });
        assert_eq!(line, format!(r#"[17,5,"new",{{{}}}]"#, &shown[1..]));
    }

    #[test]
    fn a_volatile_message_has_no_id() {
        assert_eq!(
            written(&Envelope { id: None, ..envelope(Data::Text("hello"), None) }),
            r#"{"type":"message","channel":"news","time":1763756766123,"data":"hello"}"#
        );
    }

    #[test]
    fn bytes_are_base64_of_a_user() {
        let mut envelope = envelope(Data::Binary(&[0, 255, 1, 2]), Some("image/png"));
        envelope.kind = Kind::User;
        envelope.name = "a\"b";
        assert_eq!(
            written(&envelope),
            concat!(
                r#"{"type":"message","user":"a\"b","id":"k3v9x2-17","time":1763756766123,"#,
                r#""content_type":"image/png","encoding":"base64","data":"AP8BAg=="}"#
            )
        );
    }

    fn compact<'a>(data: Data<'a>) -> Compact<'a> {
        Compact {
            number: 17,
            offset: Some(5),
            time_ms: None,
            expires_ms: None,
            facts: Facts::default(),
            content_type: None,
            data,
            position: None,
        }
    }

    fn written_compact(compact: &Compact<'_>) -> String {
        let mut out = Vec::new();
        write_compact(&mut out, compact);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_compact_envelope_has_only_what_is_needed() {
        let json = compact(Data::Json("{\"p\":\n1}"));
        assert_eq!(written_compact(&json), r#"[17,5,{"p": 1}]"#);
        assert_eq!(written_compact(&compact(Data::Text("hi"))), r#"[17,5,"hi"]"#);
        let timed = Compact { time_ms: Some(1_763_756_766_123), offset: None, ..json };
        assert_eq!(written_compact(&timed), r#"[17,null,{"p": 1},1763756766123]"#);
        let position = Some("k3v9x2-7");
        let full = Compact { content_type: Some("image/png"), position, ..timed };
        let full = Compact { expires_ms: Some(9), data: Data::Binary(&[0, 255, 1, 2]), ..full };
        assert_eq!(
            written_compact(&full),
            concat!(
                r#"[17,null,"AP8BAg==",1763756766123,{"content_type":"image/png","#,
                r#""encoding":"base64","expires":9,"position":"k3v9x2-7"}]"#
            )
        );
        let bytes = compact(Data::Binary(&[]));
        assert_eq!(written_compact(&bytes), r#"[17,5,"",{"encoding":"base64"}]"#);
    }

    proptest! {
        #[test]
        fn any_compact_envelope_is_json_on_one_line(text: String, content_type: Option<String>) {
            let content_type = content_type.as_deref();
            let line = written_compact(&Compact { content_type, ..compact(Data::Text(&text)) });
            prop_assert!(!line.contains(['\n', '\r']));
            let value: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&value[2], &Value::String(text));
            prop_assert_eq!(value[3]["content_type"].as_str(), content_type);
        }

        #[test]
        fn any_text_comes_back_on_one_line(name: String, text: String) {
            let envelope = Envelope { name: &name, ..envelope(Data::Text(&text), None) };
            let line = written(&envelope);
            prop_assert!(!line.contains(['\n', '\r']));
            let value: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&value["data"], &Value::String(text));
            prop_assert_eq!(&value["channel"], &Value::String(name));
        }
    }
}
