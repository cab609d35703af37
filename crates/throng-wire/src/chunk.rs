//! The chunked transfer coding of HTTP/1.1 (RFC 9112, section 7.1). Each message is one chunk.

use std::io::Write as _;

use memchr::memchr;

/// The last chunk of a body, with an empty trailer section.
pub const LAST: &[u8] = b"0\r\n\r\n";

/// Writes one chunk. `inner` must not be empty: an empty chunk would end the body.
pub fn write_chunk(out: &mut Vec<u8>, inner: &[u8]) {
    debug_assert!(!inner.is_empty(), "an empty chunk ends the body");
    out.reserve(16 + 4 + inner.len());
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{:x}\r\n", inner.len());
    out.extend_from_slice(inner);
    out.extend_from_slice(b"\r\n");
}

/// The content of a buffer that holds exactly one chunk of [`write_chunk`].
pub fn inner(chunk: &[u8]) -> &[u8] {
    let start = memchr(b'\n', chunk).map_or(0, |line_feed| line_feed + 1);
    let end = chunk.len().saturating_sub(2).max(start);
    &chunk[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_begins_with_its_length_in_hex() {
        let mut out = Vec::new();
        write_chunk(&mut out, b"hello\n");
        assert_eq!(out, b"6\r\nhello\n\r\n");
        out.clear();
        write_chunk(&mut out, &[b'x'; 300]);
        assert!(out.starts_with(b"12c\r\nxxx"));
    }

    #[test]
    fn the_inside_comes_back() {
        for body in [b"\n".as_slice(), b"\r\n", b"a\r\n\r\nb\n", &[b'\n'; 70_000]] {
            let mut out = Vec::new();
            write_chunk(&mut out, body);
            assert_eq!(inner(&out), body);
            assert_eq!(httparse_length(&out), body.len() as u64);
        }
    }

    /// The second opinion on the length line.
    fn httparse_length(chunk: &[u8]) -> u64 {
        match httparse::parse_chunk_size(chunk) {
            Ok(httparse::Status::Complete((_, length))) => length,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_chunk_has_nothing_inside() {
        for bytes in [b"".as_slice(), b"5", b"5\r\n", b"\n", b"0\r\n\r\n"] {
            assert_eq!(inner(bytes), b"");
        }
    }
}
