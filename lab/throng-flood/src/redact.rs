//! Secrets of plans and command lines, which reports must not contain.

/// A command line, quoted for a shell, with tokens and the values of secret headers redacted.
pub(crate) fn command_line(words: impl IntoIterator<Item = String>) -> String {
    let mut flag_before = None;
    let redacted = words.into_iter().map(|word| {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if SecretFlag::of(flag).is_some() => (Some(flag), value),
            _ => (None, word.as_str()),
        };
        let before = std::mem::replace(&mut flag_before, SecretFlag::of(&word));
        let value = match (flag.map_or(before, SecretFlag::of), value.split_once(':')) {
            (Some(SecretFlag::Header), Some((name, _))) if is_secret(name) => {
                format!("{name}: {REDACTED}")
            }
            (Some(SecretFlag::Token), _) => REDACTED.to_owned(),
            _ => value.to_owned(),
        };
        flag.map_or_else(|| quoted(&value), |flag| format!("{flag}={}", quoted(&value)))
    });
    redacted.collect::<Vec<_>>().join(" ")
}

/// Replaces the value of a secret.
pub(crate) const REDACTED: &str = "(left out)";

/// True if the value of a header with this name is a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let parts = ["authorization", "cookie", "key", "token", "secret", "password"];
    parts.iter().any(|part| name.contains(part))
}

/// A flag whose value may be a secret.
#[derive(Clone, Copy)]
enum SecretFlag {
    /// A header, secret if its name says so.
    Header,
    /// A token, always secret.
    Token,
}

impl SecretFlag {
    fn of(word: &str) -> Option<SecretFlag> {
        match word {
            "--header" | "--publish-header" => Some(SecretFlag::Header),
            "--token" => Some(SecretFlag::Token),
            _ => None,
        }
    }
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
