//! Spans of time, as [`throng_units::Time`] reads them, in whole milliseconds: nothing in
//! the server is timed more finely.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use throng_units as units;

use super::written::{Invalid, Written, written};

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
    const EXPECTED: &'static str = units::Time::EXPECTED;
}

impl FromStr for Time {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Time, Invalid> {
        let time = text.parse::<units::Time>()?.0;
        if !time.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(Invalid(format!("{text:?} is finer than a millisecond, the finest here")));
        }
        Ok(Time(time))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        units::Time(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_milliseconds() {
        for (text, ms) in [("0", 0), ("25", 25_000), ("1.5s", 1_500), ("250ms", 250)] {
            assert_eq!(text.parse::<Time>().unwrap().as_ms(), ms, "{text}");
        }
        for text in ["1.5ms", "10us", "1.0001"] {
            let error = text.parse::<Time>().unwrap_err().to_string();
            assert!(error.ends_with("is finer than a millisecond, the finest here"), "{error}");
        }
    }
}
