//! Secrets of plans and command lines, which reports must not contain.

/// Flags whose value may be a secret.
const SECRET_FLAGS: [&str; 3] = ["--token", "--header", "--publish-header"];

/// A command line, quoted for a shell, with tokens and the values of secret headers redacted.
pub(crate) fn command_line(words: impl IntoIterator<Item = String>) -> String {
    let mut before = String::new();
    let shown = words.into_iter().map(|word| {
        let flag = std::mem::replace(&mut before, word.clone());
        match word.split_once('=').filter(|(flag, _)| SECRET_FLAGS.contains(flag)) {
            Some((flag, value)) => format!("{flag}={}", quoted(&redacted(flag, value))),
            None => quoted(&redacted(&flag, &word)),
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The value of a flag: a token is always secret, a header if its name says so.
fn redacted(flag: &str, value: &str) -> String {
    match (flag, value.split_once(':')) {
        ("--token", _) => REDACTED.to_owned(),
        ("--header" | "--publish-header", Some((name, _))) if is_secret(name) => {
            format!("{name}: {REDACTED}")
        }
        _ => value.to_owned(),
    }
}

/// Replaces the value of a secret.
pub(crate) const REDACTED: &str = "(left out)";

/// True if the value of a header with this name is a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let parts = ["authorization", "cookie", "key", "token", "secret", "password"];
    parts.iter().any(|part| name.contains(part))
}

/// The word, quoted for a shell if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_and_has_no_secrets() {
        let words = [
            "throng",
            "flood",
            "http://h/?a={i}",
            "--publish-header",
            "X-API-Key: abc",
            "--header=Authorization: Bearer abc",
            "--header",
            "Origin: http://a",
            "--token",
            "abc",
            "--token=a.b.c",
            "--token-user",
            "ann",
            "--assert",
            "it's < 5",
        ];
        assert_eq!(
            command_line(words.map(str::to_owned)),
            "throng flood 'http://h/?a={i}' --publish-header 'X-API-Key: (left out)' \
             --header='Authorization: (left out)' --header 'Origin: http://a' \
             --token '(left out)' --token='(left out)' --token-user ann --assert 'it'\\''s < 5'"
        );
    }
}
