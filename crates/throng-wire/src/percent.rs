//! Percent-encoding of paths and queries.
//!
//! The worker and the control plane both decode with these functions: a name that one accepts and
//! the other refuses would send a connection back and forth between them.

use std::borrow::Cow;

use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode,
};

/// Everything but the unreserved characters (RFC 3986, section 2.3).
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A name as a segment of a path.
pub fn encode_segment(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, &RESERVED)
}

/// Decodes a segment of the path. `None` if a percent sign is not followed by two hexadecimal
/// digits, or if the result is not UTF-8.
pub fn decode_segment(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.contains('%') {
        return Some(Cow::Borrowed(raw));
    }
    let is_well_formed = raw.split('%').skip(1).all(|part| match part.as_bytes() {
        [high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        _ => false,
    });
    if !is_well_formed {
        return None;
    }
    percent_decode_str(raw).decode_utf8().ok()
}

/// Decodes a name or a value of the query: as [`decode_segment`], and a plus sign is a space.
pub fn decode_query(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.contains('+') {
        return decode_segment(raw);
    }
    let spaced = raw.replace('+', " ");
    decode_segment(&spaced).map(|text| Cow::Owned(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_query_has_plus_signs_for_spaces() {
        assert_eq!(decode_segment("a%2Fb%20c+d").as_deref(), Some("a/b c+d"));
        assert_eq!(decode_query("a%2Fb%20c+d%2B").as_deref(), Some("a/b c d+"));
        assert!(matches!(decode_query("plain"), Some(Cow::Borrowed("plain"))));
    }

    #[test]
    fn malformed_escapes_and_bytes_that_are_not_utf8_are_refused() {
        for raw in ["%", "%f", "a%zz", "%f+", "%ff", "%+f"] {
            assert_eq!(decode_segment(raw), None, "{raw}");
            assert_eq!(decode_query(raw), None, "{raw}");
        }
    }
}
