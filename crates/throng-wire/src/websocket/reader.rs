//! The receiving side of a server's connection.

use std::borrow::Cow;

use super::Violation;
use super::frame::{CONTROL_BYTES_MAX, FrameHead, Opcode, Sender, apply_mask};
use super::utf8::{NotUtf8, Utf8};

/// The most that [`Reader::next`] leaves unconsumed: a control frame but for its last byte, which
/// is more than the longest header.
pub const UNCONSUMED_BYTES_MAX: usize = 2 + 4 + CONTROL_BYTES_MAX - 1;

/// What a client sends, put together from pieces.
///
/// Holds something only within a message that did not arrive at once; see [`Reader::is_idle`].
#[derive(Debug, Default)]
pub struct Reader {
    /// Whether the message that has begun is text.
    message_is_text: Option<bool>,
    /// Whether some fragment of the message has ended.
    has_fragments: bool,
    /// The data frame that has begun. Only within a message.
    frame: Option<Frame>,
    /// What has arrived of the message, unmasked.
    payload: Vec<u8>,
    /// How the text in `payload` ends.
    utf8: Utf8,
}

/// A data frame whose header has been read.
#[derive(Debug)]
struct Frame {
    missing_bytes: usize,
    /// The mask, turned so that it begins with the byte that is due.
    mask: [u8; 4],
    is_final: bool,
}

/// How far [`Reader::next`] came. Unconsumed input is to be presented again, with more behind it.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'b> {
    /// Nothing more can be made of the input.
    Incomplete {
        /// How many bytes have been dealt with.
        consumed: usize,
    },
    /// A fragment of a message has ended; there may be more behind it. Told so that whoever reads
    /// can bound how many of them have their turn at once.
    Fragment {
        /// How many bytes have been dealt with.
        consumed: usize,
    },
    /// Something to act upon.
    Event {
        /// What it is.
        event: Event<'b>,
        /// How many bytes have been dealt with; there may be more events behind them.
        consumed: usize,
    },
}

/// What a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'b> {
    /// A message: borrowed when it came in one frame at once, else collected.
    Message {
        /// A text message, which is UTF-8, or a binary one.
        is_text: bool,
        /// What it says.
        payload: Cow<'b, [u8]>,
    },
    /// Wants a pong with this payload.
    Ping(&'b [u8]),
    /// A sign of life.
    Pong,
    /// The last event; what comes after it is to be ignored.
    Close {
        /// Why, if the client said.
        code: Option<u16>,
        /// What it said besides.
        reason: &'b str,
    },
}

impl Reader {
    /// Whether it holds nothing, so that the owner may drop it and start anew with the next byte.
    pub fn is_idle(&self) -> bool {
        self.message_is_text.is_none()
    }

    /// The memory that the message begun takes.
    pub fn buffered_bytes(&self) -> usize {
        self.payload.capacity()
    }

    /// Reads up to the next event. Unmasks in place: consumed input is changed.
    ///
    /// After a violation the connection can only be closed. The message limit counts payload, over
    /// all fragments.
    pub fn next<'b>(
        &mut self,
        input: &'b mut [u8],
        message_bytes_max: usize,
    ) -> Result<Step<'b>, Violation> {
        let mut consumed = 0;
        loop {
            if let Some(mut frame) = self.frame.take() {
                let rest = &mut input[consumed..];
                let arrived = rest.len().min(frame.missing_bytes);
                self.collect(&mut frame, &mut rest[..arrived], message_bytes_max)?;
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
            let is_text = self.check_data(&head, message_bytes_max)?;
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

    /// Whether the data frame may come now and is not too large; returns whether it holds text.
    fn check_data(&self, head: &FrameHead, message_bytes_max: usize) -> Result<bool, Violation> {
        let is_text = match (head.opcode, self.message_is_text) {
            (Opcode::Continuation, Some(is_text)) => is_text,
            (Opcode::Continuation, None) => return Err(Violation::UnexpectedContinuation),
            (_, Some(_)) => return Err(Violation::InterleavedMessage),
            (opcode, None) => opcode == Opcode::Text,
        };
        let message_bytes = self.payload.len().saturating_add(head.payload_bytes);
        if message_bytes > message_bytes_max { Err(Violation::TooLarge) } else { Ok(is_text) }
    }

    /// Moves what has arrived of a frame into the message.
    fn collect(
        &mut self,
        frame: &mut Frame,
        arrived: &mut [u8],
        message_bytes_max: usize,
    ) -> Result<(), Violation> {
        apply_mask(arrived, frame.mask);
        frame.mask.rotate_left(arrived.len() % 4);
        if self.message_is_text == Some(true) {
            self.utf8.push(arrived)?;
        }
        if self.payload.capacity() - self.payload.len() < arrived.len() {
            // Doubles, but never beyond what can still come: a header alone, which may announce the
            // whole limit, makes nothing be allocated. After the first fragment more may come than
            // the frame brings, and a fragment may be a byte.
            let most = match self.has_fragments {
                true => message_bytes_max - self.payload.len(),
                false => frame.missing_bytes,
            };
            let more = arrived.len().max(self.payload.len()).min(most);
            self.payload.reserve_exact(more);
        }
        self.payload.extend_from_slice(arrived);
        frame.missing_bytes -= arrived.len();
        Ok(())
    }

    /// Hands out the message that is complete, and is idle again.
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
