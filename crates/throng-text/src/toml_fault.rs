//! What is wrong with text that is not TOML, and what to do about it.
//!
//! A parser says what it expected at a byte (`invalid float, expected nothing`). People want to
//! know what they forgot: most often the quotation marks around a value. So the line is looked at
//! again.

/// Where the mistake is, in bytes from the start of `text`, and one sentence about it.
///
/// `place` and `message` are those of the parser; they stand where the line does not tell more.
pub fn explain(text: &str, place: usize, message: &str) -> (usize, String) {
    let place = text.floor_char_boundary(place);
    let start = text[..place].rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    match of_line(line, message) {
        Some((column, sentence)) => (start + column, sentence),
        None => {
            let message = message.lines().collect::<Vec<_>>().join(", ");
            (place, format!("this is not TOML: {message}"))
        }
    }
}

/// The byte of the line that the mistake is at, and the sentence.
fn of_line(line: &str, message: &str) -> Option<(usize, String)> {
    let indent = line.len() - line.trim_start().len();
    let trimmed = without_comment(line).trim();
    let is_twice = message.contains("duplicate key");
    if trimmed.starts_with('[') && is_twice {
        return Some((indent, format!("{trimmed} stands here a second time; join the two tables")));
    }
    // The end of a text of several lines is missing: what it began with is on another line.
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
                let sentence = format!("the value of `{key}` has no closing quotation mark");
                (at_value, sentence)
            })
        }
        value => {
            let mark = if value.contains('"') { '\'' } else { '"' };
            let sentence =
                format!("the value of `{key}` needs quotation marks: {key} = {mark}{value}{mark}");
            Some((at_value, sentence))
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

/// The line up to a `#` that is in no text.
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

/// Whether a text that begins with a quotation mark has a second one.
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

/// Bare or quoted words, with dots between them.
fn is_key(key: &str) -> bool {
    key.contains(['"', '\'']) || key.split('.').all(|word| is_bare(word.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_forgotten() {
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
            let (found, sentence) = explain(text, column, "m");
            assert_eq!((found, sentence.as_str()), (column, expected), "{text}");
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
        fn any_text_gets_a_sentence(text: String, place in 0..100_usize, said in "[a-z\n]{0,9}") {
            let (place, sentence) = explain(&text, place.min(text.len()), &said);
            assert!(place <= text.len() && !sentence.contains('\n'));
        }
    }
}
