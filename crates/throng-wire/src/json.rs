//! The JSON values that the server reads and writes itself: strings, base64, and embedded JSON.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;
use serde::Deserialize;

/// A JSON string, borrowed if it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Appends a JSON string with its quotes.
pub(crate) fn write_json_string(out: &mut Vec<u8>, text: &str) {
    out.reserve(2 + text.len());
    // Serializing a str into a Vec cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends bytes as base64, with padding.
pub(crate) fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The slice has exactly the length of the padded form.
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start));
}

/// Appends valid JSON on one line. Line breaks in valid JSON stand between tokens, because strings
/// escape them, so spaces can replace them.
pub(crate) fn write_json_line(out: &mut Vec<u8>, json: &str) {
    let mut rest = json.as_bytes();
    while let Some(line_break) = memchr2(b'\n', b'\r', rest) {
        out.extend_from_slice(&rest[..line_break]);
        out.push(b' ');
        rest = &rest[line_break + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn base64_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut out = b"before".to_vec();
            write_base64(&mut out, &bytes);
            prop_assert_eq!(STANDARD.decode(&out[6..]).unwrap(), bytes);
        }
    }
}
