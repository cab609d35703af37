//! What was tested: said before any figure, in every form of a report.

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, show};
use throng_units::format::counted;

/// What a run was about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subject {
    /// Where clients connect; `{i}`, `{stream}` and so on are as in the plan.
    pub target: String,
    /// How messages come.
    pub transport: String,
    /// What the target was made by.
    pub profile: String,
    /// The most clients there were to be.
    pub clients: u64,
    /// The command that began the run, if it was one; secrets of headers are left out.
    pub command: String,
    /// The plan as a file that `--plan` takes; secrets of headers are left out.
    pub plan: String,
}

impl Subject {
    /// Of a plan that no command is known of.
    pub fn of(plan: &Plan) -> Subject {
        Subject {
            target: plan.target.url.text().to_owned(),
            transport: plan.target.transport.to_string(),
            profile: plan.profile.name().to_owned(),
            clients: plan.clients_max() as u64,
            command: String::new(),
            plan: show::show(&plan.without_secrets()),
        }
    }

    /// Names and values, in the order in which they are told; nothing of a report that is older.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        if self.target.is_empty() {
            return Vec::new();
        }
        let mut rows = vec![
            ("target", self.target.clone()),
            ("transport", self.transport.clone()),
            ("profile", self.profile.clone()),
            ("clients", throng_units::format::count(self.clients)),
        ];
        if !self.command.is_empty() {
            rows.push(("command", self.command.clone()));
        }
        rows
    }

    /// In a few words.
    pub fn words(&self) -> String {
        format!(
            "{} over {} at {}",
            counted(self.clients, "client", "clients"),
            self.transport,
            self.target
        )
    }
}

/// A command line as it can be typed, without the secrets of its headers.
pub fn command_line(words: impl IntoIterator<Item = String>) -> String {
    let mut is_header = false;
    let shown = words.into_iter().map(|word| {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if is_header_flag(flag) => (Some(flag), value),
            _ => (None, word.as_str()),
        };
        let is_value = std::mem::replace(&mut is_header, is_header_flag(&word)) || flag.is_some();
        let value = match value.split_once(':') {
            Some((name, _)) if is_value && is_secret(name) => format!("{name}: {LEFT_OUT}"),
            _ => value.to_owned(),
        };
        flag.map_or_else(|| quoted(&value), |flag| format!("{flag}={}", quoted(&value)))
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Stands for the value of a secret.
pub const LEFT_OUT: &str = "(left out)";

/// Whether a header of this name has a value that is nobody else's business.
pub fn is_secret(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let parts = ["authorization", "cookie", "key", "token", "secret", "password"];
    parts.iter().any(|part| name.contains(part))
}

fn is_header_flag(word: &str) -> bool {
    matches!(word, "--header" | "--publish-header")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_typed_again_and_tells_no_secret() {
        let words = [
            "throng",
            "flood",
            "http://h/?a={i}",
            "--publish-header",
            "X-API-Key: abc",
            "--header=Authorization: Bearer abc",
            "--header",
            "Origin: http://a",
            "--assert",
            "it's < 5",
        ];
        assert_eq!(
            command_line(words.map(str::to_owned)),
            "throng flood 'http://h/?a={i}' --publish-header 'X-API-Key: (left out)' \
             --header='Authorization: (left out)' --header 'Origin: http://a' \
             --assert 'it'\\''s < 5'"
        );
    }

    #[test]
    fn a_report_from_before_tells_nothing() {
        assert!(Subject::default().rows().is_empty());
    }
}
