//! The answers to the commands of one message, which some dialects join in one frame.
//!
//! They are held back while the message is acted upon, and written before anything else goes to the
//! connection, or once they are large: what is held back exceeds [`FRAME_BYTES`] by one answer at
//! most, and the turn is charged for each frame.

use throng_dialect::Out;
use throng_wire::websocket::{Opcode, write_frame};

use crate::connection::ConnectionId;

/// A frame gets no further answer once it has so many bytes: a quarter of the largest page of
/// history.
const FRAME_BYTES: usize = 64 << 10;

/// Answers that are held back.
#[derive(Debug, Default)]
pub(super) struct Replies {
    open: Option<Open>,
    payload: Vec<u8>,
}

/// The message that is acted upon, of a connection whose dialect joins answers.
#[derive(Debug)]
struct Open {
    id: ConnectionId,
    /// The separator of two answers.
    between: &'static [u8],
    is_text: bool,
}

impl Replies {
    /// A message of the connection is acted upon, of which answers are joined if there is a
    /// `between`.
    pub(super) fn begin(
        &mut self,
        id: ConnectionId,
        between: Option<&'static [u8]>,
        is_text: bool,
    ) {
        debug_assert!(self.payload.is_empty(), "answers that nobody gets");
        self.open = between.map(|between| Open { id, between, is_text });
    }

    /// Takes an answer to the connection; `None` if its answers are not joined.
    pub(super) fn of(&mut self, id: ConnectionId) -> Option<Out<'_>> {
        let open = self.open.as_ref().filter(|open| open.id == id)?;
        Some(Out::joined(open.between, &mut self.payload))
    }

    /// True if what is held back is enough for a frame.
    pub(super) fn is_full(&self) -> bool {
        self.payload.len() >= FRAME_BYTES
    }

    /// The frame with the answers to the connection that are held back.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<Vec<u8>> {
        let open = self.open.as_ref().filter(|open| open.id == id && !self.payload.is_empty())?;
        let payload = std::mem::take(&mut self.payload);
        let mut frame = Vec::with_capacity(payload.len() + 10);
        let opcode = if open.is_text { Opcode::Text } else { Opcode::Binary };
        write_frame(&mut frame, opcode, &payload);
        Some(frame)
    }

    pub(super) fn end(&mut self) {
        self.open = None;
    }
}
