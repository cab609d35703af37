//! Decodes server-sent events.

use crate::{Check, ensure};

/// An event: the fields up to a blank line, or a comment alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Event {
    /// The field `id:`.
    pub(crate) id: Option<String>,
    /// The field `event:`.
    pub(crate) name: Option<String>,
    /// The `data:` lines, joined.
    pub(crate) data: Option<String>,
    /// The field `retry:`.
    pub(crate) retry_ms: Option<u64>,
    pub(crate) is_comment: bool,
}

/// Splits a stream into events. Lines end with a line feed, the only line end that Throng writes.
#[derive(Debug, Default)]
pub(crate) struct Events {
    bytes: Vec<u8>,
}

impl Events {
    pub(crate) fn is_at_rest(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes more bytes of the stream. Returns the events that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Check<Vec<Event>> {
        let mut events = Vec::new();
        self.bytes.extend_from_slice(bytes);
        loop {
            // A heartbeat has a blank line after its comment, and fields may follow another one.
            let line = self.bytes.iter().position(|&byte| byte == b'\n');
            if self.bytes.first() == Some(&b':')
                && let Some(end) = line
            {
                let Some(&next) = self.bytes.get(end + 1) else { return Ok(events) };
                self.bytes.drain(..=end + usize::from(next == b'\n'));
                events.push(Event { is_comment: true, ..Event::default() });
                continue;
            }
            let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") else {
                return Ok(events);
            };
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let text = std::str::from_utf8(&block[..end]).map_err(|_| "an event is not UTF-8")?;
            events.push(event(text)?);
        }
    }
}

fn event(text: &str) -> Check<Event> {
    ensure!(!text.contains('\r'), "a carriage return ends a line, too");
    let mut event = Event::default();
    for line in text.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.name = Some(value.to_owned()),
            "retry" => {
                let retry = value.parse().map_err(|_| format!("the field retry `{value}`"))?;
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
