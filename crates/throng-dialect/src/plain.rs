//! A WebSocket without a sub-protocol of ours: each message is one frame with exactly the published
//! bytes, or with an envelope.

use throng_core::{Body, Message};
use throng_wire::v1::RawValue;

use crate::dialect::{Dialect, End, Ended, Heard, Shown, Speaker, envelope};
use crate::framing::Out;
use crate::saying::Saying;

#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) is_envelope: bool,
}

impl Dialect for Plain {
    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        match &message.body {
            _ if self.is_envelope => out.text(&envelope(message, shown.position)),
            Body::Binary(bytes) => out.binary(bytes),
            Body::Text(text) | Body::Json(text) => out.text(text.as_bytes()),
        }
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        saying.as_message(reference, out);
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        end.native(out)
    }

    fn hear(&self, payload: &[u8], is_text: bool, _: &dyn Speaker) -> (Heard, usize) {
        let text = is_text.then(|| std::str::from_utf8(payload).unwrap_or_default());
        let body =
            text.map_or_else(|| Body::Binary(payload.into()), |text| Body::Text(text.into()));
        (Heard::Message(body), payload.len())
    }

    /// An unsolicited pong (RFC 6455 section 5.5.3).
    fn heartbeat(&self, _: bool) -> &'static [u8] {
        &[0x8a, 0]
    }
}
