//! Decodes chunked transfer coding (RFC 9112, section 7.1).

/// Hexadecimal digits of a chunk's size: 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// The state of a chunked body: a few numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chunked {
    state: ChunkState,
}

#[derive(Debug, Clone, Copy)]
enum ChunkState {
    Size {
        size: u64,
        digits: u8,
    },
    /// After the size, up to the end of the line.
    Extension {
        size: u64,
    },
    Data {
        left: u64,
    },
    /// The end of line after the data; a single line feed is accepted.
    DataEnd,
    /// Trailers, up to an empty line.
    Trailer {
        is_line_empty: bool,
    },
    Ended,
}

impl Default for ChunkState {
    fn default() -> ChunkState {
        ChunkState::Size { size: 0, digits: 0 }
    }
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
        matches!(self.state, ChunkState::Size { digits: 0, .. })
    }

    /// Decodes the next part. Returns it and the bytes after it.
    pub(crate) fn next<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<(Piece<'a>, &'a [u8]), &'static str> {
        let Some((&byte, after)) = bytes.split_first() else { return Ok((Piece::None, bytes)) };
        self.state = match self.state {
            ChunkState::Data { left } => {
                let (data, after) = match usize::try_from(left) {
                    Ok(left) if left <= bytes.len() => bytes.split_at(left),
                    _ => (bytes, &bytes[bytes.len()..]),
                };
                // No longer than `left`.
                let left = left - data.len() as u64;
                self.state =
                    if left == 0 { ChunkState::DataEnd } else { ChunkState::Data { left } };
                return Ok((Piece::Data(data), after));
            }
            ChunkState::Size { size, digits } => match (byte as char).to_digit(16) {
                Some(_) if digits == SIZE_DIGITS_MAX => return Err("a chunk is too long"),
                Some(digit) => {
                    ChunkState::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
                }
                None if digits == 0 => return Err("a chunk has no size"),
                None if byte == b'\n' => ChunkState::of(size),
                None if matches!(byte, b'\r' | b';' | b' ' | b'\t') => {
                    ChunkState::Extension { size }
                }
                None => return Err("a chunk's size is not a number"),
            },
            ChunkState::Extension { size } if byte == b'\n' => ChunkState::of(size),
            ChunkState::Extension { size } => ChunkState::Extension { size },
            ChunkState::DataEnd => match byte {
                b'\r' => ChunkState::DataEnd,
                b'\n' => ChunkState::default(),
                _ => return Err("a chunk is longer than its size"),
            },
            ChunkState::Trailer { is_line_empty: true } if byte == b'\n' => {
                self.state = ChunkState::Ended;
                return Ok((Piece::End, after));
            }
            ChunkState::Trailer { is_line_empty } => match byte {
                b'\r' => ChunkState::Trailer { is_line_empty },
                _ => ChunkState::Trailer { is_line_empty: byte == b'\n' },
            },
            ChunkState::Ended => return Ok((Piece::End, &bytes[bytes.len()..])),
        };
        Ok((Piece::None, after))
    }
}

impl ChunkState {
    fn of(size: u64) -> ChunkState {
        if size == 0 {
            ChunkState::Trailer { is_line_empty: true }
        } else {
            ChunkState::Data { left: size }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), &'static str> {
        let (mut chunked, mut content, mut is_ended) = (Chunked::default(), Vec::new(), false);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() && !is_ended {
                let (piece, after) = chunked.next(rest)?;
                rest = after;
                match piece {
                    Piece::Data(data) => content.extend_from_slice(data),
                    Piece::End => is_ended = true,
                    Piece::None => {}
                }
            }
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
        while !rest.is_empty() {
            rest = chunked.next(rest).expect("a chunk").1;
        }
        assert!(chunked.is_idle());
    }
}
