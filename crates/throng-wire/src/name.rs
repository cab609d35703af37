//! The names of channels and users.

use crate::error::{ErrorCode, ErrorResponse};

/// The kind of thing that a name identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Channel,
    User,
    /// A log of the server's own. No request can name one or publish to it.
    Internal,
}

/// The internal log of samples that the status page follows, `/status/stream`.
pub const STATUS: &str = "status";

/// The internal log that the server's canary publishes to and follows.
pub const CANARY: &str = "canary";

impl Kind {
    /// The word for it in URLs, envelopes and error messages.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Channel => "channel",
            Kind::User => "user",
            Kind::Internal => "internal log",
        }
    }
}

/// A channel or a user, with a valid name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Whether the name is a channel's or a user's.
    pub kind: Kind,
    /// The name, which satisfies [`check_name`].
    pub name: String,
}

/// The longest name, in bytes of UTF-8. The server's tables store the length in one byte.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a name is invalid. The field is the noun for the message, `channel` or `user`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the {0} name is empty")]
    Empty(&'static str),
    /// The name is longer than [`NAME_BYTES_MAX`].
    #[error("the {0} name is longer than {NAME_BYTES_MAX} bytes")]
    TooLong(&'static str),
    /// The name contains a C0 control, DEL or a C1 control.
    #[error("the {0} name contains a control character")]
    Control(&'static str),
    /// A part between slashes is empty, `.` or `..`: proxies rewrite such paths.
    #[error("the {0} name has a part between slashes that is empty, `.` or `..`")]
    DotSegment(&'static str),
    /// The name to follow or publish to looks like a pattern.
    #[error(
        "the {0} name contains `*`, and only rules, grants and lists have patterns: follow, and \
         publish to, each {0} by its whole name"
    )]
    Pattern(&'static str),
    /// The percent-decoded bytes are not UTF-8.
    #[error("the {0} name is not UTF-8")]
    NotUtf8(&'static str),
}

impl From<NameError> for ErrorResponse {
    fn from(error: NameError) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::BadName, error.to_string())
    }
}

/// Checks a name against the rules of the reference. `noun` names its kind in the error message.
pub fn check_name(name: &str, noun: &'static str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty(noun));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(noun));
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::Control(noun));
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(NameError::DotSegment(noun));
    }
    Ok(())
}

/// Checks the name of a channel or user that is followed or published to. One with `*` would be
/// taken for a pattern: its follower would wait for ever. Messages that former versions kept under
/// such names can still be read.
pub fn check_target_name(name: &str, noun: &'static str) -> Result<(), NameError> {
    check_name(name, noun)?;
    if name.contains('*') { Err(NameError::Pattern(noun)) } else { Ok(()) }
}

impl Target {
    /// The same target, if it may be followed and published to: see [`check_target_name`].
    pub(crate) fn checked(self) -> Result<Target, NameError> {
        check_target_name(&self.name, self.kind.noun())?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_no_names_to_follow() {
        for name in ["*", "prices/*", "a*b", "\u{2a}"] {
            assert_eq!(check_name(name, "channel"), Ok(()));
            let refused = Err(NameError::Pattern("channel"));
            assert_eq!(check_target_name(name, "channel"), refused, "{name}");
        }
        assert_eq!(check_target_name("prices/∗", "channel"), Ok(()));
        assert_eq!(check_target_name("", "user"), Err(NameError::Empty("user")));
    }

    #[test]
    fn names_follow_the_rules() {
        for name in ["a", "chat:lobby", "a/b.c", "…", "a b", &"x".repeat(255)] {
            assert_eq!(check_name(name, "channel"), Ok(()), "{name}");
        }
        assert_eq!(check_name("", "user"), Err(NameError::Empty("user")));
        assert_eq!(check_name(&"x".repeat(256), "user"), Err(NameError::TooLong("user")));
        for name in ["a\0", "a\n", "\u{7f}", "a\u{85}"] {
            assert_eq!(check_name(name, "channel"), Err(NameError::Control("channel")), "{name:?}");
        }
        for name in [".", "..", "/", "a/", "/a", "a//b", "a/./b", "../a"] {
            assert_eq!(
                check_name(name, "channel"),
                Err(NameError::DotSegment("channel")),
                "{name}"
            );
        }
    }
}
