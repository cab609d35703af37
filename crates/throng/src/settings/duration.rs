//! Spans of time: `25s`, `500ms`, or `0`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use toml::Value;

use super::written::{Invalid, Written, quoted, written};

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

written!(Time);

/// The unit and its milliseconds, the largest first; but `ms` before `m` and `s`, for `ms` ends in
/// `s`.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];

/// Longer than anybody waits, and short enough for every sum of two.
const DAYS_MAX: u64 = 36_500;

impl Time {
    /// Whole milliseconds.
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Written for Time {
    const NAME: &'static str = "TIME";
    const EXPECTED: &'static str = "a time, like \"25s\", \"500ms\", \"10m\", \"1h\", \"7d\" or 0";

    fn from_value(value: &Value) -> Result<Time, Invalid> {
        match value {
            // Any other number would leave open what it counts.
            Value::Integer(0) => Ok(Time(Duration::ZERO)),
            Value::String(text) => text.parse(),
            other => Err(Invalid::not::<Time>(other)),
        }
    }
}

impl FromStr for Time {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Time, Invalid> {
        if text == "0" {
            return Ok(Time(Duration::ZERO));
        }
        let read = || {
            let (digits, unit_ms) =
                UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))?;
            let digits = digits.trim_end();
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let ms = digits.parse::<u64>().ok()?.checked_mul(*unit_ms)?;
            (ms <= DAYS_MAX * 86_400_000).then(|| Time(Duration::from_millis(ms)))
        };
        read().ok_or_else(|| Invalid::not::<Time>(quoted(text)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.as_ms();
        let whole = |&&(_, unit_ms): &&(&str, u64)| unit_ms > 1 && ms.is_multiple_of(unit_ms);
        match UNITS.iter().find(whole) {
            _ if ms == 0 => f.write_str("0"),
            Some((unit, unit_ms)) => write!(f, "{}{unit}", ms / unit_ms),
            None => write!(f, "{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_times() {
        for (text, ms) in [
            ("0", 0),
            ("250ms", 250),
            ("25s", 25_000),
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.as_ms(), ms);
            assert_eq!(time.to_string(), text);
        }
        assert_eq!("24h".parse::<Time>().unwrap().to_string(), "1d");
        assert_eq!("0s".parse(), Ok(Time(Duration::ZERO)));
        assert_eq!(Time::from_value(&Value::Integer(0)), Ok(Time(Duration::ZERO)));
    }

    #[test]
    fn refuses_what_is_not_a_time() {
        for text in ["", "s", "5", "1.5s", "-1s", "1m30s", "5 parsecs", "99999999999999999d"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        assert!(Time::from_value(&Value::Integer(5)).is_err(), "seconds or milliseconds?");
    }
}
