//! Numbers and rates.

use std::fmt;
use std::str::FromStr;

use crate::Invalid;
use crate::number::{in_units, parts};

/// A whole number: `10000`, `10_000`, `10,000`, `10k`, `1.5M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub usize);

/// A number per second: `1000`, `10k`, `0.5`, `1000/s`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

const UNITS: [(&str, u128); 4] = [("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];

/// Above what any machine sends, and small enough that sums of `f64` stay exact.
const RATE_MAX: f64 = 1e12;

impl Count {
    /// The accepted form, for error messages.
    pub const EXPECTED: &'static str = "a whole number, like 1000, 10k or 1.5M";

    /// The shortest notation: `1M` for a million.
    pub fn short(self) -> String {
        let is_whole =
            |(_, each): &&(&str, u128)| self.0 > 0 && (self.0 as u128).is_multiple_of(*each);
        match UNITS.iter().rev().find(is_whole) {
            Some((unit, each)) => format!("{}{unit}", self.0 as u128 / each),
            None => self.to_string(),
        }
    }

    /// The number before the unit, and the unit's factor (`None` without a unit).
    pub fn parts(text: &str) -> Option<(f64, Option<f64>)> {
        parts(text, &UNITS)
    }
}

impl FromStr for Count {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Count, Invalid> {
        in_units(text, &UNITS)
            .and_then(|number| usize::try_from(number).ok())
            .map(Count)
            .ok_or_else(|| Invalid::new(text, Count::EXPECTED))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Rate {
    /// The accepted form, for error messages.
    pub const EXPECTED: &'static str = "a number per second, like 1000, 10k or 0.5";
}

impl FromStr for Rate {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Rate, Invalid> {
        Count::parts(text.trim().strip_suffix("/s").unwrap_or(text))
            .map(|(number, unit)| Rate(number * unit.unwrap_or(1.0)))
            .filter(|rate| rate.0 <= RATE_MAX)
            .ok_or_else(|| Invalid::new(text, Rate::EXPECTED))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
