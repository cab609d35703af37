//! Server-sent events: the `text/event-stream` format of the HTML standard.

use memchr::{memchr, memchr2};

/// Declares [`ServerEvent`].
macro_rules! server_events {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal,)*) => {
        /// The events of the server's own streams. No message may have such a name, because it
        /// would pass for a notice.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ServerEvent { $($(#[doc = $doc])+ $variant,)* }

        impl ServerEvent {
            /// All of them.
            pub const ALL: &'static [ServerEvent] = &[$(ServerEvent::$variant,)*];

            /// The name of the event.
            pub const fn name(self) -> &'static str {
                match self { $(ServerEvent::$variant => $name,)* }
            }
        }
    };
}

server_events! {
    /// The answer to a command.
    Answer "answer",
    /// A message with a binary body.
    Binary "binary",
    /// The last notice of a stream that the server ends.
    Closed "closed",
    /// Messages were skipped for a newer one.
    Conflated "conflated",
    /// A channel has ended.
    Ended "ended",
    /// Messages are erased.
    Erased "erased",
    /// A message or a command is refused.
    Error "error",
    /// The stream ends with its client's permission.
    Expired "expired",
    /// The client's permission ends soon.
    Expiring "expiring",
    /// Messages are lost.
    Gap "gap",
    /// Messages come late, or no longer do.
    Late "late",
    /// The numbers of channels.
    Numbers "numbers",
    /// The members of a channel.
    Presence "presence",
    /// A stream resumes.
    Resumed "resumed",
    /// The state of a channel is complete.
    State "state",
    /// A user has read on, on another device.
    Unread "unread",
    /// A stream begins.
    Welcome "welcome",
}

/// The heartbeat: a comment and an empty line, which dispatches nothing. Without the line, simple
/// parsers take the comment and the event behind it for one block, and drop both.
pub const HEARTBEAT: &[u8] = b":\n\n";

/// The heartbeat as a chunk of a chunked response.
pub const HEARTBEAT_CHUNK: &[u8] = b"3\r\n:\n\n\r\n";

/// Writes one event. `id` and `event` are one line each. Line breaks of any kind in `data` arrive
/// as line feeds.
pub fn write_event(out: &mut Vec<u8>, id: Option<&str>, event: Option<&str>, data: &[u8]) {
    out.reserve(32 + id.map_or(0, str::len) + event.map_or(0, str::len) + data.len());
    if let Some(id) = id {
        write_field(out, b"id: ", id.as_bytes());
    }
    if let Some(event) = event {
        write_field(out, b"event: ", event.as_bytes());
    }
    let mut rest = data;
    while let Some(end) = memchr2(b'\n', b'\r', rest) {
        write_field(out, b"data: ", &rest[..end]);
        let is_pair = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + if is_pair { 2 } else { 1 }..];
    }
    write_field(out, b"data: ", rest);
    out.push(b'\n');
}

/// Sets the client's delay before it reconnects, in milliseconds.
pub fn write_retry(out: &mut Vec<u8>, ms: u64) {
    out.extend_from_slice(format!("retry: {ms}\n\n").as_bytes());
}

/// Clients drop one space after the colon, so `name` ends with one: a leading space of `value`
/// survives.
fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(memchr(b'\n', value).is_none(), "a field is one line");
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(id: Option<&str>, event: Option<&str>, data: &[u8]) -> String {
        let mut out = Vec::new();
        write_event(&mut out, id, event, data);
        String::from_utf8(out).unwrap()
    }

    /// The data of each event that a browser dispatches from the stream.
    fn dispatched(stream: &str) -> Vec<String> {
        let mut events = Vec::new();
        let mut data: Vec<&str> = Vec::new();
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        for line in stream.split('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push(std::mem::take(&mut data).join("\n"));
                }
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value));
            }
        }
        events
    }

    #[test]
    fn fields_come_in_order() {
        assert_eq!(event(None, None, b"hello"), "data: hello\n\n");
        assert_eq!(event(Some("k-1"), None, b"a"), "id: k-1\ndata: a\n\n");
        let all = event(Some("k-1"), Some("binary"), b"eA==");
        assert_eq!(all, "id: k-1\nevent: binary\ndata: eA==\n\n");
    }

    #[test]
    fn every_line_break_begins_a_data_line() {
        let expected = "data: a\ndata: b\ndata: c\ndata: d\ndata: \ndata: e\n\n";
        assert_eq!(event(None, None, b"a\nb\rc\r\nd\n\re"), expected);
        assert_eq!(event(None, None, b""), "data: \n\n");
        assert_eq!(event(None, None, b"\n"), "data: \ndata: \n\n");
        assert_eq!(event(None, None, b"\r\n"), "data: \ndata: \n\n");
    }

    #[test]
    fn the_heartbeat_in_a_chunk_is_the_same() {
        assert_eq!(crate::chunk::inner(HEARTBEAT_CHUNK), HEARTBEAT);
    }

    #[test]
    fn the_retry_is_an_event_of_its_own() {
        let mut out = Vec::new();
        write_retry(&mut out, 1500);
        assert_eq!(out, b"retry: 1500\n\n");
    }

    proptest! {
        #[test]
        fn a_browser_gets_what_was_published(
            bodies in prop::collection::vec("[ a:\r\n]{0,9}", 0..4),
        ) {
            let stream: String = bodies
                .iter()
                .map(|body| event(Some("k-1"), None, body.as_bytes()))
                .chain([String::from_utf8_lossy(HEARTBEAT).into_owned()])
                .collect();
            let expected: Vec<String> = bodies
                .iter()
                .map(|body| body.replace("\r\n", "\n").replace('\r', "\n"))
                .collect();
            prop_assert_eq!(dispatched(&stream), expected);
        }
    }
}
