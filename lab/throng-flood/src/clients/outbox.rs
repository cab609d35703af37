//! What publishing connections send: requests or frames, and the messages that wait or are in
//! flight.

use std::collections::VecDeque;
use std::io::Write as _;

use throng_wire::websocket::{Opcode, write_masked_frame};

use super::request::{RequestHead, has};
use crate::marker::Mark;
use crate::plan::{PublishBy, PublishTarget};
use crate::publish::schedule::{Schedule, ScheduledMessage};
use crate::random::random;
use crate::template::{Template, TemplateValues};

/// Messages that may wait to be sent on a connection. More would not be sent in any useful time.
pub(super) const WAITING_MAX: usize = 1 << 17;

/// What connections publish, and what the responses mean.
#[derive(Debug)]
pub(super) struct Publisher {
    connections: usize,
    /// The head of a request; `None` for frames, which have no responses.
    head: Option<RequestHead>,
    /// The body of a request, or the frame.
    content: Template,
    /// Messages in flight on a connection, at most.
    pub(super) in_flight_max: usize,
    /// A response whose body contains this text rejects the message, whatever its status.
    pub(super) refused: Option<String>,
}

impl Publisher {
    pub(super) fn new(target: &PublishTarget) -> Publisher {
        let (head, content, in_flight_max) = match &target.by {
            PublishBy::Http { method, url, headers, body } => {
                let is_typed = has(headers, "content-type");
                let head = RequestHead {
                    method: method.clone(),
                    url: url.clone(),
                    headers: headers.clone(),
                    fixed: if is_typed { "" } else { "Content-Type: text/plain\r\n" }.to_owned(),
                };
                (Some(head), body, target.pipeline.max(1))
            }
            PublishBy::WebSocket { frame } => (None, frame, usize::MAX),
        };
        let (content, refused) = (content.clone(), target.refused.clone());
        Publisher { connections: target.connections.max(1), head, content, in_flight_max, refused }
    }

    pub(super) fn is_http(&self) -> bool {
        self.head.is_some()
    }

    /// The position of a stream's connection in a thread, if the thread has it. Connection `c` of
    /// all belongs to thread `c % threads`, and stream `s` uses connection `s % connections`.
    pub(super) fn position(&self, stream: u32, thread: usize, threads: usize) -> Option<usize> {
        let connection = stream as usize % self.connections;
        (connection % threads == thread).then_some(connection / threads)
    }

    /// The queues of a thread's connections.
    pub(super) fn outbox(&self, thread: usize, threads: usize) -> Outbox {
        let own = (thread..self.connections).step_by(threads);
        Outbox { queues: own.map(|_| MessageQueue::default()).collect(), ..Outbox::default() }
    }

    /// Appends the request or frame of a message with a payload of `size` bytes.
    pub(super) fn write(&self, mark: &Mark, size: usize, to: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(size);
        mark.write_payload(size, &mut payload);
        let Mark { run, stream, sequence, .. } = *mark;
        let values = TemplateValues { run, stream, payload: &payload, ..TemplateValues::default() };
        let mut content = Vec::with_capacity(self.content.text().len() + payload.len());
        self.content.render(&values, &mut content);
        let Some(head) = &self.head else {
            // Servers have the work of unmasking that the frames of browsers make.
            let mask = random(stream.into(), sequence.into()) as u32;
            return write_masked_frame(to, Opcode::Text, &content, mask.to_be_bytes());
        };
        head.write(&values, None, to);
        // Writing to a `Vec` cannot fail.
        let _ = write!(to, "Content-Length: {}\r\n\r\n", content.len());
        to.extend_from_slice(&content);
    }
}

/// The messages of one thread's connections.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The messages of a phase, and how many of them the thread has handled.
    pub(super) schedule: Option<Schedule>,
    pub(super) next: u64,
    /// Bytes of a payload.
    pub(super) size: usize,
    /// By position; empty unless the connections publish.
    pub(super) queues: Vec<MessageQueue>,
    /// Connections with new messages.
    pub(super) touched: Vec<usize>,
    pub(super) watch_at_ns: u64,
}

/// The messages of a connection.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    pub(super) waiting: VecDeque<ScheduledMessage>,
    /// Sent and not answered.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Bytes of messages that were sent on this connection, or wait for the kernel.
    pub(super) bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    pub(super) stream: u32,
    pub(super) sequence: u32,
    pub(super) sent_ns: u64,
    /// Its end in the bytes of the connection's messages.
    pub(super) end: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_one_connection() {
        let by = PublishBy::WebSocket { frame: Template::literal("{payload}") };
        let target = PublishTarget { by, connections: 7, pipeline: 1, refused: None };
        let publisher = Publisher::new(&target);
        let position = |stream, thread| publisher.position(stream, thread, 3);
        for stream in 0..50 {
            let owners: Vec<usize> =
                (0..3).filter(|&thread| position(stream, thread).is_some()).collect();
            let connection = stream as usize % 7;
            assert_eq!(owners, [connection % 3]);
            assert_eq!(position(stream, owners[0]), Some(connection / 3));
        }
    }
}
