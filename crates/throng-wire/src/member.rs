//! What clients show of themselves to the other members of a channel.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{ErrorCode, ErrorResponse};
use crate::interchange;

/// The most bytes of it, as JSON without spaces. Everybody who looks at the members gets it.
const MEMBER_INFO_BYTES_MAX: usize = 1 << 10;

/// What a client says of itself when it subscribes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberClaim {
    /// The user that it is, if its application has signed all of this, which the dialect has
    /// checked.
    pub user: Option<Box<str>>,
    /// What it shows of itself, as [`member_info`] has it.
    pub info: Option<Box<str>>,
}

/// Why something cannot be shown of a member: the predicate of a sentence about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemberInfoError {
    #[error("must be a JSON object that every parser reads")]
    Form,
    #[error("takes more than {MEMBER_INFO_BYTES_MAX} bytes as JSON without spaces")]
    Size,
}

impl MemberInfoError {
    /// The error of a command whose field `info` it is.
    pub fn of_field(self) -> ErrorResponse {
        let code = match self {
            MemberInfoError::Form => ErrorCode::BadRequest,
            MemberInfoError::Size => ErrorCode::TooLarge,
        };
        ErrorResponse::new(code, format!("the field `info` {self}"))
    }
}

/// The JSON object that a member shows of itself, on one line and without spaces.
///
/// # Errors
///
/// It is none, or beyond the limit.
pub fn member_info(value: &RawValue) -> Result<Box<str>, MemberInfoError> {
    let json = value.get();
    if !json.starts_with('{') {
        return Err(MemberInfoError::Form);
    }
    let json = without_spaces(json);
    // Before it is parsed again.
    if json.len() > MEMBER_INFO_BYTES_MAX {
        return Err(MemberInfoError::Size);
    }
    interchange::check(&json).map_err(|_| MemberInfoError::Form)?;
    Ok(json.into())
}

/// The same from a text that may be no JSON.
///
/// # Errors
///
/// As [`member_info`].
pub fn member_info_of(json: &str) -> Result<Box<str>, MemberInfoError> {
    let value = <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(json));
    member_info(value.map_err(|_| MemberInfoError::Form)?)
}

/// Valid JSON without the spaces between its tokens.
fn without_spaces(json: &str) -> String {
    let (mut is_in_string, mut is_escaped) = (false, false);
    let is_kept = |letter: &char| {
        if is_in_string {
            is_in_string = *letter != '"' || is_escaped;
            is_escaped = *letter == '\\' && !is_escaped;
            return true;
        }
        is_in_string = *letter == '"';
        !letter.is_ascii_whitespace()
    };
    json.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_is_an_object_on_one_line() {
        let info = |json| member_info_of(json).map(String::from);
        let json = "{ \"a \\\\\" :\n [1, \" \\\" \"] }";
        assert_eq!(info(json), Ok(r#"{"a \\":[1," \" "]}"#.to_owned()));
        for bad in ["[]", "1", "null", "{", r#"{"a":1,"#] {
            assert_eq!(info(bad), Err(MemberInfoError::Form), "{bad}");
        }
        let longest = format!(r#"{{"a":"{}"}}"#, "x".repeat(MEMBER_INFO_BYTES_MAX - 8));
        assert_eq!(info(&longest).map(|info| info.len()), Ok(MEMBER_INFO_BYTES_MAX));
        assert_eq!(info(&longest.replace('a', "ab")), Err(MemberInfoError::Size));
    }
}
