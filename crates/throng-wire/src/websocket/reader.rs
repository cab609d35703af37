//! The receiving side of a server's connection: frames to messages.

use std::borrow::Cow;

use super::frame::{CONTROL_BYTES_MAX, FrameHead, Opcode, Sender, apply_mask};
use super::utf8::{NotUtf8, Utf8};
use super::violation::Violation;

/// The most bytes that [`Reader::next`] leaves unconsumed: a control frame without its last byte,
/// which is longer than any header.
pub const UNCONSUMED_BYTES_MAX: usize = 2 + 4 + CONTROL_BYTES_MAX - 1;

/// A compressed message may be longer than the message limit by its share of this, and by
/// [`COMPRESSION_SLACK_BYTES`]: what does not compress takes more bytes, how many depends on the
/// client's library. zlib's own bound, for its least memory, is 14 % (`deflateBound`).
const COMPRESSION_SHARE: usize = 7;
const COMPRESSION_SLACK_BYTES: usize = 64;

/// Limits of the messages that a [`Reader`] accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// The most bytes of a message, over all its fragments, as it was before it was compressed.
    pub max_bytes: usize,
    /// True if messages may be compressed.
    pub may_compress: bool,
}

impl MessageLimits {
    /// The limit of messages that are never compressed.
    pub fn plain(max_bytes: usize) -> MessageLimits {
        MessageLimits { max_bytes, may_compress: false }
    }

    /// The most bytes of the frames of a message.
    pub fn max_payload_bytes(self, is_compressed: bool) -> usize {
        let more = self.max_bytes / COMPRESSION_SHARE + COMPRESSION_SLACK_BYTES;
        self.max_bytes.saturating_add(if is_compressed { more } else { 0 })
    }
}

/// The kind of a message, which its first frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MessageKind {
    is_text: bool,
    is_compressed: bool,
}

/// Assembles messages from a client's frames.
///
/// Holds state only inside a message that did not arrive at once; see [`Reader::is_idle`].
#[derive(Debug, Default)]
pub struct Reader {
    /// The message in progress; `None` outside a message.
    message: Option<MessageKind>,
    has_fragments: bool,
    /// The data frame in progress. Only inside a message.
    frame: Option<Frame>,
    /// The part of the message that has arrived, unmasked.
    payload: Vec<u8>,
    /// The validation state of the text in `payload`, unless it is compressed.
    utf8: Utf8,
}

/// A data frame after its header.
#[derive(Debug)]
struct Frame {
    missing_bytes: usize,
    /// The mask, rotated so that its first byte applies to the next byte of payload.
    mask: [u8; 4],
    is_final: bool,
}

/// The state of a [`Reader`] inside a message, for another reader to go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfRead {
    pub is_text: bool,
    pub is_compressed: bool,
    pub has_fragments: bool,
    /// The data frame in progress; `None` between two fragments.
    pub frame: Option<HalfFrame>,
    /// The part of the message that has arrived, unmasked.
    pub payload: Vec<u8>,
}

/// The rest of a data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfFrame {
    /// The length of the rest.
    pub missing_bytes: usize,
    /// The mask, rotated so that its first byte applies to the first byte of the rest.
    pub mask: [u8; 4],
    /// True if the message ends with it.
    pub is_final: bool,
}

/// The result of [`Reader::next`]. The caller must present unconsumed input again, with more bytes
/// after it.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'b> {
    Incomplete {
        /// How many bytes were consumed.
        consumed: usize,
    },
    /// A fragment of a message is complete; more input may follow. Reported so that the caller can
    /// bound its work per turn.
    Fragment {
        /// How many bytes were consumed.
        consumed: usize,
    },
    Event {
        event: Event<'b>,
        /// How many bytes were consumed. More events may follow them.
        consumed: usize,
    },
}

/// A message or control frame of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'b> {
    /// A message: borrowed if it arrived at once in one frame, otherwise collected.
    Message {
        /// True if it is a text message, whose payload is UTF-8 unless it is compressed.
        is_text: bool,
        /// True if the payload has to be inflated, and its text to be checked; see
        /// [`Inflater`](super::deflate::Inflater).
        is_compressed: bool,
        payload: Cow<'b, [u8]>,
    },
    /// A ping, which requests a pong with the same payload.
    Ping(&'b [u8]),
    /// A pong frame, whose payload is ignored.
    Pong,
    /// A close frame. The caller must ignore the input after it.
    Close {
        /// The close code, if the client sent one.
        code: Option<u16>,
        /// The reason, or an empty string.
        reason: &'b str,
    },
}

impl Reader {
    /// True if it holds no state, so that the owner may drop it and use a new one for the next
    /// byte.
    pub fn is_idle(&self) -> bool {
        self.message.is_none()
    }

    /// The memory that the message in progress takes, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// The message in progress; `None` outside a message.
    pub fn half_read(&self) -> Option<HalfRead> {
        let MessageKind { is_text, is_compressed } = self.message?;
        Some(HalfRead {
            is_text,
            is_compressed,
            has_fragments: self.has_fragments,
            frame: self.frame.as_ref().map(|frame| HalfFrame {
                missing_bytes: frame.missing_bytes,
                mask: frame.mask,
                is_final: frame.is_final,
            }),
            payload: self.payload.clone(),
        })
    }

    /// A reader that goes on inside a message, which must be one that [`Reader::next`] accepts with
    /// the same limits.
    pub fn resume(half_read: HalfRead, limits: MessageLimits) -> Result<Reader, Violation> {
        let HalfRead { is_text, is_compressed, has_fragments, frame, payload } = half_read;
        if is_compressed && !limits.may_compress {
            return Err(Violation::ReservedBits);
        }
        let missing_bytes = frame.map_or(0, |frame| frame.missing_bytes);
        let payload_bytes = payload.len().saturating_add(missing_bytes);
        if payload_bytes > limits.max_payload_bytes(is_compressed) {
            return Err(Violation::TooLarge);
        }
        let mut utf8 = Utf8::default();
        if is_text && !is_compressed {
            utf8.push(&payload)?;
        }
        let frame = frame.map(|HalfFrame { missing_bytes, mask, is_final }| Frame {
            missing_bytes,
            mask,
            is_final,
        });
        let message = Some(MessageKind { is_text, is_compressed });
        Ok(Reader { message, has_fragments, frame, payload, utf8 })
    }

    /// Reads up to the next event. Unmasks in place, so it changes the input that it consumes.
    ///
    /// After a violation the connection must be closed.
    pub fn next<'b>(
        &mut self,
        input: &'b mut [u8],
        limits: MessageLimits,
    ) -> Result<Step<'b>, Violation> {
        let mut consumed = 0;
        loop {
            if let Some(mut frame) = self.frame.take() {
                let rest = &mut input[consumed..];
                let arrived = rest.len().min(frame.missing_bytes);
                self.collect(&mut frame, &mut rest[..arrived], limits)?;
                consumed += arrived;
                if frame.missing_bytes > 0 {
                    self.frame = Some(frame);
                    return Ok(Step::Incomplete { consumed });
                }
                if frame.is_final {
                    return Ok(Step::Event { event: self.end_message()?, consumed });
                }
                self.has_fragments = true;
                return Ok(Step::Fragment { consumed });
            }
            let rest = &input[consumed..];
            let Some(head) = FrameHead::parse(rest, Sender::Client, limits.may_compress)? else {
                return Ok(Step::Incomplete { consumed });
            };
            let is_whole = rest.len() >= head.frame_bytes();
            if head.opcode.is_control() {
                if !is_whole {
                    return Ok(Step::Incomplete { consumed });
                }
                let payload = &mut input[consumed + head.bytes..consumed + head.frame_bytes()];
                let event = control_event(&head, payload)?;
                return Ok(Step::Event { event, consumed: consumed + head.frame_bytes() });
            }
            let kind = self.check_data(&head, limits)?;
            if is_whole && head.is_final && self.message.is_none() {
                let payload = &mut input[consumed + head.bytes..consumed + head.frame_bytes()];
                let event = whole_message(kind, head.mask, payload)?;
                return Ok(Step::Event { event, consumed: consumed + head.frame_bytes() });
            }
            self.message = Some(kind);
            let FrameHead { mask, is_final, payload_bytes: missing_bytes, .. } = head;
            self.frame = Some(Frame { missing_bytes, mask, is_final });
            consumed += head.bytes;
        }
    }

    /// Checks that the data frame is allowed here and not too large. Returns what its message is.
    fn check_data(
        &self,
        head: &FrameHead,
        limits: MessageLimits,
    ) -> Result<MessageKind, Violation> {
        let kind = match (head.opcode, self.message) {
            (Opcode::Continuation, Some(kind)) => kind,
            (Opcode::Continuation, None) => return Err(Violation::UnexpectedContinuation),
            (_, Some(_)) => return Err(Violation::InterleavedMessage),
            (opcode, None) => {
                MessageKind { is_text: opcode == Opcode::Text, is_compressed: head.is_compressed }
            }
        };
        let payload_bytes = self.payload.len().saturating_add(head.payload_bytes);
        let is_too_large = payload_bytes > limits.max_payload_bytes(kind.is_compressed);
        if is_too_large { Err(Violation::TooLarge) } else { Ok(kind) }
    }

    /// Moves the bytes that have arrived of `frame` into the message.
    fn collect(
        &mut self,
        frame: &mut Frame,
        arrived: &mut [u8],
        limits: MessageLimits,
    ) -> Result<(), Violation> {
        apply_mask(arrived, frame.mask);
        frame.mask.rotate_left(arrived.len() % 4);
        let is_compressed = self.message.is_some_and(|kind| kind.is_compressed);
        if self.message.is_some_and(|kind| kind.is_text) && !is_compressed {
            self.utf8.push(arrived)?;
        }
        if self.payload.capacity() - self.payload.len() < arrived.len() {
            // Doubles, but never beyond what can still arrive. A header alone allocates nothing,
            // although it may announce the whole limit. After the first fragment, more may arrive
            // than this frame has: a fragment may be one byte.
            let max_missing = if self.has_fragments {
                limits.max_payload_bytes(is_compressed) - self.payload.len()
            } else {
                frame.missing_bytes
            };
            let more = arrived.len().max(self.payload.len()).min(max_missing);
            self.payload.reserve_exact(more);
        }
        self.payload.extend_from_slice(arrived);
        frame.missing_bytes -= arrived.len();
        Ok(())
    }

    /// Returns the complete message and becomes idle.
    fn end_message<'b>(&mut self) -> Result<Event<'b>, Violation> {
        if !self.utf8.is_complete() {
            return Err(Violation::NotUtf8);
        }
        self.has_fragments = false;
        let kind = self.message.take();
        let payload = Cow::Owned(std::mem::take(&mut self.payload));
        Ok(Event::Message {
            is_text: kind.is_some_and(|kind| kind.is_text),
            is_compressed: kind.is_some_and(|kind| kind.is_compressed),
            payload,
        })
    }
}

impl From<NotUtf8> for Violation {
    fn from(_: NotUtf8) -> Violation {
        Violation::NotUtf8
    }
}

fn whole_message(
    kind: MessageKind,
    mask: [u8; 4],
    payload: &mut [u8],
) -> Result<Event<'_>, Violation> {
    apply_mask(payload, mask);
    let MessageKind { is_text, is_compressed } = kind;
    if is_text && !is_compressed && simdutf8::basic::from_utf8(payload).is_err() {
        return Err(Violation::NotUtf8);
    }
    Ok(Event::Message { is_text, is_compressed, payload: Cow::Borrowed(payload) })
}

fn control_event<'b>(head: &FrameHead, payload: &'b mut [u8]) -> Result<Event<'b>, Violation> {
    apply_mask(payload, head.mask);
    match head.opcode {
        Opcode::Ping => Ok(Event::Ping(payload)),
        Opcode::Pong => Ok(Event::Pong),
        _ => close_event(payload),
    }
}

fn close_event(payload: &[u8]) -> Result<Event<'_>, Violation> {
    if payload.is_empty() {
        return Ok(Event::Close { code: None, reason: "" });
    }
    let (code, reason) = payload.split_first_chunk().ok_or(Violation::ShortClose)?;
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Violation::CloseCode);
    }
    let reason = std::str::from_utf8(reason).map_err(|_| Violation::NotUtf8)?;
    Ok(Event::Close { code: Some(code), reason })
}

#[cfg(test)]
mod tests;
