//! What a client is told about a name that is unknown here: the nearest known one, or all of them.
//!
//! Only names are repeated, never values. What has no value beside it may be one, a token say, and
//! is not repeated either.

use std::fmt::Write as _;

use throng_units::suggest::nearest;

/// A longer name is not repeated: none of ours is half as long.
const NAME_BYTES_MAX: usize = 32;

/// Parameters of a query that begin so are the client's own, against caches say, and ignored.
const OWN: char = '_';

/// The sentence about a query parameter; `None` if it may be ignored.
pub fn parameter(name: &str, value: &str, known: &[&str]) -> Option<String> {
    if name.is_empty() && value.is_empty() || name.starts_with(OWN) {
        return None;
    }
    // Base64 ends in such signs.
    let has_value = !value.trim_start_matches('=').is_empty();
    let subject = match has_value && is_repeatable(name) {
        true => format!("the query parameter `{name}` is unknown here"),
        false => "a query parameter is unknown here".to_owned(),
    };
    Some(with_hint(subject, name, known))
}

/// The sentence about a field of a JSON object, of which `of` says what it is.
pub fn field(name: &str, of: &str, known: &[&str]) -> String {
    let subject = match is_repeatable(name) {
        true => format!("the field `{name}` is unknown in {of}"),
        false => format!("a field is unknown in {of}"),
    };
    with_hint(subject, name, known)
}

/// `subject`, and which of the `known` names may have been meant.
pub(crate) fn with_hint(mut subject: String, written: &str, known: &[&str]) -> String {
    let short = &written[..written.floor_char_boundary(NAME_BYTES_MAX)];
    // A String takes everything.
    let _ = match (nearest(short, known.iter().copied()), known) {
        (Some(meant), _) => write!(subject, "; did you mean `{meant}`?"),
        (None, []) => write!(subject, "; none is known"),
        (None, [only]) => write!(subject, "; `{only}` is known"),
        (None, [most @ .., last]) => {
            let most: Vec<_> = most.iter().map(|name| format!("`{name}`")).collect();
            write!(subject, "; {} and `{last}` are known", most.join(", "))
        }
    };
    subject
}

/// Whether it looks like a name that somebody typed.
fn is_repeatable(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_told_and_no_value() {
        let known = ["limit", "before", "after"];
        let told = |name, value| parameter(name, value, &known).unwrap_or_default();
        assert_eq!(
            told("limti", "secret"),
            "the query parameter `limti` is unknown here; did you mean `limit`?"
        );
        assert_eq!(
            told("since", "k3-1"),
            "the query parameter `since` is unknown here; \
             `limit`, `before` and `after` are known"
        );
        for (name, value) in [
            ("c2VjcmV0", ""),
            ("c2VjcmV0", "="),
            ("eyJhbGciOiJIUzI1NiJ9.eyJ1c2VyIjoiYW5uIn0.c2VjcmV0", "x"),
            ("Bearer c2VjcmV0", "x"),
        ] {
            let sentence = told(name, value);
            assert!(sentence.starts_with("a query parameter is unknown here"), "{sentence}");
        }
        for (name, value) in [("", ""), ("_", "1763756766123"), ("_cache", "")] {
            assert_eq!(parameter(name, value, &known), None, "{name}");
        }
        assert_eq!(
            parameter("x", "1", &[]).as_deref(),
            Some("the query parameter `x` is unknown here; none is known")
        );
        assert!(told(&"ü".repeat(40), "x").starts_with("a query parameter"));
    }
}
