//! What the server says beside messages, in the dialect of the connection.

use throng_dialect::{Out, Saying};
use throng_wire::v1::RawValue;

use crate::connection::{Connection, ConnectionId, Flags};
use crate::delivery::Delivery;
use crate::net::Net;

/// Appends what is said to the connection; nothing if its dialect has no word for it.
pub(crate) fn write_saying<S>(
    connection: &Connection<S>,
    saying: &Saying<'_>,
    reference: Option<&RawValue>,
    out: &mut Vec<u8>,
) {
    let encoding = connection.encoding();
    let mut out = Out::new(encoding.framing(), connection.has(Flags::CHUNKED), out);
    encoding.dialect().say(saying, reference, &mut out);
}

impl<N: Net> Delivery<N> {
    /// Tells the connection something. Returns whether its dialect has a word for it.
    pub(crate) fn say(&mut self, id: ConnectionId, saying: &Saying<'_>) -> bool {
        self.reply(id, saying, None)
    }

    /// Answers a command, which its client calls `reference`.
    pub(crate) fn reply(
        &mut self,
        id: ConnectionId,
        saying: &Saying<'_>,
        reference: Option<&RawValue>,
    ) -> bool {
        let dialect = self[id].encoding().dialect();
        if reference.is_some()
            && let Some(mut out) = self.replies.of(id)
        {
            dialect.say(saying, reference, &mut out);
            if self.replies.is_full() {
                self.flush_replies(id);
            }
            return true;
        }
        self.flush_replies(id);
        let mut out = Vec::new();
        write_saying(&self[id], saying, reference, &mut out);
        if !out.is_empty() {
            self.send(id, &out);
        }
        !out.is_empty()
    }

    /// A message of the connection is acted upon, and the answers to its commands are joined if its
    /// dialect does that.
    pub(crate) fn begin_replies(&mut self, id: ConnectionId, is_text: bool) {
        let between = self[id].encoding().dialect().between_answers();
        self.replies.begin(id, between, is_text);
    }

    /// Writes the connection the answers that are held back.
    pub(crate) fn flush_replies(&mut self, id: ConnectionId) {
        if let Some(frame) = self.replies.take(id) {
            self.send(id, &frame);
        }
    }

    /// The message of the connection has been acted upon.
    pub(crate) fn end_replies(&mut self, id: ConnectionId) {
        self.flush_replies(id);
        self.replies.end();
    }
}
