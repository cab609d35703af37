//! Explains TOML syntax errors.
//!
//! The parser says what it expected at a byte (`invalid float, expected nothing`). The usual cause
//! is a missing quotation mark, so this module examines the line again and says what to write.

/// The byte offset of the error in `text`, and a message of one line.
///
/// `place` and `message` come from the parser, and are the fallback if the line explains nothing.
pub fn explain(text: &str, place: usize, message: &str) -> (usize, String) {
    let place = text.floor_char_boundary(place);
    let start = text[..place].rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    match explain_line(line, message) {
        Some((column, message)) => (start + column, message),
        None => {
            let message = message.lines().collect::<Vec<_>>().join(", ");
            (place, format!("this is not TOML: {message}"))
        }
    }
}

/// The column of the error in `line`, in bytes, and the message; `None` if nothing is recognised.
fn explain_line(line: &str, message: &str) -> Option<(usize, String)> {
    let indent = line.len() - line.trim_start().len();
    let trimmed = without_comment(line).trim();
    let is_twice = message.contains("duplicate key");
    if trimmed.starts_with('[') && is_twice {
        return Some((indent, format!("{trimmed} stands here a second time; join the two tables")));
    }
    // An unterminated multi-line string starts on another line.
    if message.contains("multi-line") {
        return None;
    }
    if let Some(name) = trimmed.strip_prefix('[') {
        let name = name.trim_matches(['[', ' ']);
        let example =
            if trimmed.starts_with("[[") { format!("[[{name}]]") } else { format!("[{name}]") };
        return (!trimmed.contains(']'))
            .then(|| (indent, format!("the name of the table is not closed; write {example}")));
    }
    let Some((key, value)) = trimmed.split_once('=') else {
        return is_bare(trimmed.split([':', ' ']).next()?).then(|| (indent, no_pair(trimmed)));
    };
    let key = key.trim();
    if is_twice {
        return Some((indent, format!("`{key}` is set a second time; remove one of the two")));
    }
    let at_value = line.find('=')? + 1;
    let at_value = at_value + (line[at_value..].len() - line[at_value..].trim_start().len());
    match value.trim() {
        _ if key.is_empty() => Some((indent, "there is no key before the `=`".to_owned())),
        _ if !is_key(key) => {
            let rule = "a key is letters, digits, `-` and `_`";
            Some((indent, format!("{key:?} is not a key: {rule}")))
        }
        "" => Some((at_value.min(line.len()), format!("`{key}` has no value"))),
        value if value.starts_with(['[', '{']) || value.starts_with("\"\"\"") => None,
        value if value.starts_with(['"', '\'']) => {
            let is_open = !is_closed(value);
            is_open.then(|| {
                let message = format!("the value of `{key}` has no closing quotation mark");
                (at_value, message)
            })
        }
        value => {
            let mark = if value.contains('"') { '\'' } else { '"' };
            let message =
                format!("the value of `{key}` needs quotation marks: {key} = {mark}{value}{mark}");
            Some((at_value, message))
        }
    }
}

fn no_pair(line: &str) -> String {
    match line.split_once(':') {
        Some((key, value)) if is_bare(key.trim()) => {
            format!("TOML writes `=` between key and value: {} = {}", key.trim(), value.trim())
        }
        _ => "this line is neither `key = value` nor a [table]".to_owned(),
    }
}

/// The line up to a `#` that is not inside a string.
fn without_comment(line: &str) -> &str {
    let mut open = None;
    for (at, letter) in line.char_indices() {
        match (open, letter) {
            (None, '#') => return &line[..at],
            (None, '"' | '\'') => open = Some(letter),
            (Some(mark), _) if mark == letter => open = None,
            _ => {}
        }
    }
    line
}

/// True if a value that starts with a quotation mark also ends with it.
fn is_closed(value: &str) -> bool {
    let mut letters = value.chars();
    let mark = letters.next();
    let mut is_escaped = false;
    for letter in letters {
        if !is_escaped && Some(letter) == mark {
            return true;
        }
        is_escaped = mark == Some('"') && letter == '\\' && !is_escaped;
    }
    false
}

fn is_bare(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
}

/// True if `key` consists of bare or quoted words, separated by dots.
fn is_key(key: &str) -> bool {
    key.contains(['"', '\'']) || key.split('.').all(|word| is_bare(word.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_mistakes_are_explained() {
        for (text, column, expected) in [
            (
                "listen = 127.0.0.1:80",
                9,
                "the value of `listen` needs quotation marks: listen = \"127.0.0.1:80\"",
            ),
            (
                "  heartbeat=25s # often",
                12,
                "the value of `heartbeat` needs quotation marks: heartbeat = \"25s\"",
            ),
            ("a.b = x \"y\"", 6, "the value of `a.b` needs quotation marks: a.b = 'x \"y\"'"),
            ("log = \"info", 6, "the value of `log` has no closing quotation mark"),
            ("log = 'a\\' # '", 6, "this is not TOML: m"),
            ("log =", 5, "`log` has no value"),
            ("log = # none", 6, "`log` has no value"),
            ("= 5", 0, "there is no key before the `=`"),
            ("ä = 5", 0, "\"ä\" is not a key: a key is letters, digits, `-` and `_`"),
            ("[history", 0, "the name of the table is not closed; write [history]"),
            ("[[channels", 0, "the name of the table is not closed; write [[channels]]"),
            ("listen: 'a'", 0, "TOML writes `=` between key and value: listen = 'a'"),
            ("this is not toml", 0, "this line is neither `key = value` nor a [table]"),
            ("a = [1, x]", 4, "this is not TOML: m"),
            ("", 0, "this is not TOML: m"),
        ] {
            let (found, message) = explain(text, column, "m");
            assert_eq!((found, message.as_str()), (column, expected), "{text}");
            let before = "first = 1\n";
            let (found, _) = explain(&format!("{before}{text}\nlast = 2"), column + 10, "m");
            assert_eq!(found, column + before.len(), "{text} on a second line");
        }
        for (text, message, expected) in [
            ("log = 1", "duplicate key", "`log` is set a second time; remove one of the two"),
            (
                "[history]",
                "duplicate key",
                "[history] stands here a second time; join the two tables",
            ),
            (
                "x",
                "invalid multi-line basic string",
                "this is not TOML: invalid multi-line basic string",
            ),
        ] {
            assert_eq!(explain(text, 0, message).1, expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn messages_have_one_line(text: String, place in 0..100_usize, from in "[a-z\n]{0,9}") {
            let (place, message) = explain(&text, place.min(text.len()), &from);
            assert!(place <= text.len() && !message.contains('\n'));
        }
    }
}
