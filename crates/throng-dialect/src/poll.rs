//! The long poll: an answer has the messages as they were published, or their envelopes, one a
//! line. The worker says which, and when it is due.

use std::sync::Arc;

use throng_core::message::{JSON, TEXT};
use throng_core::{Message, Watermark};
use throng_wire::RetryAfter;
use throng_wire::response::{self, PollBody, SubscriptionHeaders};
use throng_wire::v1::RawValue;

use crate::dialect::{Dialect, End, Ended, Envelopes, Shown};
use crate::framing::Out;
use crate::saying::Saying;
use crate::saying::{is_notice, notice_json};
use crate::stream::Stream;

#[derive(Debug)]
pub(crate) struct Poll {
    pub(crate) is_envelope: bool,
}

impl Dialect for Poll {
    fn message(&self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        let envelopes = if self.is_envelope { Envelopes::Full } else { Envelopes::None };
        Stream { envelopes }.message(message, shown, out);
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        if let Saying::Presence(_) = saying {
            saying.native(reference, out);
        }
    }

    /// It is answered with an error, or without a message.
    fn end(&self, _: &End<'_>, _: &mut Out<'_>) -> Ended {
        Ended::Closes
    }

    fn heartbeat(&self, _: bool) -> &'static [u8] {
        b""
    }
}

/// The content type of JSON values, each on a line. Published JSON may have line feeds in it.
const LINES: &str = "application/x-ndjson";

/// The size of one answer in bytes, roughly. The next poll gets the rest.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An answer that is being put together.
#[derive(Debug, Default)]
pub struct Answer {
    body: Vec<u8>,
    content_type: Option<String>,
    /// How many messages and notices it has.
    pub messages: u64,
    /// True if messages before these are lost.
    pub has_gap: bool,
    /// True if the client lacks messages that did not fit.
    is_cut: bool,
    /// The client's position after it, if it is one for all channels.
    pub up_to: Option<Watermark>,
}

impl Answer {
    fn add(&mut self, message: &Message, is_envelope: bool) {
        if is_notice(message) {
            return self.add_notice(&notice_json(message));
        }
        self.begin_part();
        let content_type = if is_envelope {
            message.write_envelope(&mut self.body);
            LINES
        } else {
            self.body.extend_from_slice(message.body.bytes());
            message.content_type()
        };
        self.note_content_type(content_type);
    }

    /// Adds a notice: a JSON object on one line.
    pub fn add_notice(&mut self, json: &[u8]) {
        self.begin_part();
        self.body.extend_from_slice(json);
        self.note_content_type(LINES);
    }

    fn begin_part(&mut self) {
        if self.messages > 0 {
            self.body.push(b'\n');
        }
        self.messages += 1;
    }

    fn note_content_type(&mut self, content_type: &str) {
        match &mut self.content_type {
            // Several values are none, and whoever parses them as one fails.
            Some(known) if known == content_type && known == JSON => *known = LINES.into(),
            Some(known) if known == LINES && content_type == JSON => {}
            Some(known) if known != content_type => *known = TEXT.into(),
            Some(_) => {}
            none => *none = Some(content_type.into()),
        }
    }

    /// Adds a message. Returns whether there is room for another one.
    pub fn add_one(&mut self, message: &Message, is_envelope: bool) -> bool {
        self.add(message, is_envelope);
        // One that fills it counts as cut: the next poll tells otherwise.
        self.is_cut |= self.body.len() > ANSWER_BYTES_MAX;
        !self.is_cut
    }

    /// Adds messages, oldest first, as many as one answer holds, of those that are for the client.
    /// Returns the offset of the last message that was added or passed over.
    pub fn add_all<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Arc<Message>>,
        is_for: impl Fn(&Message) -> bool,
        is_envelope: bool,
    ) -> Option<u64> {
        let mut last = None;
        for message in messages {
            if self.body.len() > ANSWER_BYTES_MAX {
                self.is_cut = true;
                break;
            }
            last = Some(message.id.offset);
            if is_for(message) {
                self.add(message, is_envelope);
            }
        }
        last
    }

    /// The response, with these headers beside its own.
    pub fn encode(
        &self,
        headers: &SubscriptionHeaders<'_>,
        is_kept: bool,
        retry_after: Option<RetryAfter>,
    ) -> Vec<u8> {
        // A gap found while the poll waited overrules a resume that was complete when it began.
        let recovered = if self.has_gap { Some(false) } else { headers.recovered };
        let state = headers.state.map(|_| !self.is_cut && !self.has_gap);
        let headers = SubscriptionHeaders { recovered, state, ..*headers };
        let body = self.content_type.as_deref().map(|content_type| PollBody {
            content_type: Some(content_type),
            length: self.body.len(),
        });
        let mut out = Vec::with_capacity(self.body.len() + 256);
        response::poll(&mut out, body, is_kept, retry_after, &headers);
        out.extend_from_slice(&self.body);
        out
    }
}
