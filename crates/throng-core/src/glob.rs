//! Patterns of names, in which `*` stands for any text.

/// True if `text` matches `pattern`, in which `*` stands for any text.
///
/// Compares at most as many bytes as the product of both lengths: after a mismatch it goes back to
/// the last star only.
pub fn glob(pattern: &str, text: &str) -> bool {
    glob_around(pattern, "", "", text)
}

/// True if `text` matches `before`, then `literal`, then `after`. A `*` stands for any text in
/// `before` and `after`, and for itself in `literal`.
pub fn glob_around(before: &str, literal: &str, after: &str, text: &str) -> bool {
    let [before, literal, after] = [before, literal, after].map(str::as_bytes);
    let text = text.as_bytes();
    // The three parts are read where they are: joined, a `*` in `literal` would have to be escaped.
    let unit = |at: usize| -> Unit {
        if let Some(&byte) = before.get(at) {
            return Unit::of_pattern(byte);
        }
        let at = at - before.len();
        if let Some(&byte) = literal.get(at) {
            return Unit::Byte(byte);
        }
        after.get(at - literal.len()).map_or(Unit::End, |&byte| Unit::of_pattern(byte))
    };
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    while from < text.len() {
        match unit(at) {
            Unit::Star => {
                star = Some((at, from));
                at += 1;
            }
            Unit::Byte(byte) if byte == text[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                // Only the last star is retried: an earlier one cannot match where this one fails.
                let Some((star_at, star_from)) = star else { return false };
                at = star_at + 1;
                from = star_from + 1;
                star = Some((star_at, from));
            }
        }
    }
    while let Unit::Star = unit(at) {
        at += 1;
    }
    matches!(unit(at), Unit::End)
}

/// One position of a pattern.
enum Unit {
    /// A star, which stands for any text.
    Star,
    /// A byte that stands for itself.
    Byte(u8),
    End,
}

impl Unit {
    fn of_pattern(byte: u8) -> Unit {
        if byte == b'*' { Unit::Star } else { Unit::Byte(byte) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("chat:*", "chat:", true),
            ("chat:*", "chat:a:b", true),
            ("chat:*", "chats", false),
            ("*:log", "a:b:log", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("**a", "bbba", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_star_in_the_literal_stands_for_itself() {
        assert!(glob_around("rooms/", "*", "/x", "rooms/*/x"));
        assert!(!glob_around("rooms/", "*", "/x", "rooms/a/x"));
        assert!(glob_around("*/", "a*", "/*", "rooms/a*/x"));
        assert!(!glob_around("*/", "a*", "/*", "rooms/ab/x"));
        assert!(glob_around("", "**", "", "**"));
        assert!(!glob_around("", "**", "", "a"));
    }

    /// The definition: a star takes nothing, or one byte and then the rest.
    fn matches(pattern: &[(u8, bool)], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([(b'*', true), rest @ ..], _) => {
                matches(rest, text) || (!text.is_empty() && matches(pattern, &text[1..]))
            }
            ([(byte, _), rest @ ..], [first, others @ ..]) => {
                byte == first && matches(rest, others)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            before in "[ab*]{0,5}", literal in "[ab*]{0,3}", after in "[ab*]{0,5}",
            text in "[ab*]{0,10}",
        ) {
            let units = |part: &str, is_pattern| -> Vec<_> {
                part.bytes().map(|byte| (byte, is_pattern)).collect()
            };
            let pattern =
                [units(&before, true), units(&literal, false), units(&after, true)].concat();
            let expected = matches(&pattern, text.as_bytes());
            prop_assert_eq!(glob_around(&before, &literal, &after, &text), expected);
        }
    }
}
