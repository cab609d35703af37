//! How a setting's value is written: the same text in a flag, a variable and the file.
//!
//! The grammar is that of [`throng_units`], as in every other command. Every type of value
//! implements [`Written`]; `written!` derives serde's traits from it, so that a refused value is
//! refused with the same sentence wherever it stands.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use throng_core::LagPolicy;
use throng_edge::settings::IoUring;
use throng_units as units;
use toml::Value;

pub use units::Invalid;

/// A type of value that a setting can have.
pub trait Written: Sized + FromStr<Err = Invalid> + fmt::Display {
    /// Stands for the value in help texts.
    const NAME: &'static str;

    /// What it is and how it is written; the end of a sentence.
    const EXPECTED: &'static str;

    /// How many values follow the flag: none where the flag alone means yes.
    const ARGUMENTS: RangeInclusive<usize> = 1..=1;

    /// Reads it from the file: a text, or what TOML has words of its own for, as a flag would.
    fn from_value(value: &Value) -> Result<Self, Invalid> {
        match value {
            Value::String(text) => text.parse(),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => value.to_string().parse(),
            other => Err(Invalid(format!("{other} is not {}", Self::EXPECTED))),
        }
    }

    /// Writes it to a file.
    fn to_value(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// Derives `Serialize` and `Deserialize` from [`Written`].
macro_rules! written {
    ($type:ty) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let value = toml::Value::deserialize(from)?;
                <$type as $crate::settings::written::Written>::from_value(&value)
                    .map_err(serde::de::Error::custom)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::settings::written::Written::to_value(self).serialize(to)
            }
        }
    };
}
pub(super) use written;

/// Declares a value whose grammar is that of a type of [`throng_units`].
macro_rules! shared {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        written!($name);

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$name, Invalid> {
                text.parse::<units::$name>().map(|value| $name(value.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                units::$name(self.0).fmt(f)
            }
        }
    };
}

shared! {
    /// An address and a port.
    Address(SocketAddr)
}

impl Written for Address {
    const NAME: &'static str = "ADDRESS";
    const EXPECTED: &'static str = units::Address::EXPECTED;
}

shared! {
    /// A whole number of something.
    Count(usize)
}

impl Written for Count {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = units::Count::EXPECTED;

    fn to_value(&self) -> Value {
        Value::Integer(i64::try_from(self.0).unwrap_or(i64::MAX))
    }
}

shared! {
    /// A number of bytes.
    Size(usize)
}

impl Written for Size {
    const NAME: &'static str = "SIZE";
    const EXPECTED: &'static str = units::Size::EXPECTED;
}

shared! {
    /// Yes or no. The flag alone means yes.
    Switch(bool)
}

impl Written for Switch {
    const NAME: &'static str = "true|false";
    const EXPECTED: &'static str = units::Switch::EXPECTED;
    const ARGUMENTS: RangeInclusive<usize> = 0..=1;

    fn to_value(&self) -> Value {
        Value::Boolean(self.0)
    }
}

/// A whole number, or whatever suits this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Automatic {
    /// What suits this machine.
    Auto,
    /// This many.
    Count(usize),
}

written!(Automatic);

impl Automatic {
    /// The number, unless it is left to the machine.
    pub fn count(self) -> Option<usize> {
        match self {
            Automatic::Auto => None,
            Automatic::Count(count) => Some(count),
        }
    }
}

impl Written for Automatic {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a whole number from 1 on, like 1000, 10k or 1M, or \"auto\"";

    fn to_value(&self) -> Value {
        match self {
            Automatic::Auto => Value::String("auto".into()),
            Automatic::Count(count) => Count(*count).to_value(),
        }
    }
}

impl FromStr for Automatic {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Automatic, Invalid> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(Automatic::Auto);
        }
        let count = text.parse::<units::Count>().ok().filter(|count| count.0 > 0);
        count
            .map(|count| Automatic::Count(count.0))
            .ok_or_else(|| Invalid::new(text, Automatic::EXPECTED))
    }
}

impl fmt::Display for Automatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Automatic::Auto => f.write_str("auto"),
            Automatic::Count(count) => count.fmt(f),
        }
    }
}

/// Declares a value that is one of a few words.
macro_rules! one_of {
    ($(#[$doc:meta])* $name:ident($inner:ty), $value_name:literal, $expected:literal,
     $($word:literal => $meaning:expr),*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub $inner);

        written!($name);

        impl Written for $name {
            const NAME: &'static str = $value_name;
            const EXPECTED: &'static str = $expected;
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$name, Invalid> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($word => Ok($name($meaning)),)*
                    _ => Err(Invalid::new(text, $expected)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let words = [$(($word, $meaning)),*];
                let found = words.iter().find(|(_, meaning)| *meaning == self.0);
                f.write_str(found.map_or("", |(word, _)| word))
            }
        }
    };
}

one_of! {
    /// What happens to a subscriber that is too far behind.
    Policy(LagPolicy), "POLICY", "a policy: \"close\" or \"skip\"",
    "close" => LagPolicy::Close,
    "skip" => LagPolicy::Skip
}

one_of! {
    /// Whether fan-outs go through io_uring.
    Ring(IoUring), "WHEN", "a choice: \"auto\", \"on\" or \"off\"",
    "auto" => IoUring::Auto,
    "on" => IoUring::On,
    "off" => IoUring::Off
}

one_of! {
    /// Whether the demo is served.
    Demo(Option<bool>), "WHEN", "a choice: \"auto\", \"on\" or \"off\"",
    "auto" => None,
    "on" => Some(true),
    "off" => Some(false)
}

one_of! {
    /// How much is logged.
    Level(tracing::Level), "LEVEL",
    "a level: \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
    "error" => tracing::Level::ERROR,
    "warn" => tracing::Level::WARN,
    "info" => tracing::Level::INFO,
    "debug" => tracing::Level::DEBUG,
    "trace" => tracing::Level::TRACE
}

/// The text in quotation marks, with what would garble a terminal escaped.
pub fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_numbers() {
        for (text, expected) in [
            ("auto", Automatic::Auto),
            ("AUTO", Automatic::Auto),
            ("12", Automatic::Count(12)),
            ("1M", Automatic::Count(1_000_000)),
            ("1,000,000", Automatic::Count(1_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in ["0", "0k", "-1", "", "automatic", "1.5"] {
            assert!(bad.parse::<Automatic>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_says_what_would_be_right() {
        let error = "nowhere".parse::<Address>().unwrap_err();
        assert!(error.0.starts_with("\"nowhere\" is not an address and a port, like"), "{error}");
        let error = "drop".parse::<Policy>().unwrap_err();
        assert_eq!(error.0, "\"drop\" is not a policy: \"close\" or \"skip\"");
        assert_eq!("skip".parse::<Policy>().unwrap().to_string(), "skip");
    }
}
