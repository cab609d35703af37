//! Units of measured values.

use serde::{Deserialize, Serialize};
use throng_units::format;

/// The unit of a measured value. Its name in JSON is what the script of a page expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    #[default]
    Count,
    PerSecond,
    Bytes,
    Milliseconds,
    /// Processor seconds per second.
    Cores,
    /// Seconds since the start, shown as a clock.
    #[serde(rename = "seconds")]
    Clock,
    /// A fraction from 0 to 1.
    Share,
}

impl Unit {
    /// The unit with this name in JSON.
    pub fn named(name: &str) -> Option<Unit> {
        serde_json::from_value(name.into()).ok()
    }

    /// The value with its unit, as in a table.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Count if value.fract() == 0.0 && value >= 0.0 => format::count(value as u64),
            Unit::Count => format::decimal(value),
            Unit::PerSecond => format::rate(value),
            Unit::Bytes => format::bytes(value),
            Unit::Milliseconds => format::milliseconds(value),
            Unit::Cores => format::cores(value),
            Unit::Clock => format::clock(value),
            // Two decimals: more would be noise.
            Unit::Share => format!("{} %", (value * 1e4).round() / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_unit() {
        for (unit, value, text) in [
            (Unit::Count, 7.0, "7"),
            (Unit::Count, 7.25, "7.25"),
            (Unit::PerSecond, 1_500.0, "1,500/s"),
            (Unit::Bytes, 2048.0, "2.00 KiB"),
            (Unit::Milliseconds, 0.5, "500 µs"),
            (Unit::Clock, 62.0, "1:02"),
            (Unit::Share, 0.025, "2.5 %"),
        ] {
            assert_eq!(unit.show(value), text);
        }
        assert_eq!(Unit::named("per_second"), Some(Unit::PerSecond));
        assert_eq!((Unit::named("seconds"), Unit::named("parsecs")), (Some(Unit::Clock), None));
    }
}
