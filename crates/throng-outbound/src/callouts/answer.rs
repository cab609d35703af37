//! Answers of the application about a channel.

use std::borrow::Cow;

use serde::Deserialize;
use throng_access::Decision;
use throng_wire::{ErrorCode, ErrorResponse};

use super::verdict::{AnswerError, Answered, Verdict};

/// The most bytes of a denial's message: the reason of a WebSocket's close frame has 123.
const MESSAGE_BYTES_MAX: usize = 100;

/// The longest time for which an answer is cached, in seconds.
const CACHE_S_MAX: u64 = 24 * 60 * 60;

/// A misspelt `expires` must not become a permission without an end, so unknown members are errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionDocument<'a> {
    allow: bool,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    /// In seconds since 1970.
    #[serde(default)]
    expires: Option<u64>,
    /// For how many seconds it holds.
    #[serde(default)]
    cache: Option<u64>,
}

impl Verdict for Decision {
    type Reader = ();
    /// Until when it is allowed at most, in milliseconds since 1970.
    type Bounds = Option<u64>;
    type Given = Decision;

    fn read((): &(), body: &[u8], asked_s: u64) -> Result<Answered<Decision>, AnswerError> {
        let DecisionDocument { allow, message, expires, cache } = serde_json::from_slice(body)?;
        if allow && expires.is_some_and(|expires_s| expires_s <= asked_s) {
            return Err(AnswerError::Past);
        }
        let verdict = match (allow, expires) {
            (true, None) => Decision::Allowed,
            (true, Some(expires_s)) => Decision::AllowedUntil(expires_s.saturating_mul(1000)),
            (false, _) => Decision::Denied(denial(ErrorCode::Forbidden, message.as_deref())),
        };
        Ok(Answered { verdict, cache_ms: cache_ms(cache) })
    }

    fn refused(error: ErrorResponse) -> Decision {
        Decision::Denied(error)
    }

    fn is_denial(&self) -> bool {
        matches!(self, Decision::Denied(_))
    }

    fn within(self, until_ms: &Option<u64>) -> Decision {
        match (self, until_ms) {
            (Decision::Allowed, Some(until_ms)) => Decision::AllowedUntil(*until_ms),
            (Decision::AllowedUntil(one), Some(other)) => Decision::AllowedUntil(one.min(*other)),
            (decision, _) => decision,
        }
    }
}

/// The error for a client that the application denies, perhaps with a message of its own.
pub(super) fn denial(code: ErrorCode, message: Option<&str>) -> ErrorResponse {
    let message = message.map(printable).filter(|message| !message.is_empty());
    let usual = || "the application does not allow this".to_owned();
    ErrorResponse::new(code, message.unwrap_or_else(usual))
}

/// For how long an answer is cached that says so in seconds.
pub(super) fn cache_ms(cache: Option<u64>) -> u64 {
    cache.unwrap_or(0).min(CACHE_S_MAX) * 1000
}

/// A message without control characters, short enough for a close frame.
fn printable(message: &str) -> String {
    let line: String = message.chars().filter(|letter| !letter.is_control()).collect();
    line[..line.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Answered<Decision>, AnswerError> {
        Decision::read(&(), json.as_bytes(), 0)
    }

    fn decision(json: &str) -> Decision {
        read(json).unwrap().verdict
    }

    #[test]
    fn an_answer_allows_or_denies() {
        assert_eq!(decision(r#"{"allow": true}"#), Decision::Allowed);
        let until = decision(r#"{"allow": true, "expires": 1800000000}"#);
        assert_eq!(until, Decision::AllowedUntil(1_800_000_000_000));
        let past = Decision::read(&(), br#"{"allow": true, "expires": 7}"#, 7);
        assert!(matches!(past, Err(AnswerError::Past)), "{past:?}");
        let denied = |json| decision(json).allowed_until_ms().unwrap_err();
        let plain = denied(r#"{"allow": false}"#);
        assert_eq!(plain.code, ErrorCode::Forbidden);
        assert_eq!(denied(r#"{"allow": false, "message": "not\nyou"}"#).message, "notyou");
        let long = format!(r#"{{"allow": false, "message": "{}"}}"#, "ä".repeat(300));
        assert_eq!(decision(&long).allowed_until_ms().unwrap_err().message, "ä".repeat(50));
    }

    #[test]
    fn an_answer_may_be_cached_for_a_day_at_most() {
        let cache_ms = |json: &str| read(json).unwrap().cache_ms;
        assert_eq!(cache_ms(r#"{"allow": true}"#), 0);
        assert_eq!(cache_ms(r#"{"allow": false, "cache": 60}"#), 60_000);
        assert_eq!(cache_ms(r#"{"allow": true, "cache": 18446744073709551615}"#), 86_400_000);
    }

    #[test]
    fn a_malformed_answer_is_an_error() {
        for json in [
            "",
            "true",
            "{}",
            "<html>",
            r#"{"allow": "true"}"#,
            r#"{"allow": 1}"#,
            r#"{"allow": null}"#,
            r#"{"allow": true, "allow": false}"#,
            r#"{"allow": true, "expire": 1}"#,
            r#"{"allow": true, "expires": -1}"#,
            r#"{"allow": true, "expires": "tomorrow"}"#,
            r#"{"allow": true} {"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
