//! Compressed responses (gzip, RFC 1952), for clients that accept them.
//!
//! Only for files, for pages of history and for the answers of a batch. No answer is compressed
//! that has something from the request beside something secret: its length would tell whether the
//! two are alike. A page of history has messages of several publishers, of whom one may want to
//! find out what another has written; so each message is compressed by itself.

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};

use super::answer::Answer;

/// 250 MB/s, for a fifth of the bytes of JSON.
const LEVEL: u32 = 2;

/// The bytes compressed at a time, before other requests have their turn.
const TURN_BYTES: usize = 64 << 10;

/// A response must lose at least one of this many bytes to be worth inflating.
const GAIN_SHARE: usize = 8;

/// No name, no time, an unknown system (RFC 1952, section 2.3).
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// True if `Accept-Encoding` allows gzip (RFC 9110, section 12.5.3).
pub(crate) fn is_accepted(request: &HeaderMap) -> bool {
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(',')).map(|coding| {
        let (name, parameter) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameter.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse);
        (name.trim(), weight.is_ok_and(|weight: f32| weight > 0.0))
    });
    codings.any(|(name, is_accepted)| name.eq_ignore_ascii_case("gzip") && is_accepted)
}

/// The body compressed; `None` if it is not worth it. Nothing before one of the `cuts`, which are
/// in order, changes what is made of what is behind it.
pub(crate) async fn compress(body: &[u8], cuts: &[usize]) -> Option<Vec<u8>> {
    let mut encoder = GzipEncoder::new(body.len());
    let mut start = 0;
    for end in cuts.iter().copied().chain([body.len()]) {
        for piece in body.get(start..end)?.chunks(TURN_BYTES) {
            encoder.write(piece, FlushCompress::None)?;
            if encoder.written >= TURN_BYTES {
                encoder.written = 0;
                tokio::task::yield_now().await;
            }
        }
        if start < end && end < body.len() {
            encoder.write(&[], FlushCompress::Full)?;
        }
        start = end;
    }
    encoder.finish()
}

/// The bytes compressed, all at once; `None` if it is not worth it.
pub(crate) fn compress_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzipEncoder::new(bytes.len());
    encoder.write(bytes, FlushCompress::None)?;
    encoder.finish()
}

/// Says that the response is compressed, or that it would be for another client.
pub(crate) fn mark(answer: &mut Answer, is_compressed: bool) {
    let headers = answer.headers_mut();
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Origin"));
}

/// Makes a gzip file that is shorter than what is in it, or gives up.
struct GzipEncoder {
    compress: Compress,
    crc: Crc,
    out: Vec<u8>,
    /// Bytes since others had their turn.
    written: usize,
}

impl GzipEncoder {
    fn new(length: usize) -> GzipEncoder {
        // It never grows: a response that does not fit is not worth it.
        let mut out = Vec::with_capacity((length - length / GAIN_SHARE).max(HEAD.len()));
        out.extend_from_slice(&HEAD);
        let compress = Compress::new(Compression::new(LEVEL), false);
        GzipEncoder { compress, crc: Crc::new(), out, written: 0 }
    }

    fn write(&mut self, piece: &[u8], flush: FlushCompress) -> Option<()> {
        self.crc.update(piece);
        self.written += piece.len();
        let mut rest = piece;
        loop {
            let before = self.compress.total_in();
            let status = self.compress.compress_vec(rest, &mut self.out, flush).ok()?;
            rest = &rest[(self.compress.total_in() - before) as usize..];
            if self.out.len() == self.out.capacity() {
                return None;
            }
            if rest.is_empty() || status == Status::StreamEnd {
                return Some(());
            }
        }
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        self.write(&[], FlushCompress::Finish)?;
        self.out.extend_from_slice(&self.crc.sum().to_le_bytes());
        self.out.extend_from_slice(&self.crc.amount().to_le_bytes());
        Some(self.out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn inflated(gzip: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(gzip).read_to_end(&mut bytes).expect("gzip");
        bytes
    }

    #[tokio::test]
    async fn compressed_bytes_inflate_to_the_same() {
        let body: Vec<u8> =
            (0..30_000).flat_map(|n| format!("{{\"n\":{n}}},").into_bytes()).collect();
        for cuts in [&[][..], &[0, 5, 5, 100_000, 200_000], &[body.len()]] {
            let gzip = compress(&body, cuts).await.expect("it is worth it");
            assert!(gzip.len() < body.len() / 2);
            assert_eq!(inflated(&gzip), body);
        }
        assert_eq!(inflated(&compress_file(&body).unwrap()), body);
        assert_eq!(compress(b"short", &[]).await, None);
        assert_eq!(compress(b"", &[]).await, None);
    }

    /// A guess before the secret does not make the answer shorter if it is right.
    #[tokio::test]
    async fn a_part_does_not_change_the_length_of_the_next_one() {
        let secret = b"token=9f86d081884c7d659a2feaa0c55ad015".repeat(30);
        let length = async |guess: &[u8], is_cut: bool| {
            let body = [guess, &secret].concat();
            let cuts: &[usize] = if is_cut { &[guess.len()] } else { &[] };
            compress(&body, cuts).await.expect("it is worth it").len()
        };
        let (right, wrong) =
            (b"token=9f86d081884c7d659a2feaa0c55ad015", b"token=9f86d081884c7d659a2feaa0c55ad0QZ");
        assert_eq!(length(right, true).await, length(wrong, true).await);
        assert!(length(right, false).await < length(wrong, false).await, "the test can fail");
    }
}
