//! Frame headers, and writing of whole frames.

use std::ops::Range;

use super::violation::Violation;

/// The longest payload of a control frame (RFC 6455, section 5.5).
pub(super) const CONTROL_BYTES_MAX: usize = 125;

/// The longest close reason: a control payload without the code.
const CLOSE_REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

const FIN: u8 = 0x80;
/// RSV1: the message is compressed (RFC 7692, section 6).
const COMPRESSED: u8 = 0x40;
/// RSV2 and RSV3, which no extension of ours uses.
const RESERVED: u8 = 0x30;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH_IN_16_BITS: u8 = 126;
const LENGTH_IN_64_BITS: u8 = 127;

/// The type of a frame.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// The next part of a message.
    Continuation = 0,
    /// A text message or its first part.
    Text = 1,
    /// A binary message or its first part.
    Binary = 2,
    /// The last frame of a direction.
    Close = 8,
    /// Requests a pong.
    Ping = 9,
    /// Answers a ping, or is sent unasked.
    Pong = 10,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    /// True if it is close, ping or pong: short, never fragmented, and allowed between fragments.
    pub fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The sender of the parsed frames. Clients mask theirs, servers do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    Server,
}

/// A parsed frame header.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    pub(super) opcode: Opcode,
    pub(super) is_final: bool,
    /// True if RSV1 is set, which only the first frame of a message may have.
    pub(super) is_compressed: bool,
    pub(super) mask: [u8; 4],
    /// The length of the header, in bytes.
    pub(super) bytes: usize,
    /// The length of the payload, in bytes.
    pub(super) payload_bytes: usize,
}

impl FrameHead {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete.
    ///
    /// Checks the bytes in their order, so that an invalid header always returns the same
    /// violation, however much of it has arrived. `may_compress` says whether both sides have
    /// negotiated that messages may be compressed.
    pub(super) fn parse(
        bytes: &[u8],
        sender: Sender,
        may_compress: bool,
    ) -> Result<Option<FrameHead>, Violation> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let is_compressed = first & COMPRESSED != 0;
        if first & RESERVED != 0 || (is_compressed && !may_compress) {
            return Err(Violation::ReservedBits);
        }
        let opcode = Opcode::from_bits(first & OPCODE).ok_or(Violation::ReservedOpcode)?;
        if is_compressed && !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(Violation::MisplacedCompression);
        }
        let is_final = first & FIN != 0;
        if opcode.is_control() && !is_final {
            return Err(Violation::FragmentedControl);
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        if (second & MASKED != 0) != (sender == Sender::Client) {
            return Err(Violation::Masking);
        }
        let short_length = second & !MASKED;
        if opcode.is_control() && usize::from(short_length) > CONTROL_BYTES_MAX {
            return Err(Violation::LongControl);
        }
        let Some((length, after_length)) = parse_length(short_length, &bytes[2..])? else {
            return Ok(None);
        };
        let (mask, after) = match sender {
            Sender::Server => ([0; 4], after_length),
            Sender::Client => match after_length.split_first_chunk() {
                Some((mask, after)) => (*mask, after),
                None => return Ok(None),
            },
        };
        // On a 32-bit machine, a payload larger than the address space exceeds any limit.
        let payload_bytes = usize::try_from(length).map_err(|_| Violation::TooLarge)?;
        let bytes = bytes.len() - after.len();
        Ok(Some(FrameHead { opcode, is_final, is_compressed, mask, bytes, payload_bytes }))
    }

    /// The length of the whole frame in bytes; saturates.
    pub(super) fn frame_bytes(&self) -> usize {
        self.bytes.saturating_add(self.payload_bytes)
    }
}

/// Parses an extended length. Returns the payload's length and the bytes after it; `None` if it is
/// incomplete.
fn parse_length(short: u8, after: &[u8]) -> Result<Option<(u64, &[u8])>, Violation> {
    let (length, after, shortest) = match short {
        LENGTH_IN_16_BITS => match after.split_first_chunk() {
            Some((length, after)) => (u64::from(u16::from_be_bytes(*length)), after, 126),
            None => return Ok(None),
        },
        LENGTH_IN_64_BITS => match after.split_first_chunk() {
            Some((length, after)) => (u64::from_be_bytes(*length), after, 1 << 16),
            None => return Ok(None),
        },
        short => return Ok(Some((u64::from(short), after))),
    };
    if length >> 63 != 0 {
        return Err(Violation::LengthHighBit);
    }
    if length < shortest {
        return Err(Violation::LengthNotMinimal);
    }
    Ok(Some((length, after)))
}

/// Writes the header of a final, unmasked frame with a payload of `payload_bytes` bytes.
pub fn write_frame_head(out: &mut Vec<u8>, opcode: Opcode, payload_bytes: usize) {
    write_head(out, opcode, payload_bytes, 0);
}

/// Writes a final, unmasked frame whose payload is compressed.
pub fn write_compressed_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    debug_assert!(!opcode.is_control(), "control frames are never compressed");
    let start = out.len();
    write_frame(out, opcode, payload);
    out[start] |= COMPRESSED;
}

/// Writes a final, unmasked frame, as servers send it.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    out.reserve(10 + payload.len());
    write_frame_head(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// Writes an unmasked close frame. A reason that is too long is cut between characters.
pub fn write_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let reason = &reason[..reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX)];
    write_frame_head(out, Opcode::Close, 2 + reason.len());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// Writes a final, masked frame, as clients send it.
pub fn write_masked_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: [u8; 4]) {
    out.reserve(14 + payload.len());
    write_head(out, opcode, payload.len(), MASKED);
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], mask);
}

fn write_head(out: &mut Vec<u8>, opcode: Opcode, payload_bytes: usize, masked: u8) {
    out.push(FIN | opcode as u8);
    if payload_bytes < usize::from(LENGTH_IN_16_BITS) {
        out.push(masked | payload_bytes as u8);
    } else if let Ok(length) = u16::try_from(payload_bytes) {
        out.push(masked | LENGTH_IN_16_BITS);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(masked | LENGTH_IN_64_BITS);
        out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
    }
}

/// Masks or unmasks, eight bytes at a time; the compiler vectorizes it further.
pub(super) fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let half = u64::from(u32::from_ne_bytes(mask));
    let word_mask = half << 32 | half;
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ word_mask).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// A frame from a server in a client's buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFrame {
    pub opcode: Opcode,
    pub is_final: bool,
    /// True if it begins a compressed message.
    pub is_compressed: bool,
    /// The position of its payload in the buffer.
    pub payload: Range<usize>,
    /// The length of the whole frame, in bytes.
    pub length: usize,
}

/// Parses the frame at the start of `bytes`; `None` if it is incomplete. A compressed one is a
/// violation: see [`parse_deflate_frame`].
pub fn parse_server_frame(bytes: &[u8]) -> Result<Option<ServerFrame>, Violation> {
    parse_frame(bytes, false)
}

/// The same for a client that has negotiated `permessage-deflate`.
pub fn parse_deflate_frame(bytes: &[u8]) -> Result<Option<ServerFrame>, Violation> {
    parse_frame(bytes, true)
}

fn parse_frame(bytes: &[u8], may_compress: bool) -> Result<Option<ServerFrame>, Violation> {
    let Some(head) = FrameHead::parse(bytes, Sender::Server, may_compress)? else {
        return Ok(None);
    };
    let length = head.frame_bytes();
    if bytes.len() < length {
        return Ok(None);
    }
    let FrameHead { opcode, is_final, is_compressed, bytes: start, .. } = head;
    Ok(Some(ServerFrame { opcode, is_final, is_compressed, payload: start..length, length }))
}

#[cfg(test)]
mod tests;
