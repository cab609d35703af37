//! What the application answers.

use std::borrow::Cow;

use serde::Deserialize;
use throng_access::Decision;
use throng_wire::{ErrorCode, ErrorResponse};

/// The largest answer, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The most bytes of a denial's message: the reason of a WebSocket's close frame has 123.
const MESSAGE_BYTES_MAX: usize = 100;

/// The longest time for which an answer is cached, in seconds.
const CACHE_S_MAX: u64 = 24 * 60 * 60;

/// Why an answer does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// It is no JSON object with `allow`, or has an unknown member.
    #[error("the answer is not as agreed: {0}")]
    Form(#[from] serde_json::Error),
}

/// An answer that counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// What the application has decided.
    pub(super) decision: Decision,
    /// For how long it holds for the same question.
    pub(super) cache_ms: u64,
}

/// A misspelt `expires` must not become a permission without an end, so unknown members are errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
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

impl Answered {
    /// Parses an answer.
    pub(super) fn parse(body: &[u8]) -> Result<Answered, AnswerError> {
        let Document { allow, message, expires, cache } = serde_json::from_slice(body)?;
        let decision = match (allow, expires) {
            (true, None) => Decision::Allowed,
            (true, Some(expires_s)) => Decision::AllowedUntil(expires_s.saturating_mul(1000)),
            (false, _) => {
                let message = message.as_deref().map(printable);
                let message = message.filter(|message| !message.is_empty());
                let usual = || "the application does not allow this".to_owned();
                let message = message.unwrap_or_else(usual);
                Decision::Denied(ErrorResponse::new(ErrorCode::Forbidden, message))
            }
        };
        let cache_ms = cache.unwrap_or(0).min(CACHE_S_MAX) * 1000;
        Ok(Answered { decision, cache_ms })
    }
}

/// A message without control characters, short enough for a close frame.
fn printable(message: &str) -> String {
    let line: String = message.chars().filter(|letter| !letter.is_control()).collect();
    line[..line.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(json: &str) -> Decision {
        Answered::parse(json.as_bytes()).unwrap().decision
    }

    #[test]
    fn an_answer_allows_or_denies() {
        assert_eq!(decision(r#"{"allow": true}"#), Decision::Allowed);
        let until = decision(r#"{"allow": true, "expires": 1800000000}"#);
        assert_eq!(until, Decision::AllowedUntil(1_800_000_000_000));
        let denied = |json| decision(json).allowed_until_ms().unwrap_err();
        let plain = denied(r#"{"allow": false}"#);
        assert_eq!(plain.code, ErrorCode::Forbidden);
        assert_eq!(denied(r#"{"allow": false, "message": "not\nyou"}"#).message, "notyou");
        let long = format!(r#"{{"allow": false, "message": "{}"}}"#, "ä".repeat(300));
        assert_eq!(decision(&long).allowed_until_ms().unwrap_err().message, "ä".repeat(50));
    }

    #[test]
    fn an_answer_may_be_cached_for_a_day_at_most() {
        let cache_ms = |json: &str| Answered::parse(json.as_bytes()).unwrap().cache_ms;
        assert_eq!(cache_ms(r#"{"allow": true}"#), 0);
        assert_eq!(cache_ms(r#"{"allow": false, "cache": 60}"#), 60_000);
        assert_eq!(cache_ms(r#"{"allow": true, "cache": 18446744073709551615}"#), 86_400_000);
    }

    #[test]
    fn what_is_not_as_agreed_is_an_error() {
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
            assert!(Answered::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
