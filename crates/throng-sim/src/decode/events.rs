//! Decodes server-sent events.

use super::Piece;
use crate::{Check, ensure};

/// An event, or whatever else stands between two blank lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// The field `id:`.
    pub id: Option<String>,
    /// The field `event:`.
    pub name: Option<String>,
    /// The `data:` lines, joined.
    pub data: Option<String>,
    /// The field `retry:`.
    pub retry_ms: Option<u64>,
    /// Whether there was a comment.
    pub is_comment: bool,
}

/// Cuts a stream into events. Lines end with a line feed: a server of ours writes no other end.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Whether no event has begun.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8], pieces: &mut Vec<Piece>) -> Check {
        self.bytes.extend_from_slice(bytes);
        loop {
            // A comment is a line of its own, and needs no blank one behind it.
            let line = self.bytes.iter().position(|&byte| byte == b'\n');
            if self.bytes.first() == Some(&b':')
                && let Some(end) = line
            {
                self.bytes.drain(..=end);
                let comment = Event { is_comment: true, ..Event::default() };
                pieces.push(Piece::Event(comment));
                continue;
            }
            let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") else {
                return Ok(());
            };
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let text = std::str::from_utf8(&block[..end]).map_err(|_| "an event is not UTF-8")?;
            pieces.push(Piece::Event(event(text)?));
        }
    }
}

fn event(text: &str) -> Check<Event> {
    ensure!(!text.contains('\r'), "a carriage return would end a line");
    let mut event = Event::default();
    for line in text.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.name = Some(value.to_owned()),
            "retry" => {
                let retry = value.parse().map_err(|_| format!("the retry `{value}`"))?;
                event.retry_ms = Some(retry);
            }
            "data" => match &mut event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            },
            _ => return Err(format!("the field `{field}`")),
        }
    }
    Ok(event)
}
