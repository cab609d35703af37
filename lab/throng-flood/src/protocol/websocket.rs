//! Decodes WebSocket frames from a server.

use throng_wire::websocket::{Opcode, parse_deflate_frame, parse_server_frame};

use super::event::{Event, check_length};
use super::moment;

/// A message of which some fragments have come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragmented {
    is_compressed: bool,
}

/// Passes each complete message and control frame to `sink`. Returns how many bytes were used.
/// `message` collects the fragments of a message.
pub(super) fn decode(
    (message, fragmented): (&mut Vec<u8>, &mut Option<Fragmented>),
    bytes: &[u8],
    may_compress: bool,
    sink: &mut impl FnMut(Event<'_>),
) -> Result<usize, &'static str> {
    let mut used = 0;
    loop {
        let rest = &bytes[used..];
        let parse = if may_compress { parse_deflate_frame } else { parse_server_frame };
        let frame = parse(rest).map_err(|violation| violation.message())?;
        let Some(frame) = frame else { return Ok(used) };
        let payload = &rest[frame.payload];
        used += frame.length;
        match frame.opcode {
            Opcode::Ping => sink(Event::Ping(payload)),
            // An unsolicited pong is a heartbeat.
            Opcode::Pong => sink(Event::Heartbeat),
            Opcode::Close => {
                let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                sink(Event::Close(code, moment::of_text(payload)));
                return Ok(bytes.len());
            }
            Opcode::Text | Opcode::Binary if fragmented.is_some() => {
                return Err("a message begins within another");
            }
            Opcode::Text | Opcode::Binary if frame.is_final => {
                sink(whole(payload, frame.is_compressed));
            }
            Opcode::Continuation if fragmented.is_none() => {
                return Err("a continuation frame continues nothing");
            }
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                check_length(message.len() + payload.len())?;
                message.extend_from_slice(payload);
                let Fragmented { is_compressed } =
                    *fragmented.get_or_insert(Fragmented { is_compressed: frame.is_compressed });
                if frame.is_final {
                    sink(whole(message, is_compressed));
                    (*message, *fragmented) = (Vec::new(), None);
                }
            }
        }
    }
}

fn whole(message: &[u8], is_compressed: bool) -> Event<'_> {
    if is_compressed { Event::Compressed(message) } else { Event::Message(message) }
}
