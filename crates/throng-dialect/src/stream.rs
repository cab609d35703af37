//! The HTTP stream: each message is a line.

use throng_core::Message;
use throng_wire::sse::ServerEvent;
use throng_wire::v1::{self, RawValue};

use crate::close_reason::CloseReason;
use crate::dialect::{Dialect, End, Ended, Envelopes, Shown};
use crate::framing::Out;
use crate::saying::Saying;

/// The notice that ends a stream.
const EXPIRED: &[u8] = br#"{"type":"expired"}"#;

/// Ends a stream of events or lines: with a last notice, which says what a close frame would say.
pub(crate) fn end_stream(end: &End<'_>, out: &mut Out<'_>) -> Ended {
    match end.reason {
        // It lacks messages, and must not look complete.
        CloseReason::Lagging | CloseReason::Slow => return Ended::Closes,
        // It is complete, and an event has said so.
        CloseReason::Ended => {}
        CloseReason::Expired => out.notice(ServerEvent::Expired, EXPIRED),
        reason => {
            let code = reason.close_frame().map_or(0, |(code, _)| code);
            let mut json = Vec::new();
            v1::closed(&mut json, reason.word(), code, end.message);
            out.notice(ServerEvent::Closed, &json);
        }
    }
    out.last();
    Ended::Closes
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) envelopes: Envelopes,
}

impl Dialect for Stream {
    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        match self.envelopes.of(message, shown) {
            Some(envelope) => out.text(&envelope),
            None => out.text(message.body.bytes()),
        }
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        saying.as_message(reference, out);
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        match end.reason {
            // Lines have no way to tell a client when to come back. Unlike a stream that lags, this
            // one is complete.
            CloseReason::Draining => {
                out.last();
                Ended::Closes
            }
            _ => end_stream(end, out),
        }
    }

    fn heartbeat(&self, is_chunked: bool) -> &'static [u8] {
        if is_chunked { b"1\r\n\n\r\n" } else { b"\n" }
    }
}
