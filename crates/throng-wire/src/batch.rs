//! One line of a batch of publications.

use crate::error::ErrorResponse;
use crate::name::Target;
use crate::v1::{Fields, Publication};

/// The fields that a line may have.
const FIELDS: [&str; 13] = [
    "channel",
    "user",
    "data",
    "encoding",
    "content_type",
    "key",
    "expires_in",
    "volatile",
    "event",
    "tags",
    "state_key",
    "tombstone",
    "exclude",
];

/// A publication with its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItem {
    /// The channel or user to publish to.
    pub target: Target,
    pub publication: Publication,
    /// The connection that does not receive the message.
    pub exclude: Option<String>,
}

/// Parses a line of a batch, with or without its line break.
pub fn parse_line(line: &str) -> Result<BatchItem, ErrorResponse> {
    let fields = Fields::parse(line)?;
    fields.check_names("a line of a batch", &FIELDS)?;
    BatchItem::of(&fields, fields.target()?.checked()?)
}

/// Parses a message of a request that names the target itself.
pub fn parse_message(text: &str, target: Target) -> Result<BatchItem, ErrorResponse> {
    let fields = Fields::parse(text)?;
    let [_channel, _user, names @ ..] = &FIELDS;
    fields.check_names("one of these messages", names)?;
    BatchItem::of(&fields, target)
}

impl BatchItem {
    fn of(fields: &Fields<'_>, target: Target) -> Result<BatchItem, ErrorResponse> {
        let publication = Publication::from_fields(fields)?;
        Ok(BatchItem { target, publication, exclude: fields.exclude()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Labels};

    fn refused(line: &str) -> (&'static str, String) {
        let error = parse_line(line).unwrap_err();
        (error.code.name(), error.message.into_owned())
    }

    #[test]
    fn a_line_has_a_target_a_message_and_an_excluded_connection() {
        let line =
            "{\"user\":\"u1\",\"data\":{\"n\":1},\"key\":\"order-7\",\"exclude\":\"c-9\"}\r\n";
        let item = parse_line(line).unwrap();
        assert_eq!(item.target, Target { kind: Kind::User, name: "u1".into() });
        assert_eq!(item.publication.body, br#"{"n":1}"#);
        assert_eq!(item.publication.content_type.as_deref(), Some("application/json"));
        assert_eq!(item.publication.key.as_deref(), Some("order-7"));
        assert_eq!(item.exclude.as_deref(), Some("c-9"));
    }

    #[test]
    fn a_message_expires_after_a_number_of_seconds() {
        let line = |value: &str| format!(r#"{{"channel":"a","data":1,"expires_in":{value}}}"#);
        let expires_in_s = |value| parse_line(&line(value)).map(|it| it.publication.expires_in_s);
        assert_eq!(expires_in_s("30"), Ok(Some(30)));
        assert_eq!(expires_in_s("31536000"), Ok(Some(31_536_000)));
        assert_eq!(expires_in_s("null"), Ok(None));
        for value in ["0", "-1", "1.5", "31536001", "99999999999", "\"30\"", "true"] {
            let message = "the field `expires_in` must be a number of seconds, 1 to 31536000";
            assert_eq!(refused(&line(value)), ("bad_request", message.into()), "{value}");
        }
    }

    #[test]
    fn a_volatile_message_has_neither_a_key_nor_an_expiry() {
        let line = |fields: &str| format!(r#"{{"channel":"a","data":1,"volatile":true{fields}}}"#);
        assert_eq!(parse_line(&line("")).map(|it| it.publication.is_volatile), Ok(true));
        let kept = r#"{"channel":"a","data":1,"volatile":false,"key":"k"}"#;
        assert_eq!(parse_line(kept).map(|it| it.publication.is_volatile), Ok(false));
        let (code, message) = refused(&line(r#","key":"k""#));
        assert!(code == "bad_request" && message.contains("no idempotency key"), "{message}");
        let (_, message) = refused(&line(r#","expires_in":3"#));
        assert_eq!(
            message,
            "a volatile message has no expiry: it is delivered at once or not at all"
        );
    }

    #[test]
    fn a_line_has_an_event_and_tags() {
        let line = |fields: &str| format!(r#"{{"channel":"a","data":1,{fields}}}"#);
        let labels = |fields: &str| parse_line(&line(fields)).map(|it| it.publication.labels);
        let given = labels(r#""event":"price","tags":{"n": 2},"volatile":true"#);
        let expected =
            Labels { event: Some("price".into()), tags: Some(r#"{"n":2}"#.into()), key: None };
        assert_eq!(given, Ok(expected));
        assert_eq!(labels(r#""event":null,"tags":{}"#), Ok(Labels::default()));
        for (fields, expected) in [
            (r#""event":"gap""#, "the field `event` has a name that is reserved"),
            (r#""event":"a\nb""#, "the field `event` must be 1 to 128 bytes of UTF-8"),
            (r#""event":7"#, "the field `event` must be a string"),
            (r#""tags":{"a":{}}"#, "the field `tags` must be a JSON object of strings and"),
            (r#""tags":"a""#, "the field `tags` must be a JSON object of strings and"),
            (r#""from":"ann""#, "the field `from` is unknown in a line of a batch"),
        ] {
            let (code, message) = refused(&line(fields));
            assert_eq!(code, "bad_request", "{fields}");
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_message_of_a_request_with_a_target_names_none() {
        let target = || Target { kind: Kind::Channel, name: "a".into() };
        let item = parse_message(r#"{"data":7,"event":"price"}"#, target()).unwrap();
        assert_eq!((item.target, &item.publication.body[..]), (target(), &b"7"[..]));
        let error = parse_message(r#"{"channel":"a","data":7}"#, target()).unwrap_err();
        assert!(error.message.starts_with("the field `channel` is unknown in one of these"));
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        let item = parse_line(r#"{"channel":"a","data":"hello"}"#).unwrap();
        assert_eq!(item.publication.body, b"hello");
        assert_eq!(item.exclude, None);
        let (code, message) = refused(r#"{"channel":"a","data":"hello","exlude":"c-9"}"#);
        assert_eq!(code, "bad_request");
        assert_eq!(
            message,
            "the field `exlude` is unknown in a line of a batch; did you mean `exclude`?"
        );
    }

    #[test]
    fn errors_read_as_in_the_reference() {
        assert_eq!(
            refused(r#"{"channel":"","data":"x"}"#),
            ("bad_name", "the channel name is empty".into())
        );
        assert_eq!(refused("").0, "bad_json");
        assert_eq!(refused("[]").0, "bad_json");
        assert_eq!(
            refused(r#"{"channel":"a"}"#),
            ("bad_request", "the field `data` is missing".into())
        );
        assert_eq!(
            refused(r#"{"channel":"a","data":1,"exclude":1}"#),
            ("bad_request", "the field `exclude` must be a string".into())
        );
    }
}
