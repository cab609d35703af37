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
use throng_dialect::joined::{Begin, END, Element, FRAME_BYTES, element};

use super::Sockets;
use super::messages::Outcome;
use crate::connection::{ConnectionId, Partial};
use crate::counters::Counter;
use crate::net::{Net, Transfer};

/// Messages in one write. Each has up to two slices and a frame two more, and the kernel takes 1024
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
    /// A frame that says how many of its channel were skipped for it, if some were. It goes in
    /// front of the message, which is no large one.
    pub(crate) skipped: Option<Vec<u8>>,
}

impl Due<'_> {
    /// Its parts of a frame with several messages; `None` if it is no message.
    fn elements(&self) -> Option<[Element<'_>; 2]> {
        let none = Element { bytes: &[], asks: false };
        let skipped = self.skipped.as_deref().and_then(element);
        Some([skipped.unwrap_or(none), element(self.frame)?])
    }
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
    /// Frames that the client is to acknowledge, of those that it has begun to take.
    pub(crate) asked: usize,
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
    /// True if the client is to acknowledge it.
    asks: bool,
    length: usize,
}

impl<N: Net> Sockets<N> {
    /// Writes a connection messages that are due to it, in order. At most `room` frames ask the
    /// client to acknowledge them; nothing is written from the next one on.
    pub(crate) fn write_joined(&mut self, id: ConnectionId, due: &[Due<'_>], room: usize) -> Sent {
        let Sockets { net, connections, .. } = self;
        write(net, &connections[id].socket, due, room)
    }

    /// Counts the messages that were written, and keeps the rest of a frame.
    pub(crate) fn conclude_joined(&mut self, id: ConnectionId, sent: Sent) {
        let Sent { begun, whole, rest, joined, outcome, .. } = sent;
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
        let (mut to, mut bytes, mut asks) = (from, 0, false);
        while let Some(elements) = due.get(to).and_then(Due::elements) {
            let more = elements.iter().map(|element| element.bytes.len()).sum::<usize>();
            if to > from && bytes + more > FRAME_BYTES {
                break;
            }
            bytes += more;
            asks |= elements.iter().any(|element| element.asks);
            to += 1;
        }
        let has_skipped = to > from && due[from].skipped.is_some();
        let frame = if to - from > 1 || has_skipped {
            let begin = Begin::of(bytes, asks);
            let length = begin.bytes().len() + bytes + END.len();
            Frame { messages: from..to, begin: Some(begin), asks, length }
        } else {
            // One message, or a notice.
            Frame { messages: from..from + 1, begin: None, asks, length: due[from].frame.len() }
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
    let messages = due[frame.messages.clone()].iter().flat_map(move |due| {
        let elements = due.elements().filter(|_| is_joined);
        let alone = [&[][..], due.frame];
        elements.map_or(alone, |elements| elements.map(|element| element.bytes))
    });
    let messages = messages.filter(|bytes| !bytes.is_empty());
    begin.into_iter().chain(messages).chain(is_joined.then_some(END))
}

fn write<N: Net>(net: &mut N, socket: &N::Socket, due: &[Due<'_>], room: usize) -> Sent {
    let mut frames = frames(due);
    let mut asking = frames.iter().enumerate().filter(|(_, frame)| frame.asks);
    if let Some((beyond, _)) = asking.nth(room) {
        frames.truncate(beyond);
    }
    let end = frames.last().map_or(0, |frame| frame.messages.end);
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
        sent.joined += u64::from(frame.messages.len() > 1);
        sent.asked += usize::from(frame.asks);
        if left < frame.length {
            sent.keep_rest(frame, due, left);
            break;
        }
        left -= frame.length;
        sent.whole = frame.messages.end;
    }
    let is_blocked = is_held || sent.whole < end;
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
    use throng_dialect::dialect::Shown;

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
        let frame = ENCODING.encode(message, Shown::of(ChannelId(17)), false);
        Due { message, encoding: ENCODING, frame, skipped: None }
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
            let sent = write(&mut OneNet::taking(taken), &(), &due, usize::MAX);
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
