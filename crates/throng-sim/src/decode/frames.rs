//! WebSocket frames (RFC 6455, section 5.2): reads a server's, writes a client's. Messages may be
//! compressed, each by itself (RFC 7692, section 7.2).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use crate::{Check, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) opcode: u8,
    /// Its payload, complete, and inflated if it was compressed.
    pub(crate) payload: Vec<u8>,
    pub(crate) was_compressed: bool,
}

pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;
/// The bit beside the opcode that marks a compressed message, RSV1.
pub(crate) const COMPRESSED: u8 = 0x40;

/// The end of a flushed block, which is not sent.
const TAIL: &[u8] = &[0, 0, 0xff, 0xff];
/// More than any message of a world.
const INFLATED_BYTES_MAX: usize = 1 << 20;

/// Reads a server's frame, and returns its length, too; `None` if it is incomplete. The server does
/// not fragment messages, and compresses them only if that was negotiated.
pub(crate) fn frame(bytes: &[u8], may_compress: bool) -> Check<Option<(Frame, usize)>> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let was_compressed = may_compress && first & COMPRESSED != 0;
    let allowed = if was_compressed { 0x80 | COMPRESSED } else { 0x80 };
    ensure!(first & 0xf0 == allowed, "the first byte is {first:#x}: fragmented or extended");
    ensure!(!was_compressed || first & 0x0f < CLOSE, "a compressed control frame");
    ensure!(second & 0x80 == 0, "a masked frame from a server");
    let opcode = first & 0x0f;
    ensure!(matches!(opcode, TEXT | BINARY | CLOSE | PING | PONG), "opcode {opcode}");
    let length_bytes = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some(digits) = rest.get(..length_bytes) else { return Ok(None) };
    let long = digits.iter().fold(0, |sum, &digit| sum << 8 | usize::from(digit));
    let length = if length_bytes == 0 { usize::from(second & 0x7f) } else { long };
    let least = [0, 0, 126, 0, 0, 0, 0, 0, 65_536][length_bytes];
    ensure!(length >= least, "the length {length} in {length_bytes} bytes");
    ensure!(opcode < CLOSE || length <= 125, "a control frame of {length} bytes");
    let Some(payload) = rest.get(length_bytes..length_bytes + length) else { return Ok(None) };
    let payload = if was_compressed { inflate(payload)? } else { payload.to_vec() };
    if opcode == TEXT {
        ensure!(std::str::from_utf8(&payload).is_ok(), "a text frame that is not UTF-8");
    }
    Ok(Some((Frame { opcode, payload, was_compressed }, 2 + length_bytes + length)))
}

fn inflate(payload: &[u8]) -> Check<Vec<u8>> {
    let mut message = Vec::with_capacity(INFLATED_BYTES_MAX);
    let bytes = [payload, TAIL].concat();
    let inflated =
        Decompress::new(false).decompress_vec(&bytes, &mut message, FlushDecompress::Sync);
    inflated.map_err(|error| format!("a message that is not compressed: {error}"))?;
    ensure!(message.len() < INFLATED_BYTES_MAX, "a message of {} bytes", message.len());
    Ok(message)
}

/// Compresses the payload of a message.
pub(crate) fn deflate(message: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(2 * message.len() + 100);
    let mut compress = Compress::new(Compression::new(6), false);
    // There is room for anything that it can become.
    let _ = compress.compress_vec(message, &mut payload, FlushCompress::Sync);
    payload.truncate(payload.len().saturating_sub(TAIL.len()));
    payload
}

/// Writes a client's frame. `is_final` is set on the last frame of a message.
pub(crate) fn write(out: &mut Vec<u8>, opcode: u8, is_final: bool, payload: &[u8], mask: [u8; 4]) {
    out.push(opcode | if is_final { 0x80 } else { 0 });
    match payload.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length @ 126..=65_535 => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
}
