//! The answers to long-polls, before they are written.

use std::sync::Arc;

use throng_core::{Message, Watermark};
use throng_wire::response::{self, PollBody, SubscriptionHeaders};
use throng_wire::{Date, RetryAfter};

use crate::connection::LongPoll;
use crate::encoding::{Encoding, is_notice};

/// The size of one answer in bytes, roughly. The next poll gets the rest.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An answer that is being put together.
#[derive(Default)]
pub(super) struct Answer {
    body: Vec<u8>,
    content_type: Option<String>,
    pub(super) messages: u64,
    /// True if messages before these are lost.
    pub(super) has_gap: bool,
    /// The client's position after it, if it is one for all channels.
    pub(super) up_to: Option<Watermark>,
}

impl Answer {
    fn add(&mut self, message: &Message, is_envelope: bool) {
        if is_notice(message) {
            return self.add_notice(message.body.bytes());
        }
        self.begin_part();
        let content_type = if is_envelope {
            message.write_envelope(&mut self.body);
            "application/x-ndjson"
        } else {
            self.body.extend_from_slice(message.body.bytes());
            message.content_type()
        };
        self.note_content_type(content_type);
    }

    /// Adds a notice: a JSON object on one line.
    pub(super) fn add_notice(&mut self, json: &[u8]) {
        self.begin_part();
        self.body.extend_from_slice(json);
        self.note_content_type("application/x-ndjson");
    }

    fn begin_part(&mut self) {
        if self.messages > 0 {
            self.body.push(b'\n');
        }
        self.messages += 1;
    }

    fn note_content_type(&mut self, content_type: &str) {
        match &mut self.content_type {
            Some(known) if known != content_type => *known = throng_core::message::TEXT.into(),
            Some(_) => {}
            none => *none = Some(content_type.into()),
        }
    }

    /// Adds a message. Returns whether there is room for another one.
    pub(super) fn add_one(&mut self, message: &Message, is_envelope: bool) -> bool {
        self.add(message, is_envelope);
        self.body.len() <= ANSWER_BYTES_MAX
    }

    /// Adds messages, oldest first, as many as one answer holds, of those that are for the client.
    /// Returns the offset of the last message that was added or passed over.
    pub(super) fn add_all<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Arc<Message>>,
        is_for: impl Fn(&Message) -> bool,
        is_envelope: bool,
    ) -> Option<u64> {
        let mut last = None;
        for message in messages {
            if self.body.len() > ANSWER_BYTES_MAX {
                break;
            }
            last = Some(message.id.offset);
            if is_for(message) {
                self.add(message, is_envelope);
            }
        }
        last
    }

    /// The response. `position` is the client's after it.
    pub(super) fn encode(
        &self,
        position: &str,
        poll: Option<&LongPoll>,
        is_kept: bool,
        retry_after: Option<RetryAfter>,
        date: Date,
    ) -> Vec<u8> {
        let recovered = poll.and_then(|poll| poll.is_recovered);
        let headers = SubscriptionHeaders {
            id: position,
            // A gap found while the poll waited overrules a resume that was complete when it began.
            recovered: if self.has_gap { Some(false) } else { recovered },
            connection: None,
            request_id: poll.and_then(|poll| poll.request_id.as_deref()),
            allow_origin: poll.and_then(|poll| poll.origin.as_deref()),
            allow_credentials: poll.is_some_and(|poll| poll.allow_credentials),
            no_referrer: poll.is_some_and(|poll| poll.no_referrer),
            date: Some(date),
        };
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

/// Terms of an answer beside the channel: connections that wait for one channel only, and are kept
/// alive, share the answers to equal terms.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) cursor: u64,
    pub(super) encoding: Encoding,
    pub(super) poll: Option<Box<LongPoll>>,
}

/// One answer for all long-polls with the same terms.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    pub(super) terms: Terms,
    pub(super) bytes: Vec<u8>,
    pub(super) messages: u64,
    /// The offset of its last message.
    pub(super) to: u64,
}
