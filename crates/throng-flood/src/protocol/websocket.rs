//! Decodes WebSocket frames from a server.

use throng_wire::websocket::{Opcode, parse_server_frame};

use super::event::{Event, check_length};

/// Passes each complete message and control frame to `sink`. Returns how many bytes were used.
/// `message` collects the fragments of a message.
pub(super) fn decode(
    message: &mut Vec<u8>,
    is_in_message: &mut bool,
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<usize, &'static str> {
    let mut used = 0;
    loop {
        let rest = &bytes[used..];
        let frame = parse_server_frame(rest).map_err(|violation| violation.message())?;
        let Some(frame) = frame else { return Ok(used) };
        let payload = &rest[frame.payload];
        used += frame.length;
        match frame.opcode {
            Opcode::Ping => sink(Event::Ping(payload)),
            // An unsolicited pong is a heartbeat.
            Opcode::Pong => sink(Event::Heartbeat),
            Opcode::Close => {
                let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                sink(Event::Close(code));
                return Ok(bytes.len());
            }
            Opcode::Text | Opcode::Binary if *is_in_message => {
                return Err("a message begins within another");
            }
            Opcode::Text | Opcode::Binary if frame.is_final => sink(Event::Message(payload)),
            Opcode::Continuation if !*is_in_message => {
                return Err("a continuation frame continues nothing");
            }
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                check_length(message.len() + payload.len())?;
                message.extend_from_slice(payload);
                *is_in_message = !frame.is_final;
                if frame.is_final {
                    sink(Event::Message(message));
                    *message = Vec::new();
                }
            }
        }
    }
}
