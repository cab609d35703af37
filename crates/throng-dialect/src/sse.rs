//! Server-sent events: each message is an event with its id, or with the position of its
//! connection. The message's own event is the name, unless an envelope or the name `binary` says
//! more.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use throng_core::{Body, Message};
use throng_wire::sse::{HEARTBEAT, HEARTBEAT_CHUNK, ServerEvent, write_retry};
use throng_wire::v1::RawValue;

use crate::close_reason::CloseReason;
use crate::dialect::{Dialect, End, Ended, Envelopes, Shown};
use crate::framing::Out;
use crate::saying::{Saying, Welcome};
use crate::stream::end_stream;

#[derive(Debug)]
pub(crate) struct Sse {
    pub(crate) envelopes: Envelopes,
}

impl Dialect for Sse {
    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        let own = message.id.to_string();
        // Without an id, so that a browser resumes behind the last message that has one.
        let id = (!message.is_volatile()).then(|| shown.position.unwrap_or(&own));
        // The position is the id of the event, and not in the envelope.
        let is_erasure = message.erasure().is_some();
        let notice = is_erasure.then_some(ServerEvent::Erased.name());
        if let Some(envelope) = self.envelopes.of(message, Shown { position: None, ..shown }) {
            return out.event(id, notice, &envelope);
        }
        if is_erasure {
            let mut json = Vec::new();
            message.write_erased(&mut json);
            return out.event(id, notice, &json);
        }
        match &message.body {
            Body::Text(text) | Body::Json(text) => {
                out.event(id, message.facts().event, text.as_bytes());
            }
            Body::Binary(bytes) => {
                let name = ServerEvent::Binary.name();
                out.event(id, Some(name), STANDARD.encode(bytes).as_bytes());
            }
        }
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        if let Saying::Welcome(Welcome { recovered: Some(recovered), .. }) = saying {
            // The `EventSource` of a browser hides the response's headers from the page.
            let json = format!(r#"{{"recovered":{recovered}}}"#);
            out.notice(ServerEvent::Resumed, json.as_bytes());
        }
        if !saying.is_unasked() {
            saying.native(reference, out);
        }
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        match (end.reason, end.retry_after) {
            (CloseReason::Draining, Some(retry_after)) => {
                let mut event = Vec::new();
                write_retry(&mut event, retry_after.ms());
                out.part(&event);
                out.last();
                Ended::Closes
            }
            _ => end_stream(end, out),
        }
    }

    fn heartbeat(&self, is_chunked: bool) -> &'static [u8] {
        if is_chunked { HEARTBEAT_CHUNK } else { HEARTBEAT }
    }
}
