//! Answers of the application about a channel.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::Deserializer;
use serde_json::value::RawValue;
use throng_access::Decision;
use throng_core::{Body, Replacement};
use throng_wire::member::member_info;
use throng_wire::v1::parse_content;
use throng_wire::{ErrorCode, ErrorResponse};

use super::verdict::{ANSWER_BYTES_MAX, AnswerError, Answered, Verdict};

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
    /// The content of the message in place of the client's; `null` is one.
    #[serde(borrow, default, deserialize_with = "there")]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    encoding: Option<Cow<'a, str>>,
    #[serde(default)]
    content_type: Option<String>,
    /// What the client shows to the other members of the channel.
    #[serde(borrow, default)]
    info: Option<&'a RawValue>,
}

/// Reads a member that is there, whatever its value.
fn there<'de: 'a, 'a, D: Deserializer<'de>>(source: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(source).map(Some)
}

/// The limits of content in answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContentLimits {
    /// The most bytes of content that a question has; 0 if none has any.
    pub(super) max_asked_bytes: usize,
    /// The most bytes of the body of a message.
    pub(super) max_message_bytes: usize,
}

/// Facts that an answer cannot change.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionBounds {
    /// Until when it is allowed at most, in milliseconds since 1970.
    pub(super) until_ms: Option<u64>,
    /// True if the answer may have content: the question had.
    pub(super) takes_content: bool,
}

impl DecisionDocument<'_> {
    /// The content of the answer, checked as a publication is.
    fn replacement(&mut self, limits: &ContentLimits) -> Result<Option<Replacement>, AnswerError> {
        let content_type = self.content_type.take();
        let fault = |error: ErrorResponse| AnswerError::Content(error.message);
        let Some(data) = self.data else {
            if self.encoding.is_some() || content_type.is_some() {
                return Err(AnswerError::Content("`data` is missing".into()));
            }
            return Ok(None);
        };
        if !self.allow || limits.max_asked_bytes == 0 {
            return Err(AnswerError::Content("it was not asked for".into()));
        }
        let (bytes, content_type) =
            parse_content(data, self.encoding.as_deref(), content_type).map_err(fault)?;
        if bytes.len() > limits.max_message_bytes {
            return Err(fault(ErrorResponse::message_too_large(limits.max_message_bytes)));
        }
        let parsed = Body::parse(&bytes, content_type.as_deref());
        let (body, content_type) = parsed.map_err(|error| fault(error.into()))?;
        Ok(Some(Replacement { body, content_type }))
    }
}

impl Verdict for Decision {
    type Reader = ContentLimits;
    type Bounds = DecisionBounds;
    type Given = Decision;

    /// Content in an answer may be twice as large as content in a question.
    fn answer_bytes_max(limits: &ContentLimits) -> usize {
        ANSWER_BYTES_MAX + 2 * limits.max_asked_bytes
    }

    fn read(
        limits: &ContentLimits,
        body: &[u8],
        asked_s: u64,
    ) -> Result<Answered<Decision>, AnswerError> {
        let mut document: DecisionDocument<'_> = serde_json::from_slice(body)?;
        let replacement = document.replacement(limits)?;
        let info = document.info.map(member_info).transpose().map_err(AnswerError::Info)?;
        let DecisionDocument { allow, message, expires, cache, .. } = document;
        if allow && expires.is_some_and(|expires_s| expires_s <= asked_s) {
            return Err(AnswerError::Past);
        }
        if let Some(replacement) = replacement {
            // It is for this message only, and a cache of messages would be large.
            let verdict = Decision::AllowedAs(Arc::new(replacement));
            return Ok(Answered { verdict, cache_ms: 0 });
        }
        let until_ms = expires.map(|expires_s| expires_s.saturating_mul(1000));
        let verdict = match (allow, until_ms, info) {
            (true, until_ms, Some(info)) => {
                Decision::AllowedShowing { info: info.into(), until_ms }
            }
            (true, None, None) => Decision::Allowed,
            (true, Some(until_ms), None) => Decision::AllowedUntil(until_ms),
            (false, ..) => Decision::Denied(denial(ErrorCode::Forbidden, message.as_deref())),
        };
        Ok(Answered { verdict, cache_ms: cache_ms(cache) })
    }

    fn refused(error: ErrorResponse) -> Decision {
        Decision::Denied(error)
    }

    fn is_denial(&self) -> bool {
        matches!(self, Decision::Denied(_))
    }

    fn within(self, bounds: &DecisionBounds) -> Decision {
        match (self, bounds.until_ms) {
            (Decision::AllowedAs(_), _) if !bounds.takes_content => {
                Decision::Denied(ErrorResponse::unanswered())
            }
            (Decision::Allowed, Some(until_ms)) => Decision::AllowedUntil(until_ms),
            (Decision::AllowedUntil(one), Some(other)) => Decision::AllowedUntil(one.min(other)),
            (Decision::AllowedShowing { info, until_ms }, other) => {
                let until_ms = until_ms.into_iter().chain(other).min();
                Decision::AllowedShowing { info, until_ms }
            }
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

    const LIMITS: ContentLimits = ContentLimits { max_asked_bytes: 100, max_message_bytes: 9 };

    fn read(json: &str) -> Result<Answered<Decision>, AnswerError> {
        Decision::read(&LIMITS, json.as_bytes(), 0)
    }

    #[test]
    fn an_answer_may_have_other_content() {
        let replaced = |json: &str| match read(json).unwrap() {
            Answered { verdict: Decision::AllowedAs(replacement), cache_ms: 0 } => {
                let Replacement { body, content_type } = (*replacement).clone();
                (body, content_type)
            }
            other => panic!("{other:?}"),
        };
        let text = |text: &str| Body::Text(text.into());
        assert_eq!(replaced(r#"{"allow":true,"data":"hi","cache":9}"#), (text("hi"), None));
        let json = |json: &str| Body::Json(json.into());
        assert_eq!(replaced(r#"{"allow":true,"data":null}"#), (json("null"), None));
        assert_eq!(replaced(r#"{"allow":true,"data":[1, 2]}"#), (json("[1, 2]"), None));
        let image =
            r#"{"allow":true,"data":"aGk=","encoding":"base64","content_type":"image/png"}"#;
        assert_eq!(replaced(image), (Body::Binary(b"hi"[..].into()), Some("image/png".into())));
        for bad in [
            r#"{"allow":false,"data":"hi"}"#,
            r#"{"allow":true,"content_type":"text/css"}"#,
            r#"{"allow":true,"data":"1234567890"}"#,
            r#"{"allow":true,"data":"{","content_type":"application/json"}"#,
            r#"{"allow":true,"data":"?","encoding":"base64"}"#,
            r#"{"allow":true,"data":"?","encoding":"hex"}"#,
            r#"{"allow":true,"data":"a","content_type":"a\nb"}"#,
        ] {
            assert!(matches!(read(bad), Err(AnswerError::Content(_))), "{bad}");
        }
        let unasked = ContentLimits { max_asked_bytes: 0, ..LIMITS };
        assert!(Decision::read(&unasked, br#"{"allow":true,"data":"hi"}"#, 0).is_err());
        let bounds = DecisionBounds { until_ms: None, takes_content: false };
        let of_subscription = read(r#"{"allow":true,"data":"hi"}"#).unwrap().verdict;
        assert!(matches!(of_subscription.within(&bounds), Decision::Denied(_)));
    }

    fn decision(json: &str) -> Decision {
        read(json).unwrap().verdict
    }

    #[test]
    fn an_answer_allows_or_denies() {
        assert_eq!(decision(r#"{"allow": true}"#), Decision::Allowed);
        let until = decision(r#"{"allow": true, "expires": 1800000000}"#);
        assert_eq!(until, Decision::AllowedUntil(1_800_000_000_000));
        let past = Decision::read(&LIMITS, br#"{"allow": true, "expires": 7}"#, 7);
        assert!(matches!(past, Err(AnswerError::Past)), "{past:?}");
        let denied = |json| decision(json).allowed_until_ms().unwrap_err();
        let plain = denied(r#"{"allow": false}"#);
        assert_eq!(plain.code, ErrorCode::Forbidden);
        assert_eq!(denied(r#"{"allow": false, "message": "not\nyou"}"#).message, "notyou");
        let long = format!(r#"{{"allow": false, "message": "{}"}}"#, "ä".repeat(300));
        assert_eq!(decision(&long).allowed_until_ms().unwrap_err().message, "ä".repeat(50));
    }

    #[test]
    fn an_answer_may_say_what_a_client_shows_to_other_members() {
        let showing = |until_ms| Decision::AllowedShowing { info: r#"{"a":1}"#.into(), until_ms };
        assert_eq!(decision(r#"{"allow": true, "info": {"a": 1}}"#), showing(None));
        let until = decision(r#"{"allow": true, "info": {"a": 1}, "expires": 1800000000}"#);
        assert_eq!(until, showing(Some(1_800_000_000_000)));
        let bounds = DecisionBounds { until_ms: Some(7), takes_content: false };
        assert_eq!(until.within(&bounds), showing(Some(7)));
        assert!(matches!(decision(r#"{"allow": false, "info": {}}"#), Decision::Denied(_)));
        for info in ["[]", "\"ann\"", &format!("{{\"x\":\"{}\"}}", "x".repeat(1 << 20))] {
            let read = read(&format!(r#"{{"allow": true, "info": {info}}}"#));
            assert!(matches!(read, Err(AnswerError::Info(_))), "{}", info.len());
        }
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
