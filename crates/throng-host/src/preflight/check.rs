//! One thing that was looked at.

use std::fmt;

use crate::sysctl;

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// There is enough.
    Ok,
    /// It could not be read. That is never taken for enough.
    Unknown,
    /// The connections are possible without, but slower, or at a risk.
    Should,
    /// Without it so many connections are not possible.
    Must,
}

impl Verdict {
    /// The word for it, the same in all outputs.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Should => "should",
            Verdict::Must => "must",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A check and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The kernel setting's name, or a word for what is none: `descriptors`, `memory`.
    pub name: &'static str,
    /// What is here, in words; `None` if it could not be read.
    pub found: Option<String>,
    /// What is needed, in words.
    pub needed: String,
    /// Whether that is enough.
    pub verdict: Verdict,
    /// Why it matters, in a few words.
    pub why: String,
    /// How many connections it allows, if it is a hard limit.
    pub limit: Option<Limit>,
    /// The kernel setting, if it is one that can be changed.
    pub setting: Option<Setting>,
    /// What a person can do where no kernel setting helps.
    pub by_hand: Vec<String>,
}

/// A hard limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// So many connections are possible.
    pub allows: u64,
    /// What allows no more, in a few words.
    pub because: String,
}

/// A kernel setting as it is and as it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub found: String,
    /// What it has to be: never less than it is, and the same if that is enough.
    pub value: String,
}

impl Setting {
    /// Whether it has to be changed.
    pub fn is_short(&self) -> bool {
        self.found != self.value
    }

    /// The line that a person would type to change it.
    pub fn command(&self) -> String {
        sysctl::command(self.name, &self.value)
    }

    /// The line that undoes that.
    pub fn undo(&self) -> String {
        sysctl::command(self.name, &self.found)
    }
}

impl Check {
    /// A check that found enough, so far.
    pub(super) fn new(name: &'static str, why: impl Into<String>) -> Check {
        Check {
            name,
            found: None,
            needed: String::new(),
            verdict: Verdict::Unknown,
            why: why.into(),
            limit: None,
            setting: None,
            by_hand: Vec::new(),
        }
    }

    /// What is here and what is needed, in words, and what follows from comparing them.
    pub(super) fn judged(mut self, found: String, needed: String, verdict: Verdict) -> Check {
        self.found = Some(found);
        self.needed = needed;
        self.verdict = verdict;
        self
    }

    /// What would be needed of a thing that cannot be read.
    pub(super) fn unread(mut self, needed: String) -> Check {
        self.needed = needed;
        self
    }

    pub(super) fn limited(mut self, allows: u64, because: String) -> Check {
        self.limit = Some(Limit { allows, because });
        self
    }

    /// The check's own kernel setting, from what is here to what has to be.
    pub(super) fn set(mut self, found: impl ToString, value: impl ToString) -> Check {
        let (found, value) = (found.to_string(), value.to_string());
        self.setting = Some(Setting { name: self.name, found, value });
        self
    }

    pub(super) fn advised(mut self, advice: impl Into<String>) -> Check {
        self.by_hand.push(advice.into());
        self
    }

    /// The setting, if it has to be changed.
    pub fn change(&self) -> Option<&Setting> {
        self.setting.as_ref().filter(|setting| setting.is_short())
    }

    /// What would help, a line each: the command first.
    pub fn help(&self) -> Vec<String> {
        let command = self.change().map(Setting::command);
        command.into_iter().chain(self.by_hand.iter().cloned()).collect()
    }

    /// All of it in one line, with what would help at its end.
    pub fn sentence(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_with_what_helps() {
        let check = Check::new("net.core.somaxconn", "a queue")
            .judged("128".to_owned(), "4,096".to_owned(), Verdict::Should)
            .set(128, 4096);
        assert_eq!(
            check.sentence(),
            "net.core.somaxconn: 128 here, 4,096 needed (a queue): \
             sysctl -w net.core.somaxconn=4096"
        );
        let setting = check.change().expect("a change");
        assert_eq!(setting.undo(), "sysctl -w net.core.somaxconn=128");
        let enough = Check::new("x", "y").set(7, 7);
        assert_eq!((enough.change(), enough.help()), (None, Vec::new()));
        assert_eq!(enough.verdict, Verdict::Unknown);
    }
}
