//! A row of the table of settings: its names, its range, and how a running server takes over a new
//! value.

use throng_units::Value;

use super::table::Settings;

/// One setting, or the tables of one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Without its two hyphens; empty for a list.
    pub(super) flag: &'static str,
    /// The path of fields: `history.total_bytes`.
    pub(super) path: &'static str,
    pub(crate) change: Change,
    /// The least and the largest value, as texts; empty for none.
    pub(super) min: &'static str,
    pub(super) max: &'static str,
    /// Words for 0, if it is possible although it is less than `min`.
    pub(super) zero: &'static str,
    /// A time is a multiple of this.
    pub(super) step: &'static str,
    /// Ends the error for a value out of range.
    pub(super) why: &'static str,
}

/// How a running server takes over a new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Restart,
    /// By an upgrade.
    Upgrade,
    /// By an upgrade, unless fewer workers follow from it.
    UpgradeOfWorkers,
    /// By an upgrade, unless it ends the listener and thus its connections.
    UpgradeOfListener,
    Reload,
    /// By a reload, unless access begins or ceases to be controlled.
    ReloadAccess,
    /// By a reload, unless there are token keys for the first time or no longer.
    ReloadTokenKeys,
    /// By a reload, unless there are server keys for the first time or no longer.
    ReloadServerKeys,
    /// By a reload, if there is TLS before and after it.
    ReloadCertificates,
    /// By a reload, unless a limit begins or ends: clients are counted only where one is set.
    ReloadLimits,
}

impl Row {
    pub(super) const fn new(flag: &'static str, path: &'static str, change: Change) -> Row {
        Row { flag, path, change, min: "", max: "", zero: "", step: "1ms", why: "" }
    }

    /// The key in the file; a key of a table has the table's name and a dot before it.
    pub(super) fn key(&self) -> String {
        self.path.replace('_', "-")
    }

    /// Why the setting cannot have this value.
    pub(super) fn fault<T: Value>(&self, value: &T) -> Option<String> {
        self.fault_at(&self.key(), value)
    }

    /// As [`Row::fault`], for a value at `key` that has the range of this setting.
    pub(super) fn fault_at<T: Value>(&self, key: &str, value: &T) -> Option<String> {
        let number = value.magnitude()?;
        let of = |text: &str| text.parse::<T>().ok()?.magnitude();
        if of(self.step).is_some_and(|step| !number.is_multiple_of(step)) {
            let unit = if self.step == "1s" { "seconds" } else { "milliseconds" };
            return Some(format!("{key} must be in whole {unit}, not {value}"));
        }
        let is_possible = of(self.min).is_none_or(|min| number >= min)
            && of(self.max).is_none_or(|max| number <= max);
        if is_possible || (number == 0 && !self.zero.is_empty()) {
            return None;
        }
        let zero = match self.zero {
            "" => String::new(),
            zero => format!(", or 0 for {zero}"),
        };
        Some(format!("{key} must be {}{zero}, not {value}{}", self.range(), self.why))
    }

    fn range(&self) -> String {
        match (self.min, self.max) {
            (min, "") => format!("at least {min}"),
            ("", max) => format!("at most {max}"),
            (min, max) => format!("between {min} and {max}"),
        }
    }
}

/// The row with this key.
pub(crate) fn row(key: &str) -> Option<&'static Row> {
    Settings::rows().into_iter().find(|row| row.key() == key)
}
