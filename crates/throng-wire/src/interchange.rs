//! Rules for JSON beyond validity, so that the parsers of all languages read it.
//!
//! The grammar of JSON limits neither nesting nor escapes, but parsers do: Python's fails at about
//! a thousand levels, Go's at ten thousand, and few can hold half of a surrogate pair (RFC 7493,
//! section 2.1). One message that a subscriber cannot read would be sent to it again after each
//! reconnect. Numbers of any length pass, because they are text until somebody makes a number of
//! them, and so do repeated member names: every parser reads them in its own way, and none fails.

use memchr::{memchr, memchr2, memchr2_iter};

/// The deepest nesting of arrays and objects. Parsers that recurse allow at least as much.
const DEPTH_MAX: usize = 128;

/// Why JSON is not for interchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotInterchange {
    /// More than 128 levels.
    #[error("the JSON is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// An escape such as `\ud83d` that is only half of a character.
    #[error("the JSON has an unpaired surrogate escape, such as `\\ud83d`: half of a character")]
    HalfPair,
}

/// What is wrong with a text that is not JSON, and where. Words of a parser say that only to those
/// who know it.
pub fn fault(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "it ends too early".to_owned();
    }
    match (error.line(), error.column()) {
        // Mostly it is one line of several, whose number would mislead.
        (1, column) => format!("unexpected character at column {column}"),
        (line, column) => format!("unexpected character at line {line}, column {column}"),
    }
}

/// What is wrong with JSON that is not of the expected form, and where. For a text on one line only
/// the column: a client that sends many lines would take the line number for one of its own.
pub fn misfit(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return fault(error);
    }
    let text = error.to_string();
    let text = match text.strip_suffix(&format!(" at line 1 column {}", error.column())) {
        Some(what) => format!("{what} at column {}", error.column()),
        None => text,
    };
    // Serde calls it by its type.
    text.replace("expected u64", "expected a whole number, 0 or more")
}

/// Checks JSON that is known to be valid. Any other text is accepted or refused.
pub fn check(json: &str) -> Result<(), NotInterchange> {
    let bytes = json.as_bytes();
    // Most messages have no escape and few brackets, which vector instructions find out.
    let openings = || memchr2_iter(b'[', b'{', bytes).take(DEPTH_MAX + 1).count();
    if memchr(b'\\', bytes).is_none() && openings() <= DEPTH_MAX {
        return Ok(());
    }
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(bytes, at)?,
            b'[' | b'{' if depth == DEPTH_MAX => return Err(NotInterchange::TooDeep),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Where the string that begins at `at` has ended, behind its quote.
fn end_of_string(bytes: &[u8], mut at: usize) -> Result<usize, NotInterchange> {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return Ok(at + 1);
        }
        at += match surrogate(bytes, at) {
            None => 2,
            Some(Surrogate::High) if surrogate(bytes, at + 6) == Some(Surrogate::Low) => 12,
            Some(_) => return Err(NotInterchange::HalfPair),
        };
    }
    Ok(bytes.len())
}

#[derive(PartialEq, Eq)]
enum Surrogate {
    High,
    Low,
}

/// The half of a pair that the escape at `at` is, if it is one.
fn surrogate(bytes: &[u8], at: usize) -> Option<Surrogate> {
    match bytes.get(at..at + 6)? {
        [b'\\', b'u', b'd' | b'D', second, _, _] => match second.to_ascii_lowercase() {
            b'8'..=b'9' | b'a'..=b'b' => Some(Surrogate::High),
            b'c'..=b'f' => Some(Surrogate::Low),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_wrong_is_said_without_the_words_of_a_parser() {
        for (text, expected) in [
            ("nope", "unexpected character at column 2"),
            ("{a:1}", "unexpected character at column 2"),
            ("{\"a\":1,\n]", "unexpected character at line 2, column 1"),
            ("1 2", "unexpected character at column 3"),
            ("[1,", "it ends too early"),
            ("", "it ends too early"),
        ] {
            let error = serde_json::from_str::<Value>(text).expect_err("no JSON");
            assert_eq!(fault(&error), expected, "{text}");
        }
    }

    #[test]
    fn nesting_is_limited_outside_of_strings() {
        let nested = |depth| format!("{}1{}", "[{\"a\":".repeat(depth / 2), "}]".repeat(depth / 2));
        assert_eq!(check(&nested(DEPTH_MAX)), Ok(()));
        assert_eq!(check(&nested(DEPTH_MAX + 2)), Err(NotInterchange::TooDeep));
        assert_eq!(check(&"[".repeat(DEPTH_MAX + 1)), Err(NotInterchange::TooDeep));
        let side_by_side = format!("[{}1]", "[],{},".repeat(1000));
        assert_eq!(check(&side_by_side), Ok(()));
        let text = format!("\"\\\"{}\"", "[".repeat(1000));
        assert_eq!(check(&text), Ok(()));
    }

    #[test]
    fn surrogates_come_in_pairs() {
        for paired in [
            r#""\ud83d\ude00""#,
            r#"{"\uD83D\uDE00":"\u00e9\ud7ff\ue000"}"#,
            r#""\\ud83d""#,
            r#"["\"", "\\\\ud83d"]"#,
        ] {
            assert_eq!(check(paired), Ok(()), "{paired}");
        }
        for half in [
            r#""\ud83d""#,
            r#""\uDE00""#,
            r#""\ude00\ud83d""#,
            r#""\ud83d\ud83d\ude00""#,
            r#""\ud83d\n""#,
            r#"{"a":{"\udbff":1}}"#,
            r#"["\\\ud83d"]"#,
        ] {
            assert_eq!(check(half), Err(NotInterchange::HalfPair), "{half}");
        }
    }

    #[test]
    fn long_numbers_and_repeated_names_pass() {
        assert_eq!(check(&"9".repeat(5000)), Ok(()));
        assert_eq!(check(r#"{"a":1e99999,"a":-0}"#), Ok(()));
    }

    fn escaped() -> impl Strategy<Value = String> {
        let escape = prop_oneof![
            (0xd7f0_u32..0xe010).prop_map(|unit| format!("\\u{unit:04x}")),
            Just("\\ud83d\\ude00".to_owned()),
            Just("\\\\".to_owned()),
            Just("\\\"".to_owned()),
            "[a-z\\[\\{]{0,3}",
        ];
        prop::collection::vec(escape, 0..6).prop_map(|parts| format!("[\"{}\"]", parts.concat()))
    }

    proptest! {
        #[test]
        fn what_passes_is_what_a_strict_parser_reads(json in escaped()) {
            prop_assert_eq!(check(&json).is_ok(), serde_json::from_str::<Value>(&json).is_ok());
        }

        #[test]
        fn any_text_is_passed_or_refused(text in "[\\\\\"u\\[\\]dD8c{}a0é]{0,40}") {
            let _ = check(&text);
        }
    }
}
