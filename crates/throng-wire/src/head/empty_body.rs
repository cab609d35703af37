//! Chunked bodies without a byte.
//!
//! A proxy that gets a `GET` over HTTP/2 or 3 does not know whether a body follows, and forwards it
//! with `Transfer-Encoding: chunked` and a last chunk that may come later than the head. Such a
//! request has no body that anybody could mean.

/// The longest last chunk, with extension and trailers. Proxies add some dozens of bytes at most.
const EMPTY_BODY_BYTES_MAX: usize = 1 << 10;

/// The bytes after the head of a request with a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkedBody {
    /// It cannot be told yet.
    Incomplete,
    /// The last chunk, which ends this many bytes behind the head.
    Empty(usize),
    /// A chunk with bytes, or no chunk.
    Other,
}

/// Looks at `bytes`, which follow a head. Only what RFC 9112, section 7.1, allows is a last chunk:
/// zeros, perhaps an extension, perhaps trailers, and an empty line.
pub fn chunked_body(bytes: &[u8]) -> ChunkedBody {
    let is_long = bytes.len() > EMPTY_BODY_BYTES_MAX;
    match read(&bytes[..bytes.len().min(EMPTY_BODY_BYTES_MAX)]) {
        ChunkedBody::Incomplete if is_long => ChunkedBody::Other,
        found => found,
    }
}

fn read(bytes: &[u8]) -> ChunkedBody {
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let is_size = at == 0;
        let Some(line_feed) = rest.iter().position(|&byte| byte == b'\n') else {
            return if is_begun(rest, is_size) {
                ChunkedBody::Incomplete
            } else {
                ChunkedBody::Other
            };
        };
        let Some((b'\r', line)) = rest[..line_feed].split_last() else { return ChunkedBody::Other };
        if !is_begun(line, is_size) || (is_size && line.is_empty()) {
            return ChunkedBody::Other;
        }
        at += line_feed + 1;
        if line.is_empty() {
            return ChunkedBody::Empty(at);
        }
    }
}

/// True if a line may begin so: the size of the last chunk, or a trailer or the empty line.
fn is_begun(line: &[u8], is_size: bool) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_text = line.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f));
    if !is_size {
        return is_text && line.first().is_none_or(|&first| first > b' ' && first != b':');
    }
    let end = line.iter().position(|&byte| byte != b'0').unwrap_or(line.len());
    let extension = line[end..].trim_ascii_start();
    is_text && (line.is_empty() || end > 0) && extension.first().is_none_or(|&it| it == b';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_chunk_is_found_wherever_it_is_cut() {
        let cases: [&[u8]; 4] = [
            b"0\r\n\r\n",
            b"000;a=b\r\n\r\n",
            b"0 ; a=\"b\"\r\n\r\n",
            b"0\r\nA: b\r\nC: d\r\n\r\n",
        ];
        for body in cases {
            for end in 0..body.len() {
                assert_eq!(chunked_body(&body[..end]), ChunkedBody::Incomplete, "{end}");
            }
            assert_eq!(chunked_body(body), ChunkedBody::Empty(body.len()));
            let more = [body, b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(chunked_body(&more), ChunkedBody::Empty(body.len()));
        }
    }

    #[test]
    fn anything_else_is_a_body() {
        let cases: [&[u8]; 10] = [
            b"1\r\nx\r\n0\r\n\r\n",
            b"05",
            b"a",
            b"0\n\n",
            b"\r\n",
            b"0\r\n\n",
            b"0x\r\n\r\n",
            b"0\r\n A: b\r\n\r\n",
            b"0;\x01\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
        ];
        for body in cases {
            assert_eq!(chunked_body(body), ChunkedBody::Other, "{body:?}");
        }
    }
}
