//! Patterns of channels and users, with `{user}` for the user who asks.
//!
//! # Why `{user}` cannot reach another user's channels
//!
//! `{user}` stands for the name exactly: a `*` in a name is no wildcard. Its neighbour in the
//! pattern is a separator or the pattern's end, never a `*`, a letter or a digit. A user whose name
//! contains `/`, `:` or one of those separators matches no such pattern. So the part of a channel's
//! name that `{user}` covers ends where the user's name ends: with `private/{user}/*`, the user
//! `ann/x` does not get a part of `ann`'s channels.

use throng_core::glob::glob_around;
use throng_core::name::{ChannelName, Kind, NAME_BYTES_MAX};

/// Placeholder of the user in a pattern.
pub const USER: &str = "{user}";

/// A user whose name contains one of these matches no pattern with `{user}`.
const SEPARATORS: [char; 2] = ['/', ':'];

/// The longest pattern, in bytes: as long as the longest name. A pattern keeps the place of
/// `{user}` in one byte.
pub(crate) const PATTERN_BYTES_MAX: usize = NAME_BYTES_MAX;

/// Why a pattern is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("a pattern is empty")]
    Empty,
    /// It is longer than [`PATTERN_BYTES_MAX`].
    #[error("a pattern is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    /// It contains a control character, which no name contains.
    #[error("a pattern contains a control character")]
    Control,
    /// It contains `{user}` twice.
    #[error("a pattern contains {{user}} more than once")]
    SeveralUsers,
    /// A letter, a digit, a star or a brace stands beside `{user}`.
    #[error("next to {{user}} a pattern needs a separator, such as `/`, or its end")]
    NoSeparator,
}

/// A pattern of channels or of users. 24 bytes and its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
    kind: Kind,
    /// Where `{user}` stands.
    user_at: Option<u8>,
}

impl Pattern {
    /// A pattern for names of `kind`, in which `*` stands for any text and `{user}` for the user.
    ///
    /// # Errors
    ///
    /// See [`PatternError`].
    pub fn new(kind: Kind, text: &str) -> Result<Pattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(PatternError::Control);
        }
        let user_at = text.find(USER);
        if let Some(at) = user_at {
            let after = &text[at + USER.len()..];
            if after.contains(USER) {
                return Err(PatternError::SeveralUsers);
            }
            if neighbours(&text[..at], after).any(|beside| !is_separator(beside)) {
                return Err(PatternError::NoSeparator);
            }
        }
        let user_at = user_at.and_then(|at| u8::try_from(at).ok());
        Ok(Pattern { text: text.into(), kind, user_at })
    }

    /// Whether it matches names of channels, or of users.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if it contains `{user}`.
    pub fn has_user(&self) -> bool {
        self.user_at.is_some()
    }

    /// True if `name` matches, where `{user}` stands for `user`. A pattern with `{user}` matches
    /// nothing without a user. Allocates nothing.
    pub fn matches(&self, name: &ChannelName, user: Option<&str>) -> bool {
        if name.kind() != self.kind {
            return false;
        }
        let Some(at) = self.user_at.map(usize::from) else {
            return glob_around(&self.text, "", "", name.name());
        };
        let (before, after) = (&self.text[..at], &self.text[at + USER.len()..]);
        user.is_some_and(|user| {
            !user.contains(SEPARATORS)
                && !neighbours(before, after).any(|separator| user.contains(separator))
                && glob_around(before, user, after, name.name())
        })
    }
}

impl Pattern {
    /// The user for whom `name` matches, if `is_user` says of a name that it is the user's: for
    /// callers that recognise the user without knowing the name. `is_user` is asked about the parts
    /// of `name` that can stand for a user only. Allocates nothing.
    pub(crate) fn matching_user<'n>(
        &self,
        name: &'n ChannelName,
        mut is_user: impl FnMut(&str) -> bool,
    ) -> Option<&'n str> {
        let at = usize::from(self.user_at?);
        let (before, after) = (&self.text[..at], &self.text[at + USER.len()..]);
        let is_end = |character: char| {
            SEPARATORS.contains(&character)
                || neighbours(before, after).any(|separator| character == separator)
        };
        // A user that matches contains no separator, so it is the whole of what stands between two.
        let parts = name.name().split(is_end).filter(|part| !part.is_empty());
        parts.into_iter().find(|part| self.matches(name, Some(part)) && is_user(part))
    }
}

/// The characters beside `{user}`.
fn neighbours(before: &str, after: &str) -> impl Iterator<Item = char> {
    before.chars().next_back().into_iter().chain(after.chars().next())
}

/// True if a character may stand beside `{user}`.
fn is_separator(character: char) -> bool {
    !character.is_alphanumeric() && !matches!(character, '*' | '{' | '}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(Kind::Channel, text).unwrap()
    }

    fn matches(text: &str, channel: &str, user: &str) -> bool {
        pattern(text).matches(&ChannelName::channel(channel), Some(user))
    }

    #[test]
    fn a_pattern_is_24_bytes() {
        assert_eq!(size_of::<Pattern>(), 24);
    }

    #[test]
    fn the_user_stands_for_itself() {
        assert!(matches("private/{user}", "private/ann", "ann"));
        assert!(matches("private/{user}/*", "private/ann/x", "ann"));
        assert!(matches("*/{user}", "a/b/ann", "ann"));
        assert!(matches("{user}", "ann@example.org", "ann@example.org"));
        assert!(matches("{user}", "…", "…"));
        assert!(!matches("private/{user}", "private/bob", "ann"));
        assert!(!matches("private/{user}", "private/ann2", "ann"));
    }

    #[test]
    fn a_star_in_a_user_is_no_wildcard() {
        assert!(!matches("private/{user}", "private/ann", "*"));
        assert!(!matches("private/{user}/*", "private/ann/x", "a*"));
        assert!(matches("private/{user}", "private/*", "*"));
    }

    #[test]
    fn a_user_with_a_separator_matches_no_pattern() {
        assert!(!matches("private/{user}", "private/ann/x", "ann/x"));
        assert!(!matches("private/{user}", "private/ann:x", "ann:x"));
        assert!(!matches("private.{user}.*", "private.ann.x.y", "ann.x"));
        assert!(!matches("private-{user}", "private-a-b", "a-b"));
        assert!(matches("private/{user}/*", "private/a-b.c/x", "a-b.c"));
    }

    #[test]
    fn nothing_but_a_name_of_the_kind_matches() {
        let any = pattern("*");
        assert!(any.matches(&ChannelName::channel("a"), None));
        assert!(!any.matches(&ChannelName::user("a"), None));
        assert!(!any.matches(&ChannelName::status(), None));
        let users = Pattern::new(Kind::User, "{user}").unwrap();
        assert!(users.matches(&ChannelName::user("ann"), Some("ann")));
        assert!(!users.matches(&ChannelName::channel("ann"), Some("ann")));
        assert!(!users.matches(&ChannelName::user("ann"), None));
    }

    #[test]
    fn bad_patterns_are_refused() {
        let long = "x".repeat(256);
        for (text, error) in [
            ("", PatternError::Empty),
            (long.as_str(), PatternError::TooLong),
            ("a\n", PatternError::Control),
            ("{user}/{user}", PatternError::SeveralUsers),
            ("{user}*", PatternError::NoSeparator),
            ("*{user}", PatternError::NoSeparator),
            ("a{user}", PatternError::NoSeparator),
            ("{user}1", PatternError::NoSeparator),
            ("{{user}}", PatternError::NoSeparator),
        ] {
            assert_eq!(Pattern::new(Kind::Channel, text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_user_is_recognised_in_a_name() {
        let found = |text: &str, channel: &str, user: &str| {
            let name = ChannelName::channel(channel);
            pattern(text).matching_user(&name, |part| part == user).map(str::to_owned)
        };
        assert_eq!(found("private/{user}/*", "private/ann/x", "ann").as_deref(), Some("ann"));
        assert_eq!(found("{user}", "ann@example.org", "ann@example.org").as_deref(), {
            Some("ann@example.org")
        });
        assert_eq!(found("*/{user}", "a/b/ann", "ann").as_deref(), Some("ann"));
        assert_eq!(found("*/{user}", "a/b/ann", "b"), None);
        assert_eq!(found("private/{user}", "private/ann", "bob"), None);
        assert_eq!(found("private/*", "private/ann", "ann"), None);
    }

    proptest! {
        /// Recognising a user finds the same as knowing it.
        #[test]
        fn a_user_is_recognised_exactly_where_it_matches(
            before in "([ab/:.*-]{0,4}[/:.-])?", after in "([/:.-][ab/:.*-]{0,4})?",
            user in "[ab/:.*-]{1,4}", channel in "[ab/:.*-]{1,12}",
        ) {
            let pattern = pattern(&format!("{before}{{user}}{after}"));
            let name = ChannelName::channel(&channel);
            let found = pattern.matching_user(&name, |part| part == user);
            prop_assert_eq!(found.is_some(), pattern.matches(&name, Some(&user)));
        }

        /// The security property: no channel belongs to two users by the same pattern.
        #[test]
        fn a_channel_is_of_one_user_only(
            before in "([ab/:.*-]{0,4}[/:.-])?", after in "([/:.-][ab/:.*-]{0,4})?",
            one in "[ab/:.*-]{1,4}", other in "[ab/:.*-]{1,4}", channel in "[ab/:.*-]{1,12}",
        ) {
            let pattern = pattern(&format!("{before}{{user}}{after}"));
            let name = ChannelName::channel(&channel);
            let both = pattern.matches(&name, Some(&one)) && pattern.matches(&name, Some(&other));
            // With a star on both sides, `*/{user}/*`, the place of the user is open by intent.
            let is_open = before.contains('*') && after.contains('*');
            prop_assert!(!both || one == other || is_open, "{pattern:?}");
        }

        #[test]
        fn a_literal_user_is_found_in_its_own_channel(user in "[a-z0-9*@._|-]{1,20}") {
            let pattern = pattern("private/{user}/*");
            let own = ChannelName::channel(&format!("private/{user}/x"));
            prop_assert!(pattern.matches(&own, Some(&user)));
        }
    }
}
