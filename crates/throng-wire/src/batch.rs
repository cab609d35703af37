//! One line of a batch of publications.

use crate::v1::{Fields, Publication};
use crate::{ErrorResponse, Target};

/// The fields of a line.
const FIELDS: [&str; 7] = ["channel", "user", "data", "encoding", "content_type", "key", "exclude"];

/// What a line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItem {
    /// Where to publish.
    pub target: Target,
    /// What.
    pub publication: Publication,
    /// Not to this connection.
    pub exclude: Option<String>,
}

/// Parses a line of a batch, with its line break or without.
pub fn parse_line(line: &str) -> Result<BatchItem, ErrorResponse> {
    let fields = Fields::parse(line)?;
    fields.check_names("a line of a batch", &FIELDS)?;
    Ok(BatchItem {
        target: fields.target()?,
        publication: Publication::from_fields(&fields)?,
        exclude: fields.exclude()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn refused(line: &str) -> (&'static str, String) {
        let error = parse_line(line).unwrap_err();
        (error.code.name(), error.message.into_owned())
    }

    #[test]
    fn a_line_names_target_message_and_who_is_left_out() {
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
    fn a_misspelt_field_is_refused() {
        let item = parse_line(r#"{"channel":"a","data":"hello"}"#).unwrap();
        assert_eq!(item.publication.body, b"hello");
        assert_eq!(item.exclude, None);
        let (code, sentence) = refused(r#"{"channel":"a","data":"hello","exlude":"c-9"}"#);
        assert_eq!(code, "bad_request");
        assert_eq!(
            sentence,
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
