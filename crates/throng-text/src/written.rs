//! Times, sizes, numbers and rates as they are written: the same in a flag and in a plan's file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A value that cannot be read: what is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// `written` is not what is `expected`.
    pub fn new(written: &str, expected: &str) -> Invalid {
        Invalid(format!("{written:?} is not {expected}"))
    }
}

/// A span of time: `25s`, `500ms`, `1.5h`, or `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A number of bytes: `64KiB`, or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

/// A number of something: `10000`, `10_000`, `10k`, `1M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub usize);

/// So many a second: `1000`, `10k`, `0.5`, `1000/s`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// One port, several, or ranges: `8080`, `8080,8090`, `8080-8095`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(pub Vec<u16>);

/// A unit and its nanoseconds; no unit stands after one that it ends in.
const TIMES: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("d", 86_400e9),
    ("h", 3_600e9),
    ("m", 60e9),
    ("s", 1e9),
];

/// A unit and its bytes, the largest first.
const SIZES: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Longer than anybody waits, and short enough for every sum of several.
const TIME_MAX_NS: f64 = 36_500.0 * 86_400e9;

impl Time {
    /// What a time is.
    pub const EXPECTED: &'static str =
        "a time, like \"25s\", \"500ms\", \"1.5s\", \"10m\", \"1h\" or 0";
}

impl FromStr for Time {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Time, Invalid> {
        if text == "0" {
            return Ok(Time(Duration::ZERO));
        }
        let unit = TIMES.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, ns)));
        let ns = unit.and_then(|(number, ns)| Some(decimal(number.trim_end())? * ns));
        ns.filter(|&ns| ns <= TIME_MAX_NS)
            .map(|ns| Time(Duration::from_secs_f64(ns / 1e9)))
            .ok_or_else(|| Invalid::new(text, Time::EXPECTED))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos() as f64;
        let by_size = ["d", "h", "m", "s", "ms", "us", "ns"];
        let of = |unit: &str| TIMES.iter().find(|(name, _)| *name == unit).map_or(1.0, |u| u.1);
        match by_size.into_iter().find(|unit| ns >= of(unit) && ns % of(unit) == 0.0) {
            Some(unit) => write!(f, "{}{unit}", ns / of(unit)),
            None => f.write_str("0"),
        }
    }
}

impl Size {
    /// What a size is.
    pub const EXPECTED: &'static str = "a size, like 128, \"64KiB\" or \"1MiB\"";
}

impl FromStr for Size {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Size, Invalid> {
        let unit = SIZES.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, bytes) = unit.unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        whole(number.trim_end())
            .and_then(|number| number.checked_mul(bytes))
            .map(Size)
            .ok_or_else(|| Invalid::new(text, Size::EXPECTED))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, bytes): &&(&str, usize)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        match SIZES.iter().find(whole) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Count {
    /// What a number is.
    pub const EXPECTED: &'static str = "a whole number, like 1000, 10k or 1M";
}

impl FromStr for Count {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Count, Invalid> {
        let (number, factor) = thousands(text);
        let exact = || whole(number)?.checked_mul(factor as usize);
        // `1.5M` is whole, `1.5` is not.
        let product = || {
            let product = decimal(number)? * factor;
            (product.fract() == 0.0 && product < 1e15).then_some(product as usize)
        };
        exact().or_else(product).map(Count).ok_or_else(|| Invalid::new(text, Count::EXPECTED))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Rate {
    /// What a rate is.
    pub const EXPECTED: &'static str = "so many a second, like 1000, 10k or 0.5";
}

impl FromStr for Rate {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Rate, Invalid> {
        let (number, factor) = thousands(text.strip_suffix("/s").unwrap_or(text));
        decimal(number)
            .map(|number| Rate(number * factor))
            .filter(|rate| rate.0 <= 1e12)
            .ok_or_else(|| Invalid::new(text, Rate::EXPECTED))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Ports {
    /// What ports are.
    pub const EXPECTED: &'static str =
        "a port, several or a range, like 8080, 8080,8090 or 8080-8095";
}

impl FromStr for Ports {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Ports, Invalid> {
        let mut ports = Vec::new();
        for each in text.split(',') {
            let (from, to) = range(each).ok_or_else(|| Invalid::new(each, Ports::EXPECTED))?;
            ports.extend(from..=to);
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(Ports(ports))
    }
}

/// `FROM-TO` or one port, from 1 on.
pub fn range(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|&port| port > 0);
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (port(from)?, port(to)?);
    (from <= to).then_some((from, to))
}

fn thousands(text: &str) -> (&str, f64) {
    let factors = [('k', 1e3), ('K', 1e3), ('M', 1e6)];
    let found = factors.iter().find_map(|(unit, by)| Some((text.strip_suffix(*unit)?, *by)));
    found.unwrap_or((text, 1.0))
}

/// Digits, perhaps in groups as `10_000`.
fn whole(text: &str) -> Option<usize> {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    is_number.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// Digits, perhaps with a fraction. No sign, no exponent, no names of numbers.
pub fn decimal(text: &str) -> Option<f64> {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"._".contains(&byte));
    is_number.then(|| text.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_times() {
        for (text, ms, written) in [
            ("0", 0.0, "0"),
            ("25s", 25e3, "25s"),
            ("250us", 0.25, "250us"),
            ("1.5s", 1500.0, "1500ms"),
            ("90s", 90e3, "90s"),
            ("10m", 600e3, "10m"),
            ("24h", 86_400e3, "1d"),
            ("5 ms", 5.0, "5ms"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.0.as_secs_f64() * 1e3, ms, "{text}");
            assert_eq!(time.to_string(), written);
            assert_eq!(written.parse(), Ok(time));
        }
        for text in ["", "s", "5", "-1s", "1m30s", "5 parsecs", "9999999999999d", "infs", "1e3s"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }

    #[test]
    fn reads_and_writes_sizes() {
        for (text, bytes, written) in
            [("0", 0, "0"), ("128", 128, "128"), ("1KiB", 1024, "1KiB"), ("100B", 100, "100")]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, written));
        }
        for text in ["", "KiB", "1.5KiB", "1KB", "-1", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn reads_numbers_and_rates() {
        for (text, number) in
            [("7", 7), ("10_000", 10_000), ("10k", 10_000), ("1M", 1_000_000), ("1.5M", 1_500_000)]
        {
            assert_eq!(text.parse(), Ok(Count(number)), "{text}");
        }
        for text in ["", "k", "1.5", "-1", "1e6", "0x10", "1.0005k ", "nan"] {
            assert!(text.parse::<Count>().is_err(), "{text}");
        }
        for (text, rate) in [("0.5", 0.5), ("10k", 10e3), ("1000/s", 1000.0), ("2k/s", 2e3)] {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
        for text in ["", "inf", "NaN", "-3", "1/m"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn reads_ports() {
        assert_eq!("8080".parse(), Ok(Ports(vec![8080])));
        assert_eq!("81,80-82".parse(), Ok(Ports(vec![80, 81, 82])));
        for text in ["", "0", "70000", "82-80", "80-", "a", "80,,81"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }
}
