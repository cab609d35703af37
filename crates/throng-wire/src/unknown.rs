//! Error messages for unknown names, which suggest the nearest known name or list them all.
//!
//! The messages repeat names, never values. A name without a value is not repeated either: it may
//! be a misplaced value, such as a token.

use std::fmt::Write as _;

use throng_units::suggest::nearest;

/// Longer names are not repeated. The longest known name is less than half of this.
const NAME_BYTES_MAX: usize = 32;

/// Query parameters with this prefix belong to the client and are ignored, e.g. cache busters.
const OWN: char = '_';

/// The message for an unknown query parameter; `None` if the parameter may be ignored.
pub fn parameter(name: &str, value: &str, known: &[&str]) -> Option<String> {
    if name.is_empty() && value.is_empty() || name.starts_with(OWN) {
        return None;
    }
    // Base64 ends in equals signs: what looks like an empty value may be padding.
    let has_value = !value.trim_start_matches('=').is_empty();
    let subject = if has_value && is_repeatable(name) {
        format!("the query parameter `{name}` is unknown here")
    } else {
        "a query parameter is unknown here".to_owned()
    };
    Some(with_hint(subject, name, known))
}

/// The message for an unknown header.
pub fn header(name: &str, known: &[&str]) -> String {
    let subject = if is_repeatable(name) {
        format!("the header `{name}` is unknown")
    } else {
        "a header is unknown".to_owned()
    };
    with_hint(subject, name, known)
}

/// The message for an unknown field of a JSON object. `of` describes the object.
pub fn field(name: &str, of: &str, known: &[&str]) -> String {
    let subject = if is_repeatable(name) {
        format!("the field `{name}` is unknown in {of}")
    } else {
        format!("a field is unknown in {of}")
    };
    with_hint(subject, name, known)
}

/// Appends to `subject` the known name nearest to `written`, or all known names.
pub(crate) fn with_hint(mut subject: String, written: &str, known: &[&str]) -> String {
    let short = &written[..written.floor_char_boundary(NAME_BYTES_MAX)];
    // Writing to a String cannot fail.
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

/// True if it is short and consists of characters that names have.
fn is_repeatable(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_suggest_the_nearest_name_and_repeat_no_value() {
        let known = ["limit", "before", "after"];
        let message = |name, value| parameter(name, value, &known).unwrap_or_default();
        assert_eq!(
            message("limti", "secret"),
            "the query parameter `limti` is unknown here; did you mean `limit`?"
        );
        assert_eq!(
            message("since", "k3-1"),
            "the query parameter `since` is unknown here; \
             `limit`, `before` and `after` are known"
        );
        for (name, value) in [
            ("c2VjcmV0", ""),
            ("c2VjcmV0", "="),
            ("eyJhbGciOiJIUzI1NiJ9.eyJ1c2VyIjoiYW5uIn0.c2VjcmV0", "x"),
            ("Bearer c2VjcmV0", "x"),
        ] {
            let text = message(name, value);
            assert!(text.starts_with("a query parameter is unknown here"), "{text}");
        }
        for (name, value) in [("", ""), ("_", "1763756766123"), ("_cache", "")] {
            assert_eq!(parameter(name, value, &known), None, "{name}");
        }
        assert_eq!(
            parameter("x", "1", &[]).as_deref(),
            Some("the query parameter `x` is unknown here; none is known")
        );
        assert!(message(&"ü".repeat(40), "x").starts_with("a query parameter"));
    }
}
