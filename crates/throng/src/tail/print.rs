//! Prints messages: for people on a terminal, as JSON into a pipe.

use std::io::{self, IsTerminal, Stdout, Write};

use serde::Deserialize;
use serde_json::value::RawValue;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint, sanitized, sanitized_lines};

/// A message as the server sends it with `envelope=true`.
#[derive(Debug, Deserialize)]
struct Envelope<'a> {
    channel: Option<String>,
    user: Option<String>,
    time: u64,
    #[serde(borrow)]
    data: &'a RawValue,
    content_type: Option<String>,
    encoding: Option<String>,
    /// The key that the message sets, or removes if it is a tombstone.
    state_key: Option<String>,
    #[serde(default)]
    tombstone: bool,
}

/// Prints envelopes, each with a single write.
#[derive(Debug)]
pub(super) struct Printer {
    out: Stdout,
    is_terminal: bool,
    paint: Paint,
    has_channel_names: bool,
}

impl Printer {
    /// Prints to standard output. With `has_channel_names`, lines on a terminal name the channel.
    pub(super) fn new(has_channel_names: bool) -> Printer {
        let out = io::stdout();
        let (is_terminal, paint) = (out.is_terminal(), Paint::on(&out));
        Printer { out, is_terminal, paint, has_channel_names }
    }

    pub(super) fn print(&mut self, envelope: &str) -> io::Result<()> {
        let mut line = if self.is_terminal {
            describe(envelope, self.paint, self.has_channel_names)
        } else {
            envelope.to_owned()
        };
        line.push('\n');
        let mut out = self.out.lock();
        out.write_all(line.as_bytes())?;
        out.flush()
    }
}

/// Time, optional channel, key if it has one, and message. One line, unless the message has
/// several.
fn describe(envelope: &str, paint: Paint, has_channel_name: bool) -> String {
    let Ok(message) = serde_json::from_str::<Envelope<'_>>(envelope) else {
        return sanitized_lines(envelope);
    };
    let mut line = format!("{} ", paint.ink(Ink::Dim, clock(message.time)));
    if has_channel_name {
        let name = match (&message.user, &message.channel) {
            (Some(user), _) => format!("user {user}"),
            (None, channel) => channel.clone().unwrap_or_default(),
        };
        line += &format!("{} ", paint.name(sanitized(&name)));
    }
    if let Some(key) = &message.state_key {
        line += &format!("{} ", paint.ink(Ink::Blue, sanitized(key)));
    }
    if message.tombstone {
        return line + &paint.ink(Ink::Dim, "(removed)").to_string();
    }
    let content_type = message.content_type.as_deref();
    if message.encoding.is_some() {
        let bytes = base64_bytes(message.data.get());
        let content_type = sanitized(content_type.unwrap_or("application/octet-stream"));
        let note = format!("({content_type}, {} bytes)", count(bytes as u64));
        return line + &paint.ink(Ink::Dim, note).to_string();
    }
    match serde_json::from_str::<String>(message.data.get()) {
        // Indented, so that further lines do not look like messages.
        Ok(text) => line + &sanitized_lines(&text).replace('\n', "\n          "),
        Err(_) => line + &coloured_json(message.data.get(), paint),
    }
}

/// The time of day in UTC, in ISO 8601.
fn clock(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The number of bytes that a JSON string of base64 encodes.
fn base64_bytes(json: &str) -> usize {
    let text = json.trim_matches('"');
    let padding = text.bytes().rev().take_while(|&byte| byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// JSON on one line, with a space after each comma and colon.
fn coloured_json(json: &str, paint: Paint) -> String {
    let mut line = String::with_capacity(json.len() * 2);
    let mut rest = json.trim_start();
    while let Some(first) = rest.chars().next() {
        let token_bytes = match first {
            '"' => string_bytes(rest),
            '{' | '}' | '[' | ']' | ',' | ':' => 1,
            _ => rest.find([',', ':', ']', '}', ' ', '\n', '\r', '\t']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(token_bytes.max(first.len_utf8()));
        rest = after.trim_start();
        let ink = match first {
            '"' if rest.starts_with(':') => Ink::Blue,
            '"' => Ink::Green,
            't' | 'f' | 'n' => Ink::Yellow,
            '-' | '0'..='9' => Ink::Cyan,
            _ => Ink::Dim,
        };
        line += &paint.ink(ink, sanitized_lines(token)).to_string();
        if matches!(first, ',' | ':') {
            line.push(' ');
        }
    }
    line
}

/// The length of the JSON string at the beginning of `json`, including both quotation marks.
fn string_bytes(json: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(envelope: &str) -> String {
        describe(envelope, Paint::plain(), true)
    }

    #[test]
    fn messages_are_described_on_one_line() {
        for (rest, expected) in [
            (r#""channel":"news","time":45296000,"data":"hello""#, "12:34:56Z news hello"),
            (
                r#""channel":"a","time":0,"data":"two\nlines \u001b[0m""#,
                "00:00:00Z a two\n          lines \\u{1b}[0m",
            ),
            (
                r#""user":"ann","time":0,"data":{"n" :[1,-2.5e3], "s":"a\"b, c","t":true}"#,
                r#"00:00:00Z user ann {"n": [1, -2.5e3], "s": "a\"b, c", "t": true}"#,
            ),
            (
                concat!(
                    r#""channel":"a","time":0,"data":"aGk=","encoding":"base64","#,
                    r#""content_type":"image/png""#
                ),
                "00:00:00Z a (image/png, 2 bytes)",
            ),
            (r#""channel":"a","time":0,"state_key":"ACME","data":"1""#, "00:00:00Z a ACME 1"),
            (
                r#""channel":"a","time":0,"state_key":"k\u001b","tombstone":true,"data":null"#,
                "00:00:00Z a k\\u{1b} (removed)",
            ),
        ] {
            let envelope = format!(r#"{{"type":"message","id":"k-1",{rest}}}"#);
            assert_eq!(plain(&envelope), expected);
        }
        assert_eq!(plain("not json\x07"), "not json\\u{7}");
    }

    #[test]
    fn keys_and_values_differ_in_colour() {
        let line = coloured_json(r#"{"a":"b"}"#, Paint::always());
        assert!(line.contains("\x1b[34m\"a\"\x1b[0m") && line.contains("\x1b[32m\"b\"\x1b[0m"));
    }

    #[test]
    fn colouring_accepts_any_text() {
        for text in ["\"", "\"\\", "tru", "{\"a\":", "ü", ", ,", "\u{a0}x"] {
            coloured_json(text, Paint::plain());
        }
    }
}
