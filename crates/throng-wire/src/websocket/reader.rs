//! The receiving side of a server's connection: frames to messages.

use std::borrow::Cow;

use super::frame::{CONTROL_BYTES_MAX, FrameHead, Opcode, Sender, apply_mask};
use super::utf8::{NotUtf8, Utf8};
use super::violation::Violation;

/// The most bytes that [`Reader::next`] leaves unconsumed: a control frame without its last byte,
/// which is longer than any header.
pub const UNCONSUMED_BYTES_MAX: usize = 2 + 4 + CONTROL_BYTES_MAX - 1;

/// Assembles messages from a client's frames.
///
/// Holds state only inside a message that did not arrive at once; see [`Reader::is_idle`].
#[derive(Debug, Default)]
pub struct Reader {
    /// Whether the message in progress is text; `None` outside a message.
    message_is_text: Option<bool>,
    /// Whether a fragment of the message is complete.
    has_fragments: bool,
    /// The data frame in progress. Only inside a message.
    frame: Option<Frame>,
    /// The part of the message that has arrived, unmasked.
    payload: Vec<u8>,
    /// The validation state of the text in `payload`.
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

/// What a [`Reader`] holds inside a message, for another reader to go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfRead {
    /// Whether the message is text.
    pub is_text: bool,
    /// Whether a fragment of the message is complete.
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
    /// Whether the message ends with it.
    pub is_final: bool,
}

/// The result of [`Reader::next`]. The caller must present unconsumed input again, with more bytes
/// after it.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'b> {
    /// The reader needs more input.
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
    /// An event is complete.
    Event {
        /// The event that is complete.
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
        /// Whether it is a text message, whose payload is UTF-8.
        is_text: bool,
        /// The body of the message.
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
    /// Whether it holds no state, so that the owner may drop it and use a new one for the next
    /// byte.
    pub fn is_idle(&self) -> bool {
        self.message_is_text.is_none()
    }

    /// The memory that the message in progress takes, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// The message in progress; `None` outside a message.
    pub fn half_read(&self) -> Option<HalfRead> {
        Some(HalfRead {
            is_text: self.message_is_text?,
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
    /// the same `max_message_bytes`.
    pub fn resume(half_read: HalfRead, max_message_bytes: usize) -> Result<Reader, Violation> {
        let HalfRead { is_text, has_fragments, frame, payload } = half_read;
        let missing_bytes = frame.map_or(0, |frame| frame.missing_bytes);
        if payload.len().saturating_add(missing_bytes) > max_message_bytes {
            return Err(Violation::TooLarge);
        }
        let mut utf8 = Utf8::default();
        if is_text {
            utf8.push(&payload)?;
        }
        let frame = frame.map(|HalfFrame { missing_bytes, mask, is_final }| Frame {
            missing_bytes,
            mask,
            is_final,
        });
        Ok(Reader { message_is_text: Some(is_text), has_fragments, frame, payload, utf8 })
    }

    /// Reads up to the next event. Unmasks in place, so it changes the input that it consumes.
    ///
    /// After a violation the connection must be closed. `max_message_bytes` limits the payload of a
    /// message, over all its fragments.
    pub fn next<'b>(
        &mut self,
        input: &'b mut [u8],
        max_message_bytes: usize,
    ) -> Result<Step<'b>, Violation> {
        let mut consumed = 0;
        loop {
            if let Some(mut frame) = self.frame.take() {
                let rest = &mut input[consumed..];
                let arrived = rest.len().min(frame.missing_bytes);
                self.collect(&mut frame, &mut rest[..arrived], max_message_bytes)?;
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
            let Some(head) = FrameHead::parse(rest, Sender::Client)? else {
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
            let is_text = self.check_data(&head, max_message_bytes)?;
            if is_whole && head.is_final && self.message_is_text.is_none() {
                let payload = &mut input[consumed + head.bytes..consumed + head.frame_bytes()];
                let event = whole_message(is_text, head.mask, payload)?;
                return Ok(Step::Event { event, consumed: consumed + head.frame_bytes() });
            }
            self.message_is_text = Some(is_text);
            let FrameHead { mask, is_final, payload_bytes: missing_bytes, .. } = head;
            self.frame = Some(Frame { missing_bytes, mask, is_final });
            consumed += head.bytes;
        }
    }

    /// Checks that the data frame is allowed here and not too large. Returns whether it is text.
    fn check_data(&self, head: &FrameHead, max_message_bytes: usize) -> Result<bool, Violation> {
        let is_text = match (head.opcode, self.message_is_text) {
            (Opcode::Continuation, Some(is_text)) => is_text,
            (Opcode::Continuation, None) => return Err(Violation::UnexpectedContinuation),
            (_, Some(_)) => return Err(Violation::InterleavedMessage),
            (opcode, None) => opcode == Opcode::Text,
        };
        let message_bytes = self.payload.len().saturating_add(head.payload_bytes);
        if message_bytes > max_message_bytes { Err(Violation::TooLarge) } else { Ok(is_text) }
    }

    /// Moves the bytes that have arrived of `frame` into the message.
    fn collect(
        &mut self,
        frame: &mut Frame,
        arrived: &mut [u8],
        max_message_bytes: usize,
    ) -> Result<(), Violation> {
        apply_mask(arrived, frame.mask);
        frame.mask.rotate_left(arrived.len() % 4);
        if self.message_is_text == Some(true) {
            self.utf8.push(arrived)?;
        }
        if self.payload.capacity() - self.payload.len() < arrived.len() {
            // Doubles, but never beyond what can still arrive. A header alone allocates nothing,
            // although it may announce the whole limit. After the first fragment, more may arrive
            // than this frame has: a fragment may be one byte.
            let max_missing = if self.has_fragments {
                max_message_bytes - self.payload.len()
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
        let is_text = self.message_is_text.take() == Some(true);
        Ok(Event::Message { is_text, payload: Cow::Owned(std::mem::take(&mut self.payload)) })
    }
}

impl From<NotUtf8> for Violation {
    fn from(_: NotUtf8) -> Violation {
        Violation::NotUtf8
    }
}

fn whole_message(is_text: bool, mask: [u8; 4], payload: &mut [u8]) -> Result<Event<'_>, Violation> {
    apply_mask(payload, mask);
    if is_text && simdutf8::basic::from_utf8(payload).is_err() {
        return Err(Violation::NotUtf8);
    }
    Ok(Event::Message { is_text, payload: Cow::Borrowed(payload) })
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
