//! Spans of time: `25s`, `500ms`, or `0`, in whole milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use toml::Value;

use super::written::{Invalid, Written, quoted, written};

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

written!(Time);

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
        let time = text.parse::<throng_text::written::Time>().ok();
        // Nothing in the server is timed more finely.
        time.filter(|time| time.0.subsec_nanos().is_multiple_of(1_000_000))
            .map(|time| Time(time.0))
            .ok_or_else(|| Invalid::not::<Time>(quoted(text)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        throng_text::written::Time(self.0).fmt(f)
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
        assert_eq!("1.5s".parse(), Ok(Time(Duration::from_millis(1500))));
        assert_eq!(Time::from_value(&Value::Integer(0)), Ok(Time(Duration::ZERO)));
    }

    #[test]
    fn refuses_what_is_not_a_time() {
        for text in
            ["", "s", "5", "1.5ms", "10us", "-1s", "1m30s", "5 parsecs", "99999999999999999d"]
        {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        assert!(Time::from_value(&Value::Integer(5)).is_err(), "seconds or milliseconds?");
    }
}
