//! The sub-protocol `throng.v1`: JSON in both directions, see [`throng_wire::v1`].

use throng_core::Message;
use throng_wire::v1::{self, RawValue};

use crate::close_reason::CloseReason;
use crate::dialect::{Dialect, End, Ended, Heard, Shown, Speaker, compact, envelope};
use crate::framing::Out;
use crate::saying::{Saying, Welcome};

/// A command may be this many times as large as a message: JSON may escape each byte of the body as
/// six (`\u00ff`).
const COMMAND_FACTOR: usize = 6;
/// Bytes for the other fields of a command.
const COMMAND_SLACK_BYTES: usize = 4096;

/// Commands and answers with messages in full envelopes.
#[derive(Debug)]
pub(crate) struct V1;

/// The same with compact envelopes. A frame with messages is an array: first 1 if the client is to
/// acknowledge it, and 0 otherwise, then one element for each message.
#[derive(Debug)]
pub(crate) struct CompactV1 {
    pub(crate) is_timed: bool,
}

impl Dialect for CompactV1 {
    fn has_commands(&self) -> bool {
        V1.has_commands()
    }

    fn max_input_bytes(&self, max_message_bytes: usize) -> usize {
        V1.max_input_bytes(max_message_bytes)
    }

    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        // A volatile one is nowhere kept for a client that has yet to acknowledge others.
        let asks = shown.asks && !message.is_volatile();
        let mut frame = if asks { b"[1,".to_vec() } else { b"[0,".to_vec() };
        frame.append(&mut compact(message, shown, self.is_timed));
        frame.push(b']');
        out.text(&frame);
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let Saying::Subscribed(target, start) = saying else {
            return V1.say(saying, reference, out);
        };
        let mut json = Vec::new();
        start.write(target, Some(start.number), reference, &mut json);
        out.text(&json);
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        V1.end(end, out)
    }

    fn hear(&self, payload: &[u8], is_text: bool, speaker: &dyn Speaker) -> (Heard, usize) {
        V1.hear(payload, is_text, speaker)
    }

    fn heartbeat(&self, is_chunked: bool) -> &'static [u8] {
        V1.heartbeat(is_chunked)
    }

    fn ping(&self) -> &'static [u8] {
        V1.ping()
    }
}

impl Dialect for V1 {
    fn has_commands(&self) -> bool {
        true
    }

    fn max_input_bytes(&self, max_message_bytes: usize) -> usize {
        max_message_bytes * COMMAND_FACTOR + COMMAND_SLACK_BYTES
    }

    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        out.text(&envelope(message, shown.position));
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let Saying::Welcome(Welcome { connection, terms, unread, .. }) = saying else {
            return saying.native(reference, out);
        };
        let mut json = Vec::new();
        v1::welcome(&mut json, connection, terms, *unread);
        out.text(&json);
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        end.native(out)
    }

    fn hear(&self, payload: &[u8], is_text: bool, _: &dyn Speaker) -> (Heard, usize) {
        let heard = if is_text {
            Heard::Command(v1::parse(std::str::from_utf8(payload).unwrap_or_default()))
        } else {
            Heard::Refused(CloseReason::BinaryCommand)
        };
        (heard, payload.len())
    }

    /// A frame that pages can see.
    fn heartbeat(&self, _: bool) -> &'static [u8] {
        b"\x81\x14{\"type\":\"heartbeat\"}"
    }

    /// A ping, which no page can see, and a heartbeat, which it can.
    fn ping(&self) -> &'static [u8] {
        b"\x89\0\x81\x14{\"type\":\"heartbeat\"}"
    }
}
