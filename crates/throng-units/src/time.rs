//! Durations with units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Invalid;
use crate::number::{in_units, parts};

/// A duration: `25` and `25s` (seconds), `500ms`, `1.5h`, `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// Each unit in nanoseconds.
const UNITS: [(&str, u128); 11] = [
    ("", SECOND_NS),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND_NS),
    ("sec", SECOND_NS),
    ("m", 60 * SECOND_NS),
    ("min", 60 * SECOND_NS),
    ("h", 3_600 * SECOND_NS),
    ("d", DAY_NS),
];

/// The units that `Display` uses, longest first.
const DISPLAY_UNITS: [&str; 7] = ["d", "h", "m", "s", "ms", "us", "ns"];

const SECOND_NS: u128 = 1_000_000_000;
const DAY_NS: u128 = 86_400 * SECOND_NS;

/// A hundred years: longer than any timeout, and short enough that sums do not overflow.
const TIME_MAX_NS: u128 = 36_500 * DAY_NS;

impl Time {
    /// The accepted form, for error messages.
    pub const EXPECTED: &'static str = "a time, like \"25s\", \"500ms\", \"1.5h\", \"7d\" or 0";

    /// The number before the unit, and the unit in nanoseconds (`None` without a unit).
    pub fn parts(text: &str) -> Option<(f64, Option<f64>)> {
        parts(text, &UNITS)
    }
}

impl FromStr for Time {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Time, Invalid> {
        in_units(text, &UNITS)
            .filter(|&ns| ns <= TIME_MAX_NS)
            .and_then(|ns| u64::try_from(ns).ok())
            .map(|ns| Time(Duration::from_nanos(ns)))
            .ok_or_else(|| Invalid::new(text, Time::EXPECTED))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let is_whole = |(_, each): &(&str, u128)| ns >= *each && ns.is_multiple_of(*each);
        let of = |name: &&str| UNITS.iter().copied().find(|(unit, _)| unit == name);
        match DISPLAY_UNITS.iter().filter_map(of).find(is_whole) {
            Some((unit, each)) => write!(f, "{}{unit}", ns / each),
            None => f.write_str("0"),
        }
    }
}
