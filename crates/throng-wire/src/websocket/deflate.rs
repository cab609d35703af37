//! Messages compressed with DEFLATE, each by itself (RFC 7692, section 7.2).
//!
//! No context is taken over from one message to the next, in neither direction. So a message is
//! compressed once for all receivers, no connection keeps a window, and what one publisher writes
//! says nothing about what another has written.
//!
//! # Invariants
//!
//! * [`Inflater`] returns no more than the caller's limit, allocates no more than that, and stops
//!   as soon as the limit is exceeded, whatever follows.
//! * A [`Deflater`] takes 268 KB and an [`Inflater`] 40 KB, whatever the messages.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::violation::Violation;

/// The end of a sync flush; senders leave it out (RFC 7692, section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// An empty block that is marked as the last.
const END: [u8; 2] = [3, 0];

/// The number of blocks in a message that may be marked as the last. Senders that mark any at all
/// mark one; each costs as much as a window.
const LAST_BLOCKS_MAX: usize = 8;

/// How far back a block may refer.
const WINDOW_BYTES: usize = 32 << 10;

/// Any message may be inflated to this many bytes, however short it is.
const INFLATED_BYTES_FREE: usize = 64 << 10;

/// Beyond [`INFLATED_BYTES_FREE`] a message is inflated to at most this many times its bytes.
/// DEFLATE reaches 1032, with one byte repeated; JSON of any use stays below 50. So who wants the
/// server to inflate a megabyte has to send at least 10 KB.
const INFLATION_RATIO_MAX: usize = 100;

/// Growth of a message by compression, besides an eighth: more than zlib's own bound
/// (`deflateBound`).
const DEFLATE_SLACK_BYTES: usize = 256;

/// The least growth of a buffer that is inflated into.
const GROWTH_BYTES_MIN: usize = 4 << 10;

/// Compresses messages, one after the other.
#[derive(Debug)]
pub struct Deflater {
    compress: Compress,
    level: Compression,
}

impl Deflater {
    /// A compressor of this level: 1 is fastest, 9 compresses best.
    pub fn new(level: u8) -> Deflater {
        let level = Compression::new(u32::from(level.clamp(1, 9)));
        Deflater { compress: Compress::new(level, false), level }
    }

    /// The message as the payload of a frame; `None` unless that is shorter than `max_bytes`.
    pub fn deflate(&mut self, message: &[u8], max_bytes: usize) -> Option<Vec<u8>> {
        self.compress.reset();
        // There is room for whatever becomes of the message, even if it is then not wanted: zlib-rs
        // 0.6.8 panics on a later message if it has stopped within one before, for want of room.
        let mut out = Vec::with_capacity(message.len() + message.len() / 8 + DEFLATE_SLACK_BYTES);
        let compressed = self.compress.compress_vec(message, &mut out, FlushCompress::Sync);
        let is_whole = self.compress.total_in() == message.len() as u64
            && out.len() < out.capacity()
            && compressed.is_ok();
        if !is_whole {
            debug_assert!(false, "{} bytes did not fit into {}", message.len(), out.capacity());
            // The next message must not meet what is left of this one.
            self.compress = Compress::new(self.level, false);
            return None;
        }
        out.truncate(out.len().checked_sub(TAIL.len()).filter(|&end| out[end..] == TAIL)?);
        // An empty block in place of nothing (RFC 7692, section 7.2.3.6).
        if out.is_empty() {
            out.push(0);
        }
        out.shrink_to_fit();
        (out.len() < max_bytes).then_some(out)
    }
}

/// Inflates messages, one after the other.
#[derive(Debug)]
pub struct Inflater {
    decompress: Decompress,
}

impl Default for Inflater {
    fn default() -> Inflater {
        Inflater { decompress: Decompress::new(false) }
    }
}

impl Inflater {
    /// The message that the frames with `payload` are. Fails if it has more than `max_bytes` bytes,
    /// or more than [`INFLATION_RATIO_MAX`] allows, or is text and not UTF-8.
    pub fn message(
        &mut self,
        payload: &[u8],
        is_text: bool,
        max_bytes: usize,
    ) -> Result<Vec<u8>, Violation> {
        let by_ratio = payload.len().saturating_mul(INFLATION_RATIO_MAX).max(INFLATED_BYTES_FREE);
        let message = self.inflate(payload, max_bytes.min(by_ratio))?;
        if is_text && simdutf8::basic::from_utf8(&message).is_err() {
            return Err(Violation::NotUtf8);
        }
        Ok(message)
    }

    fn inflate(&mut self, payload: &[u8], max_bytes: usize) -> Result<Vec<u8>, Violation> {
        self.decompress.reset(false);
        let mut out = Vec::new();
        if payload.is_empty() {
            return Ok(out);
        }
        let mut last_blocks = 0;
        // The end fits only if the payload does not stop inside a block.
        for mut rest in [payload, &TAIL, &END] {
            loop {
                if out.capacity() == out.len() {
                    // One byte more than allowed shows that there is more.
                    let room = max_bytes.saturating_add(1) - out.len();
                    let growth = out.len().max(2 * payload.len()).max(GROWTH_BYTES_MIN);
                    out.reserve_exact(growth.min(room));
                }
                let (before, length) = (self.decompress.total_in(), out.len());
                let status = self
                    .decompress
                    .decompress_vec(rest, &mut out, FlushDecompress::Sync)
                    .map_err(|_| Violation::NotDeflate)?;
                let consumed = (self.decompress.total_in() - before) as usize;
                rest = &rest[consumed..];
                if out.len() > max_bytes {
                    return Err(Violation::InflatesTooMuch);
                }
                let has_room = out.len() < out.capacity();
                if status == Status::StreamEnd {
                    last_blocks += 1;
                    if last_blocks > LAST_BLOCKS_MAX {
                        return Err(Violation::NotDeflate);
                    }
                    self.begin_next(&out)?;
                } else if !rest.is_empty() && has_room && consumed == 0 && out.len() == length {
                    return Err(Violation::NotDeflate);
                }
                if rest.is_empty() && has_room {
                    break;
                }
            }
        }
        // The end is a last block, and nothing is behind it.
        if self.decompress.total_in() == 0 { Ok(out) } else { Err(Violation::NotDeflate) }
    }

    /// Goes on behind a block that is marked as the last: more may follow (RFC 7692, section
    /// 7.2.1), and refer to what came before.
    fn begin_next(&mut self, out: &[u8]) -> Result<(), Violation> {
        self.decompress.reset(false);
        let window = &out[out.len().saturating_sub(WINDOW_BYTES)..];
        if window.is_empty() {
            return Ok(());
        }
        let begun = self.decompress.set_dictionary(window);
        begun.map(drop).map_err(|_| Violation::NotDeflate)
    }
}

#[cfg(test)]
mod tests;
