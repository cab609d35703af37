//! How a setting's value is written: the same text in a flag, a variable and the file.
//!
//! Every type of value implements [`Written`]; `written!` derives serde's traits from it, so that a
//! value that is refused is refused with the same sentence wherever it stands.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use throng_core::BehindPolicy;
use throng_edge::settings::IoUring;
use toml::Value;

/// A value that cannot be read: what is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// `written` is not a `T`.
    pub fn not<T: Written>(written: impl fmt::Display) -> Invalid {
        Invalid(format!("{written} is not {}", T::EXPECTED))
    }
}

/// A type of value that a setting can have.
pub trait Written: Sized + FromStr<Err = Invalid> + fmt::Display {
    /// Stands for the value in help texts.
    const NAME: &'static str;

    /// What it is and how it is written; the end of a sentence.
    const EXPECTED: &'static str;

    /// How many values follow the flag: none where the flag alone means yes.
    const ARGUMENTS: RangeInclusive<usize> = 1..=1;

    /// Reads it from the file.
    fn from_value(value: &Value) -> Result<Self, Invalid> {
        match value {
            Value::String(text) => text.parse(),
            other => Err(Invalid::not::<Self>(other)),
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

/// An address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

written!(Address);

impl Written for Address {
    const NAME: &'static str = "ADDRESS";
    const EXPECTED: &'static str =
        "an address and a port, like 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080";
}

impl FromStr for Address {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Address, Invalid> {
        text.parse().map(Address).map_err(|_| Invalid::not::<Address>(quoted(text)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A whole number of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

written!(Count);

impl Written for Count {
    const NAME: &'static str = "NUMBER";
    const EXPECTED: &'static str = "a whole number, like 100";

    fn from_value(value: &Value) -> Result<Count, Invalid> {
        match value {
            Value::Integer(number) => {
                usize::try_from(*number).map(Count).map_err(|_| Invalid::not::<Count>(number))
            }
            other => Err(Invalid::not::<Count>(other)),
        }
    }

    fn to_value(&self) -> Value {
        Value::Integer(i64::try_from(self.0).unwrap_or(i64::MAX))
    }
}

impl FromStr for Count {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Count, Invalid> {
        text.parse().map(Count).map_err(|_| Invalid::not::<Count>(quoted(text)))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
    const EXPECTED: &'static str = "a whole number from 1 on, or \"auto\"";

    fn from_value(value: &Value) -> Result<Automatic, Invalid> {
        match value {
            Value::String(text) if text == "auto" => Ok(Automatic::Auto),
            Value::Integer(number) => number.to_string().parse(),
            other => Err(Invalid::not::<Automatic>(other)),
        }
    }

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
        match text.parse::<usize>() {
            _ if text == "auto" => Ok(Automatic::Auto),
            Ok(count) if count > 0 => Ok(Automatic::Count(count)),
            _ => Err(Invalid::not::<Automatic>(quoted(text))),
        }
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

/// Yes or no. The flag alone means yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch(pub bool);

written!(Switch);

impl Written for Switch {
    const NAME: &'static str = "true|false";
    const EXPECTED: &'static str = "true or false";
    const ARGUMENTS: RangeInclusive<usize> = 0..=1;

    fn from_value(value: &Value) -> Result<Switch, Invalid> {
        value.as_bool().map(Switch).ok_or_else(|| Invalid::not::<Switch>(value))
    }

    fn to_value(&self) -> Value {
        Value::Boolean(self.0)
    }
}

impl FromStr for Switch {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Switch, Invalid> {
        text.parse().map(Switch).map_err(|_| Invalid::not::<Switch>(quoted(text)))
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Origins of pages: separated by commas, or a list in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origins(pub Vec<String>);

written!(Origins);

impl Origins {
    fn read<'a>(each: impl Iterator<Item = &'a str>) -> Result<Origins, Invalid> {
        let origins = each.map(str::trim).filter(|origin| !origin.is_empty());
        let checked = origins.map(|origin| match is_origin(origin) {
            true => Ok(origin.trim_end_matches('/').to_ascii_lowercase()),
            false => Err(Invalid::not::<Origins>(quoted(origin))),
        });
        checked.collect::<Result<_, _>>().map(Origins)
    }
}

/// `*`, or scheme and host and perhaps a port, as browsers send it. A slash at the end is forgiven.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return text == "*" };
    let host = host.trim_end_matches('/');
    let is_forbidden = |byte: u8| b"/?#@*, ".contains(&byte) || byte.is_ascii_control();
    !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !host.is_empty()
        && !host.bytes().any(is_forbidden)
}

impl Written for Origins {
    const NAME: &'static str = "ORIGIN,…";
    const EXPECTED: &'static str = "an origin, like https://app.example.com, or \"*\" for any";

    fn from_value(value: &Value) -> Result<Origins, Invalid> {
        match value {
            Value::String(text) => text.parse(),
            Value::Array(list) => {
                let texts = list
                    .iter()
                    .map(|each| each.as_str().ok_or_else(|| Invalid::not::<Origins>(each)));
                Origins::read(texts.collect::<Result<Vec<_>, _>>()?.into_iter())
            }
            other => Err(Invalid::not::<Origins>(other)),
        }
    }

    fn to_value(&self) -> Value {
        Value::Array(self.0.iter().cloned().map(Value::String).collect())
    }
}

impl FromStr for Origins {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Origins, Invalid> {
        match text {
            "none" => Ok(Origins(Vec::new())),
            _ => Origins::read(text.split(',')),
        }
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&self.0.join(",")),
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
                match text {
                    $($word => Ok($name($meaning)),)*
                    _ => Err(Invalid::not::<$name>(quoted(text))),
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
    Policy(BehindPolicy), "POLICY", "a policy: \"close\" or \"skip\"",
    "close" => BehindPolicy::Close,
    "skip" => BehindPolicy::Skip
}

one_of! {
    /// Whether fan-outs go through io_uring.
    Ring(IoUring), "WHEN", "a choice: \"auto\", \"on\" or \"off\"",
    "auto" => IoUring::Auto,
    "on" => IoUring::On,
    "off" => IoUring::Off
}

one_of! {
    /// How much is logged.
    Level(tracing::Level), "LEVEL", "a level: \"error\", \"warn\", \"info\" or \"debug\"",
    "error" => tracing::Level::ERROR,
    "warn" => tracing::Level::WARN,
    "info" => tracing::Level::INFO,
    "debug" => tracing::Level::DEBUG
}

/// The text in quotation marks, with what would garble a terminal escaped.
pub fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        let origins: Origins = "https://A.example, http://localhost:3000/,*".parse().unwrap();
        assert_eq!(origins.0, ["https://a.example", "http://localhost:3000", "*"]);
        for none in ["", "none"] {
            assert_eq!(none.parse::<Origins>(), Ok(Origins(Vec::new())));
        }
        for bad in ["example.com", "https://", "https://a/b", "https://*.a.example", "://a"] {
            assert!(bad.parse::<Origins>().is_err(), "{bad}");
        }
    }

    #[test]
    fn automatic_numbers() {
        assert_eq!("auto".parse(), Ok(Automatic::Auto));
        assert_eq!("12".parse(), Ok(Automatic::Count(12)));
        for bad in ["0", "-1", "", "Auto", "1.5"] {
            assert!(bad.parse::<Automatic>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_says_what_would_be_right() {
        let error = "localhost".parse::<Address>().unwrap_err();
        assert!(error.0.starts_with("\"localhost\" is not an address and a port, like 127"));
        let error = "drop".parse::<Policy>().unwrap_err();
        assert_eq!(error.0, "\"drop\" is not a policy: \"close\" or \"skip\"");
        assert_eq!("skip".parse::<Policy>().unwrap().to_string(), "skip");
    }
}
