//! Decodes chunked transfer coding (RFC 9112, section 7.1).

use memchr::memchr;

/// Hexadecimal digits of a chunk's size: 64 bits.
const SIZE_DIGITS_MAX: usize = 16;

/// The state of a chunked body: a few numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chunked {
    state: ChunkState,
}

#[derive(Debug, Clone, Copy, Default)]
enum ChunkState {
    /// Before the line with a size.
    #[default]
    Size,
    Data {
        left: u64,
    },
    /// Before the end of line after the data.
    DataEnd,
    /// Trailers, up to an empty line.
    Trailer,
    Ended,
}

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A part of the body.
    Data(&'a [u8]),
    /// Bytes that are not part of the body: sizes, line ends, trailers.
    None,
    /// The end of the body.
    End,
}

impl Chunked {
    /// True if the next byte starts a chunk.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ChunkState::Size)
    }

    /// Decodes the next part. Returns it and the bytes after it; `None` if more bytes are needed.
    pub(crate) fn next<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Piece<'a>, &'a [u8])>, &'static str> {
        if let ChunkState::Data { left } = self.state {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (data, after) = bytes.split_at(size);
            let left = left - size as u64;
            self.state = if left == 0 { ChunkState::DataEnd } else { ChunkState::Data { left } };
            return Ok((size > 0).then_some((Piece::Data(data), after)));
        }
        let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
        // A single line feed is accepted.
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        self.state = match self.state {
            ChunkState::Size => match size(line)? {
                0 => ChunkState::Trailer,
                left => ChunkState::Data { left },
            },
            ChunkState::DataEnd if line.is_empty() => ChunkState::Size,
            ChunkState::DataEnd => return Err("a chunk is longer than its size"),
            ChunkState::Trailer if !line.is_empty() => ChunkState::Trailer,
            ChunkState::Trailer | ChunkState::Data { .. } | ChunkState::Ended => ChunkState::Ended,
        };
        let is_ended = matches!(self.state, ChunkState::Ended);
        Ok(Some((if is_ended { Piece::End } else { Piece::None }, &bytes[end + 1..])))
    }
}

/// The size at the start of a line. An extension may follow it.
fn size(line: &[u8]) -> Result<u64, &'static str> {
    let end = line.iter().position(|byte| b"; \t".contains(byte)).unwrap_or(line.len());
    let mut digits = line[..end].iter().map(|&byte| (byte as char).to_digit(16));
    match end {
        0 => Err("a chunk has no size"),
        1..=SIZE_DIGITS_MAX => digits
            .try_fold(0, |size, digit| Some(size << 4 | u64::from(digit?)))
            .ok_or("a chunk's size is not a number"),
        _ => Err("a chunk is too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), &'static str> {
        let (mut chunked, mut content, mut is_ended) = (Chunked::default(), Vec::new(), false);
        let mut kept = Vec::new();
        for piece in pieces {
            kept.extend_from_slice(piece);
            let mut rest = &kept[..];
            while !is_ended && let Some((piece, after)) = chunked.next(rest)? {
                rest = after;
                match piece {
                    Piece::Data(data) => content.extend_from_slice(data),
                    Piece::End => is_ended = true,
                    Piece::None => {}
                }
            }
            kept = rest.to_vec();
        }
        Ok((content, is_ended))
    }

    #[test]
    fn splits_do_not_matter() {
        let body = b"5\r\nhello\r\n0B;a=\"b\"\r\n\r\n123456789\r\n0\r\nX: y\r\n\r\n";
        let whole = (b"hello\r\n123456789".to_vec(), true);
        for cut in 0..=body.len() {
            assert_eq!(read(&[&body[..cut], &body[cut..]]), Ok(whole.clone()), "{cut}");
        }
        let bytes: Vec<_> = body.chunks(1).collect();
        assert_eq!(read(&bytes), Ok(whole));
        for cut in 0..body.len() {
            assert!(!read(&[&body[..cut]]).expect("half is no fault").1, "{cut}");
        }
    }

    #[test]
    fn invalid_chunks_are_errors() {
        let faults: [&[u8]; 5] =
            [b"\r\n", b"x\r\n", b"-1\r\n", b"11111111111111111\r\n", b"1\r\nab\r\n"];
        for fault in faults {
            assert!(read(&[fault]).is_err(), "{fault:?}");
        }
    }

    #[test]
    fn between_chunks_the_decoder_is_idle() {
        let mut chunked = Chunked::default();
        let mut rest: &[u8] = b"2\r\nab\r\n";
        while let Some((_, after)) = chunked.next(rest).expect("a chunk") {
            rest = after;
        }
        assert!(chunked.is_idle() && rest.is_empty());
    }
}
