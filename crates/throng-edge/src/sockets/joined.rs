//! Writes a connection messages joined in frames, in one call.
//!
//! The bytes of a message are shared; each frame adds its first and last ones. So a frame that the
//! socket takes a part of belongs to this connection: its rest is copied, and is small. A message
//! that is a frame alone stays shared, as all that is written in part.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use throng_core::Message;
use throng_dialect::Encoding;
use throng_dialect::joined::{Begin, END, FRAME_BYTES, element};

use super::Sockets;
use super::messages::Outcome;
use crate::connection::{ConnectionId, Partial};
use crate::counters::Counter;
use crate::net::{Net, Transfer};

/// Messages in one write. A frame has two slices more than messages, and the kernel takes 1024
/// (`UIO_MAXIOV`).
pub(crate) const MESSAGES_PER_WRITE: usize = 256;

/// Bytes in one write, roughly.
pub(crate) const BYTES_PER_WRITE: usize = 64 << 10;

/// A message that is due to a connection.
#[derive(Debug)]
pub(crate) struct Due<'m> {
    pub(crate) message: &'m Arc<Message>,
    /// The encoding that it is framed in.
    pub(crate) encoding: Encoding,
    /// Its bytes, as a frame of its own.
    pub(crate) frame: &'m [u8],
}

/// The result of writing messages in frames.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// How many of the messages are in frames that the socket has taken, or has begun to take.
    pub(crate) begun: usize,
    /// How many are in frames that it has taken whole.
    pub(crate) whole: usize,
    /// The rest of a frame with several messages.
    rest: Vec<u8>,
    /// Frames with several messages that it has taken, or has begun to take.
    joined: u64,
    outcome: Outcome,
}

impl Sent {
    /// True if any of the messages may still wait below for the socket.
    pub(crate) fn is_held(&self) -> bool {
        self.outcome.is_held
    }
}

/// One frame of a write.
#[derive(Debug)]
struct Frame {
    /// Its messages, of all that are due.
    messages: Range<usize>,
    /// Its first bytes, unless it is a message's own frame.
    begin: Option<Begin>,
    length: usize,
}

impl<N: Net> Sockets<N> {
    /// Writes a connection messages that are due to it, in order.
    pub(crate) fn write_joined(&mut self, id: ConnectionId, due: &[Due<'_>]) -> Sent {
        let Sockets { net, connections, .. } = self;
        write(net, &connections[id].socket, due)
    }

    /// Counts the messages that were written, and keeps the rest of a frame.
    pub(crate) fn conclude_joined(&mut self, id: ConnectionId, sent: Sent) {
        let Sent { begun, whole, rest, joined, outcome } = sent;
        self.metrics.add(Counter::JoinedFrames, joined);
        if !rest.is_empty() {
            let outbound = self.connections[id].io_mut().outbound.get_or_insert_default();
            debug_assert!(outbound.is_empty(), "messages are written behind it");
            outbound.push_messages(&rest, (begun - whole) as u64);
            self.connections.update_buffered(id);
        }
        self.conclude_write(id, outcome);
    }
}

/// Divides messages into frames.
fn frames(due: &[Due<'_>]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut from = 0;
    while from < due.len() {
        let (mut to, mut bytes) = (from, 0);
        while let Some(element) = due.get(to).and_then(|due| element(due.frame))
            && (to == from || bytes + element.len() <= FRAME_BYTES)
        {
            bytes += element.len();
            to += 1;
        }
        let frame = if to - from > 1 {
            let begin = Begin::of(bytes);
            let length = begin.bytes().len() + bytes + END.len();
            Frame { messages: from..to, begin: Some(begin), length }
        } else {
            // One message, or a notice.
            Frame { messages: from..from + 1, begin: None, length: due[from].frame.len() }
        };
        from = frame.messages.end;
        frames.push(frame);
    }
    frames
}

/// The parts of a frame.
fn parts<'f>(frame: &'f Frame, due: &'f [Due<'_>]) -> impl Iterator<Item = &'f [u8]> {
    let is_joined = frame.begin.is_some();
    let begin = frame.begin.as_ref().map(Begin::bytes);
    let messages = due[frame.messages.clone()].iter().map(move |due| {
        let element = element(due.frame).filter(|_| is_joined);
        element.unwrap_or(due.frame)
    });
    begin.into_iter().chain(messages).chain(is_joined.then_some(END))
}

fn write<N: Net>(net: &mut N, socket: &N::Socket, due: &[Due<'_>]) -> Sent {
    let frames = frames(due);
    let mut slices = Vec::with_capacity(due.len() + 2 * frames.len());
    for frame in &frames {
        slices.extend(parts(frame, due).map(IoSlice::new));
    }
    let transfer = net.write(socket, &slices);
    let written = match transfer {
        Transfer::Bytes(written) | Transfer::Held(written) => written,
        Transfer::Blocked => 0,
        Transfer::Gone => {
            let outcome = Outcome { is_gone: true, ..Outcome::default() };
            return Sent { outcome, ..Sent::default() };
        }
    };
    let is_held = matches!(transfer, Transfer::Held(_));
    let mut sent = Sent::default();
    let mut left = written;
    for frame in &frames {
        if left == 0 {
            break;
        }
        sent.begun = frame.messages.end;
        sent.joined += u64::from(frame.begin.is_some());
        if left < frame.length {
            sent.keep_rest(frame, due, left);
            break;
        }
        left -= frame.length;
        sent.whole = frame.messages.end;
    }
    let is_blocked = is_held || sent.whole < due.len();
    let (deliveries, sent_bytes) = (sent.whole as u64, written as u64);
    sent.outcome = Outcome { deliveries, sent_bytes, is_blocked, is_held, ..sent.outcome };
    sent
}

impl Sent {
    /// Keeps the rest of a frame of which the socket has taken so many bytes.
    fn keep_rest(&mut self, frame: &Frame, due: &[Due<'_>], taken: usize) {
        if frame.begin.is_some() {
            self.rest = parts(frame, due).flatten().skip(taken).copied().collect();
            return;
        }
        let Due { message, encoding, .. } = &due[frame.messages.start];
        let (message, encoding, from) = (Arc::clone(message), *encoding, taken as u32);
        self.outcome.partial = Some(Partial { message, encoding, from });
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, ChannelId, ChannelName, Epoch, MessageId};

    use super::*;
    use crate::net::fixture::OneNet;

    const ENCODING: Encoding = Encoding::V1_COMPACT;

    fn messages(lengths: &[usize]) -> Vec<Arc<Message>> {
        let message = |(offset, length): (u64, &usize)| {
            let id = MessageId { epoch: Epoch::numbered(1), offset };
            let body = Body::Text("a".repeat(*length).into());
            Arc::new(Message::new(id, offset - 1, 0, ChannelName::channel("c"), body))
        };
        (1..).zip(lengths).map(message).collect()
    }

    fn due_of(message: &Arc<Message>) -> Due<'_> {
        let frame = ENCODING.encode(message, ChannelId(17), false);
        Due { message, encoding: ENCODING, frame }
    }

    #[test]
    fn messages_share_frames_up_to_their_size() {
        let messages = messages(&[1, 2, 4_000, 100, 5_000, 3]);
        let due: Vec<_> = messages.iter().map(due_of).collect();
        let frames: Vec<_> = frames(&due).into_iter().map(|frame| frame.messages).collect();
        assert_eq!(frames, [0..3, 3..4, 4..5, 5..6]);
    }

    #[test]
    fn each_byte_is_written_or_kept_once() {
        let messages = messages(&[1, 2, 3, 5_000, 4, 5]);
        let due: Vec<_> = messages.iter().map(due_of).collect();
        let frames = frames(&due);
        let all: Vec<u8> =
            frames.iter().flat_map(|it| parts(it, &due)).flatten().copied().collect();
        let lengths: Vec<_> = frames.iter().map(|frame| frame.length).collect();
        assert_eq!((lengths.iter().sum::<usize>(), lengths.len()), (all.len(), 3));
        for taken in 0..=all.len() {
            let sent = write(&mut OneNet::taking(taken), &(), &due);
            let rest = match &sent.outcome.partial {
                Some(partial) => {
                    assert_eq!((sent.whole, sent.begun), (3, 4));
                    &partial.encoding.begun(&partial.message, false)[partial.from as usize..]
                }
                None => &sent.rest,
            };
            let ends = [(lengths[0], 3), (lengths[0] + lengths[1], 4), (all.len(), 6)];
            let whole = ends.iter().rfind(|(end, _)| *end <= taken).map_or(0, |(_, count)| *count);
            let begun = ends.iter().find(|(end, _)| taken <= *end).map_or(0, |(_, count)| *count);
            assert_eq!(sent.whole, whole, "{taken}");
            assert_eq!(sent.begun, if taken == 0 { 0 } else { begun }, "{taken}");
            assert_eq!(sent.outcome.is_blocked, taken < all.len());
            assert_eq!(sent.outcome.deliveries, whole as u64);
            let begun_bytes = ends.iter().find(|(_, count)| *count == sent.begun);
            let expected = begun_bytes.map_or(&all[..0], |(end, _)| &all[taken..*end]);
            assert!(rest == expected, "{taken}");
        }
    }
}
