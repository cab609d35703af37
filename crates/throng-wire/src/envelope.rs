//! A message as one JSON object on one line, and the JSON that we write by hand.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;

use crate::Kind;

/// The body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data<'a> {
    /// Text, which becomes a JSON string.
    Text(&'a str),
    /// A JSON value, which is embedded as it is.
    Json(&'a str),
    /// Bytes, which become base64.
    Binary(&'a [u8]),
}

/// What an envelope says.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Whether `name` is a channel or a user.
    pub kind: Kind,
    /// Where the message was published.
    pub name: &'a str,
    /// Its id.
    pub id: &'a str,
    /// When it was published, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its content type, unless the kind of data says it all.
    pub content_type: Option<&'a str>,
    /// Its body.
    pub data: Data<'a>,
}

/// Appends the envelope, without line breaks.
pub fn write(out: &mut Vec<u8>, envelope: &Envelope<'_>) {
    out.extend_from_slice(br#"{"type":"message",""#);
    out.extend_from_slice(envelope.kind.noun().as_bytes());
    out.extend_from_slice(br#"":"#);
    write_json_string(out, envelope.name);
    out.extend_from_slice(br#","id":"#);
    write_json_string(out, envelope.id);
    // A Vec takes everything.
    let _ = write!(out, r#","time":{}"#, envelope.time_ms);
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
    }
    out.push(b'}');
}

/// Appends a JSON string, quotes and all.
pub(crate) fn write_json_string(out: &mut Vec<u8>, text: &str) {
    out.reserve(2 + text.len());
    // Neither a Vec nor a str gives this a reason to fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends bytes as base64, with padding.
pub(crate) fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is exactly what the padded form takes.
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start));
}

/// Appends valid JSON on one line. Its line breaks are between tokens, since within a string they
/// are escaped, so spaces can stand for them.
fn write_json_line(out: &mut Vec<u8>, json: &str) {
    let mut rest = json.as_bytes();
    while let Some(line_break) = memchr2(b'\n', b'\r', rest) {
        out.extend_from_slice(&rest[..line_break]);
        out.push(b' ');
        rest = &rest[line_break + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn envelope<'a>(data: Data<'a>, content_type: Option<&'a str>) -> Envelope<'a> {
        let time_ms = 1_763_756_766_123;
        let kind = Kind::Channel;
        Envelope { kind, name: "news", id: "k3v9x2-17", time_ms, content_type, data }
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

    proptest! {
        #[test]
        fn any_text_comes_back_on_one_line(name: String, text: String) {
            let envelope = Envelope { name: &name, ..envelope(Data::Text(&text), None) };
            let line = written(&envelope);
            prop_assert!(!line.contains(['\n', '\r']));
            let value: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&value["data"], &Value::String(text));
            prop_assert_eq!(&value["channel"], &Value::String(name));
        }

        #[test]
        fn base64_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut out = b"before".to_vec();
            write_base64(&mut out, &bytes);
            prop_assert_eq!(STANDARD.decode(&out[6..]).unwrap(), bytes);
        }
    }
}
