//! Reads server-sent events from a response.
//!
//! An event is complete with its blank line. An incomplete event is dropped together with its id,
//! so that the server sends it again after a resume.

use std::io::{self, BufRead, Read};

/// Maximum size of an event. Messages are smaller; a stream of one endless line is an error.
const EVENT_BYTES_MAX: u64 = 128 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SseEvent {
    /// The event's type; empty for a message.
    pub(crate) kind: String,
    /// The event's data, with lines joined by line feeds.
    pub(crate) data: String,
}

#[derive(Debug)]
pub(super) struct SseEvents<R> {
    input: R,
    last_id: Option<String>,
    retry_ms: Option<u64>,
}

impl<R: BufRead> SseEvents<R> {
    /// Reads events from the start of a response body.
    pub(super) fn new(input: R) -> SseEvents<R> {
        SseEvents { input, last_id: None, retry_ms: None }
    }

    /// The last id that an event had.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The server's time to wait before a reconnect.
    pub(super) fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// The next event with data, or `None` at the end of the stream. Skips comments.
    pub(super) fn next(&mut self) -> io::Result<Option<SseEvent>> {
        let mut event = SseEvent::default();
        let (mut has_data, mut id, mut left) = (false, None, EVENT_BYTES_MAX);
        loop {
            let mut line = Vec::new();
            let read = (&mut self.input).take(left).read_until(b'\n', &mut line)? as u64;
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                let is_end = read < left;
                return if is_end { Ok(None) } else { Err(too_large()) };
            }
            line.pop_if(|byte| *byte == b'\r');
            let line = String::from_utf8_lossy(&line);
            if line.is_empty() {
                if id.is_some() {
                    self.last_id = id.take();
                }
                if has_data {
                    return Ok(Some(event));
                }
                (event, left) = (SseEvent::default(), EVENT_BYTES_MAX);
                continue;
            }
            left = left.saturating_sub(read);
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    if has_data {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                    has_data = true;
                }
                "event" => value.clone_into(&mut event.kind),
                "id" if !value.contains('\0') => id = Some(value.to_owned()),
                "retry" => self.retry_ms = value.parse().ok().or(self.retry_ms),
                // Comments have an empty name; unknown fields are ignored.
                _ => {}
            }
        }
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent an event of more than 128 MiB")
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn message(data: &str) -> SseEvent {
        SseEvent { kind: String::new(), data: data.into() }
    }

    /// The events, the last id and the retry time, with reads of `piece_bytes`.
    fn read(text: &str, piece_bytes: usize) -> (Vec<SseEvent>, Option<String>, Option<u64>) {
        let mut events = SseEvents::new(BufReader::with_capacity(piece_bytes, text.as_bytes()));
        let mut list = Vec::new();
        while let Some(event) = events.next().unwrap() {
            list.push(event);
        }
        (list, events.last_id().map(str::to_owned), events.retry_ms())
    }

    #[test]
    fn events_are_read_however_the_stream_is_split() {
        let text = "event: resumed\ndata: {\"recovered\":true}\n\n: heartbeat\n\n\
                    id: a-1\ndata: one\n\nid: a-2\r\ndata: two\r\ndata:\r\ndata:  lines\r\n\r\n\
                    data\n\nretry: 1500\n\n";
        let resumed = SseEvent { kind: "resumed".into(), data: "{\"recovered\":true}".into() };
        let expected = vec![resumed, message("one"), message("two\n\n lines"), message("")];
        for piece_bytes in 1..text.len() {
            let (events, id, retry_ms) = read(text, piece_bytes);
            assert_eq!(events, expected, "in pieces of {piece_bytes}");
            assert_eq!((id.as_deref(), retry_ms), (Some("a-2"), Some(1500)));
        }
    }

    #[test]
    fn an_incomplete_event_is_dropped() {
        for text in ["id: a-1\ndata: one\n\nid: a-2\ndata: two", "id: a-1\ndata: one\n\nid: a-2\n"]
        {
            let (events, id, _) = read(text, 64);
            assert_eq!((events, id.as_deref()), (vec![message("one")], Some("a-1")));
        }
    }

    #[test]
    fn an_event_without_data_moves_the_id() {
        let (events, id, _) = read("id: a-7\n\nevent: x\n\ndata: y\n\n", 64);
        assert_eq!((events, id.as_deref()), (vec![message("y")], Some("a-7")));
    }
}
