//! Compresses messages for WebSockets that have negotiated it, once for all of them, and inflates
//! what they send.
//!
//! The first worker that has such a subscriber compresses a message; the result is kept in the
//! message, like any other encoding, and all workers share it. A worker that needs it meanwhile
//! waits. `docs/decisions/0012-one-compression-for-everybody.md` has the reasons and figures.
//!
//! # Invariants
//!
//! * Whether a message goes out compressed is decided once and never changes: a connection that was
//!   written half of it gets the other half of the same bytes.
//! * A worker compresses at most [`COMPRESSED_BYTES_MAX`] at a time. What it has compressed is
//!   charged to its slice, at [`COST_FACTOR`] bytes for each.
//! * There are as many compressors as workers compress at the same time: no more than fan out.

use std::sync::{Mutex, PoisonError};

use throng_core::{Body, Content, Message};
use throng_dialect::Encoding;
use throng_wire::websocket::deflate::{Deflater, Inflater};
use throng_wire::websocket::{Violation, write_compressed_frame};

/// The largest payload that is compressed: some 750 µs of work at level 2, 3.4 ms at level 6.
/// Larger messages are sent as they are.
const COMPRESSED_BYTES_MAX: usize = 256 << 10;

/// Compressing a byte takes about as long as writing this many: 200 MB/s against 1 GB/s.
pub(crate) const COST_FACTOR: usize = 5;

/// A message must lose at least one of this many bytes to be worth inflating.
const GAIN_SHARE: usize = 8;

/// How many bytes of a binary body are looked at.
const SAMPLE_BYTES: usize = 1024;

/// Which messages are compressed, and how well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionSettings {
    pub is_on: bool,
    /// The least size of a payload that is compressed.
    pub min_bytes: usize,
    /// 1, the fastest, to 6.
    pub level: u8,
}

impl Default for CompressionSettings {
    fn default() -> CompressionSettings {
        CompressionSettings { is_on: true, min_bytes: 1024, level: 2 }
    }
}

/// Compresses messages for all workers.
#[derive(Debug, Default)]
pub struct Compression {
    settings: CompressionSettings,
    /// Those that no worker uses. A compressor is large, so workers have none of their own.
    deflaters: Mutex<Vec<Deflater>>,
    inflaters: Mutex<Vec<Inflater>>,
}

impl Compression {
    /// Without a compressor so far.
    pub fn new(settings: CompressionSettings) -> Compression {
        Compression { settings, deflaters: Mutex::default(), inflaters: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.is_on
    }

    /// Makes sure that the message is compressed for `encoding`, if that is a compressed one and
    /// the message is worth it. Returns how many bytes this call has compressed.
    pub(crate) fn prepare(&self, message: &Message, encoding: Encoding) -> usize {
        if !encoding.is_compressed() || !self.settings.is_on {
            return 0;
        }
        let mut cost = 0;
        message.encoding(encoding.slot(), |message| {
            let frame = self.frame(message, encoding, &mut cost);
            // Nothing means: not compressed.
            frame.unwrap_or_default()
        });
        cost
    }

    fn frame(&self, message: &Message, encoding: Encoding, cost: &mut usize) -> Option<Vec<u8>> {
        // An envelope is larger than the body.
        if message.body.bytes().len() > COMPRESSED_BYTES_MAX || looks_compressed(message) {
            return None;
        }
        let (opcode, payload) = encoding.payload(message)?;
        let sizes = self.settings.min_bytes..=COMPRESSED_BYTES_MAX;
        if !sizes.contains(&payload.len()) {
            return None;
        }
        *cost = payload.len();
        let max_bytes = payload.len() - payload.len() / GAIN_SHARE;
        let compressed = with(
            &self.deflaters,
            || Deflater::new(self.settings.level),
            |deflater| deflater.deflate(&payload, max_bytes),
        )?;
        let mut frame = Vec::with_capacity(compressed.len() + 10);
        write_compressed_frame(&mut frame, opcode, &compressed);
        Some(frame)
    }

    /// Inflates a message of a client; see [`Inflater::message`].
    pub(crate) fn inflate(
        &self,
        payload: &[u8],
        is_text: bool,
        max_bytes: usize,
    ) -> Result<Vec<u8>, Violation> {
        with(&self.inflaters, Inflater::default, |inflater| {
            inflater.message(payload, is_text, max_bytes)
        })
    }
}

/// Uses one that is free, or a new one.
fn with<T, R>(free: &Mutex<Vec<T>>, new: impl FnOnce() -> T, r#use: impl FnOnce(&mut T) -> R) -> R {
    // A panic leaves the list whole: nothing is half pushed.
    let lock = || free.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = lock().pop();
    let mut taken = taken.unwrap_or_else(new);
    let result = r#use(&mut taken);
    lock().push(taken);
    result
}

/// True if the body is of a kind that is compressed already: by its content type, or because its
/// bytes are as evenly spread as noise. Text is not looked at.
fn looks_compressed(content: &Content) -> bool {
    let Body::Binary(bytes) = &content.body else { return false };
    let essence = content.content_type().split(';').next().unwrap_or_default().trim();
    let is_like = |prefix: &str| {
        essence.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let is_drawn = ["image/svg", "image/bmp"].into_iter().any(is_like);
    let is_media = ["image/", "audio/", "video/", "font/woff"].into_iter().any(is_like);
    (is_media && !is_drawn) || is_noise(bytes)
}

/// True if a sample from the middle of the bytes has each value about as often as any other.
fn is_noise(bytes: &[u8]) -> bool {
    let start = (bytes.len() / 2).saturating_sub(SAMPLE_BYTES / 2);
    let sample = &bytes[start..bytes.len().min(start + SAMPLE_BYTES)];
    let mut counts = [0u32; 256];
    sample.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let pairs: u64 = counts.iter().map(|&count| u64::from(count) * u64::from(count)).sum();
    let length = sample.len() as u64;
    // What to expect of noise, plus a quarter. Machine code has four times as much, text ten times.
    pairs * 4 <= (length + length * length / 256) * 5
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::{ChannelId, ChannelName, Epoch, MessageId};
    use throng_dialect::dialect::Shown;

    use super::*;

    const COMPRESSED: Encoding = Encoding::WEBSOCKET_DEFLATE;

    fn message(body: Body, content_type: Option<&str>) -> Message {
        let content = Content {
            content_type: content_type.map(Into::into),
            ..Content::new(
                MessageId { epoch: Epoch::numbered(1), offset: 1 },
                0,
                0,
                ChannelName::channel("a"),
                body,
            )
        };
        Message::from(Arc::new(content))
    }

    fn compression() -> Compression {
        Compression::new(CompressionSettings::default())
    }

    fn noise(length: usize) -> Box<[u8]> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn a_message_is_compressed_once_and_shared() {
        let compression = compression();
        let message = message(Body::Json("{\"price\":1} ".repeat(200).into()), None);
        assert_eq!(compression.prepare(&message, Encoding::WEBSOCKET), 0);
        assert_eq!(compression.prepare(&message, Encoding::SSE), 0);
        assert_eq!(
            COMPRESSED.encode(&message, Shown::of(ChannelId(1)), false).len(),
            2400 + 4,
            "as it is"
        );
        assert_eq!(compression.prepare(&message, COMPRESSED), 2400);
        let first = COMPRESSED.encode(&message, Shown::of(ChannelId(1)), false);
        assert_eq!(first[0], 0xc1);
        assert!(first.len() < 200, "{}", first.len());
        assert_eq!(compression.prepare(&message, COMPRESSED), 0);
        assert_eq!(
            COMPRESSED.encode(&message, Shown::of(ChannelId(1)), false).as_ptr(),
            first.as_ptr()
        );
        let inflated = compression.inflate(&first[2..], true, 2400);
        assert_eq!(inflated.as_deref(), Ok(message.body.bytes()));
        let envelope = Encoding::WEBSOCKET_ENVELOPE_DEFLATE;
        assert!(compression.prepare(&message, envelope) > 2400);
        assert_eq!(compression.deflaters.lock().unwrap().len(), 1);
    }

    #[test]
    fn what_is_small_large_or_compressed_is_sent_as_it_is() {
        let compression = compression();
        let is_compressed = |body, content_type| {
            let message = message(body, content_type);
            compression.prepare(&message, COMPRESSED);
            COMPRESSED.encode(&message, Shown::of(ChannelId(1)), false)[0] & 0x40 != 0
        };
        let text = |length| Body::Text("a".repeat(length).into());
        assert!(!is_compressed(text(1023), None));
        assert!(is_compressed(text(1024), None));
        assert!(is_compressed(text(COMPRESSED_BYTES_MAX), None));
        assert!(!is_compressed(text(COMPRESSED_BYTES_MAX + 1), None));
        let zeros = || Body::Binary(vec![0; 5000].into());
        assert!(is_compressed(zeros(), None));
        assert!(is_compressed(zeros(), Some("image/svg+xml")));
        for media in ["image/png", "Image/PNG", "video/mp4; codecs=x", "audio/ogg", "font/woff2"] {
            assert!(!is_compressed(zeros(), Some(media)), "{media}");
        }
        assert!(!is_compressed(Body::Binary(noise(5000)), None));
        assert!(!is_compressed(
            Body::Binary([vec![0; 500].into(), noise(5000)].concat().into()),
            None
        ));
        let off = Compression::new(CompressionSettings { is_on: false, ..Default::default() });
        assert_eq!(off.prepare(&message(text(5000), None), COMPRESSED), 0);
    }

    #[test]
    fn noise_is_told_from_what_compresses() {
        for length in [1024, 5000, 100_000] {
            assert!(is_noise(&noise(length)), "{length}");
        }
        let numbers: Vec<u8> = (0..2000u32).flat_map(|number| (number * 7).to_le_bytes()).collect();
        assert!(!is_noise(&numbers));
        assert!(!is_noise(include_bytes!("compression.rs")));
        assert!(!is_noise(&[0; 2000]));
    }
}
