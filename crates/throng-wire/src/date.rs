//! The header `Date` (RFC 9110, section 6.6.1).

use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second of the year 9999: the format has four digits for a year.
const SECOND_MAX: u64 = 253_402_300_799;

/// The value of a `Date` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date([u8; 29]);

impl Date {
    /// The date of a time in milliseconds since 1970.
    pub fn at_ms(unix_ms: u64) -> Date {
        let second = (unix_ms / 1000).min(SECOND_MAX);
        let text = HttpDate::from(UNIX_EPOCH + Duration::from_secs(second)).to_string();
        let mut date = [b' '; 29];
        for (to, from) in date.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        Date(date)
    }

    /// The bytes of the header's value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The current date, formatted once per second.
#[derive(Debug, Clone, Copy)]
pub struct CurrentDate {
    second: u64,
    date: Date,
}

impl Default for CurrentDate {
    fn default() -> CurrentDate {
        CurrentDate { second: 0, date: Date::at_ms(0) }
    }
}

impl CurrentDate {
    /// Sets the current time, in milliseconds since 1970.
    pub fn set_ms(&mut self, unix_ms: u64) {
        let second = unix_ms / 1000;
        if second != self.second {
            *self = CurrentDate { second, date: Date::at_ms(unix_ms) };
        }
    }

    /// The current date.
    pub fn get(&self) -> Date {
        self.date
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        for (unix_ms, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(str::from_utf8(Date::at_ms(unix_ms).as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn the_date_follows_the_clock_both_ways() {
        let mut current = CurrentDate::default();
        for unix_ms in [0, 999, 1000, 784_111_777_000, 784_111_777_999, 5000] {
            current.set_ms(unix_ms);
            assert_eq!(current.get(), Date::at_ms(unix_ms));
        }
    }
}
