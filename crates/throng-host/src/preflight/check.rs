//! A check: one property of the machine, compared with what is needed.

use std::fmt;

use throng_units::format::count;

use crate::sysctl;

/// The kernel writes "no limit" as a number near the maximum of its type.
const UNLIMITED_FROM: u64 = 1 << 60;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckVerdict {
    Ok,
    /// The value could not be read, which never counts as enough.
    Unknown,
    /// Too low: the connections are possible, but slow or at risk.
    Should,
    /// Too low: the connections are not possible.
    Must,
}

impl CheckVerdict {
    /// The name of the verdict in all outputs.
    pub fn word(self) -> &'static str {
        match self {
            CheckVerdict::Ok => "ok",
            CheckVerdict::Unknown => "unknown",
            CheckVerdict::Should => "should",
            CheckVerdict::Must => "must",
        }
    }
}

impl fmt::Display for CheckVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// One property of the machine, compared with the demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the kernel setting, or a word like `descriptors` or `memory`.
    pub name: &'static str,
    /// The machine's value as text; `None` if it could not be read.
    pub found: Option<String>,
    /// The needed value as text.
    pub needed: String,
    pub verdict: CheckVerdict,
    /// Why it matters, as a short phrase.
    pub why: String,
    /// The number of connections it allows, if it is a hard limit.
    pub limit: Option<Limit>,
    /// The kernel setting to change, if there is one.
    pub setting: Option<Setting>,
    /// Advice where no kernel setting helps.
    pub by_hand: Vec<String>,
}

/// The hard limit that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The number of connections that are possible.
    pub allows: u64,
    /// The reason, as a short phrase.
    pub because: String,
}

/// A kernel setting, its current value and the required one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub found: String,
    /// The required value: at least the current one, and equal to it if that is enough.
    pub value: String,
}

impl Setting {
    /// True if it must be changed.
    pub fn is_short(&self) -> bool {
        self.found != self.value
    }

    /// The command that changes it.
    pub fn command(&self) -> String {
        sysctl::command(self.name, &self.value)
    }

    /// The command that restores the current value.
    pub fn undo(&self) -> String {
        sysctl::command(self.name, &self.found)
    }
}

impl Check {
    /// A check without an outcome yet.
    pub(super) fn new(name: &'static str, why: impl Into<String>) -> Check {
        Check {
            name,
            found: None,
            needed: String::new(),
            verdict: CheckVerdict::Unknown,
            why: why.into(),
            limit: None,
            setting: None,
            by_hand: Vec::new(),
        }
    }

    /// Sets the value found, the value needed, and the verdict.
    pub(super) fn judged(mut self, found: String, needed: String, verdict: CheckVerdict) -> Check {
        self.found = Some(found);
        self.needed = needed;
        self.verdict = verdict;
        self
    }

    /// Sets the needed value where the current one cannot be read.
    pub(super) fn unread(mut self, needed: String) -> Check {
        self.needed = needed;
        self
    }

    pub(super) fn limited(mut self, allows: u64, because: String) -> Check {
        self.limit = Some(Limit { allows, because });
        self
    }

    /// Sets the kernel setting of the check's name, with its current and required value.
    pub(super) fn set(mut self, found: impl ToString, value: impl ToString) -> Check {
        let (found, value) = (found.to_string(), value.to_string());
        self.setting = Some(Setting { name: self.name, found, value });
        self
    }

    pub(super) fn advised(mut self, advice: impl Into<String>) -> Check {
        self.by_hand.push(advice.into());
        self
    }

    /// The setting, if it must be changed.
    pub fn change(&self) -> Option<&Setting> {
        self.setting.as_ref().filter(|setting| setting.is_short())
    }

    /// Remedies, one line each, the command first.
    pub fn help(&self) -> Vec<String> {
        let command = self.change().map(Setting::command);
        command.into_iter().chain(self.by_hand.iter().cloned()).collect()
    }

    /// The check in one line, with what helps at the end.
    pub fn message(&self) -> String {
        let found = self.found.as_deref().unwrap_or("unknown");
        let mut text = format!("{}: {found} here, {} needed", self.name, self.needed);
        text.push_str(&format!(" ({})", self.why));
        let help = self.help().join("; ");
        if !help.is_empty() {
            text.push_str(": ");
            text.push_str(&help);
        }
        text
    }
}

/// Formats a number for display; [`UNLIMITED_FROM`] and more is "no limit".
pub(super) fn number(number: u64) -> String {
    if number >= UNLIMITED_FROM { "no limit".to_owned() } else { count(number) }
}

/// Adds an eighth as a reserve for other programs on the machine.
pub(super) fn with_reserve(number: u64) -> u64 {
    number.saturating_add(number / 8)
}

/// `severity` if the value is too low, otherwise [`CheckVerdict::Ok`].
pub(super) fn verdict(is_short: bool, severity: CheckVerdict) -> CheckVerdict {
    if is_short { severity } else { CheckVerdict::Ok }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_with_what_helps() {
        let check = Check::new("net.core.somaxconn", "a queue")
            .judged("128".to_owned(), "4,096".to_owned(), CheckVerdict::Should)
            .set(128, 4096);
        assert_eq!(
            check.message(),
            "net.core.somaxconn: 128 here, 4,096 needed (a queue): \
             sysctl -w net.core.somaxconn=4096"
        );
        let setting = check.change().expect("a change");
        assert_eq!(setting.undo(), "sysctl -w net.core.somaxconn=128");
        let enough = Check::new("x", "y").set(7, 7);
        assert_eq!((enough.change(), enough.help()), (None, Vec::new()));
        assert_eq!(enough.verdict, CheckVerdict::Unknown);
    }
}
