//! Reads and writes a [`Value`] as TOML: the same text as in a flag, or what TOML has for it.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use throng_units::{Form, Invalid, Value};
use toml::Value as Toml;

/// Reads the value of a key that is there. For serde's `deserialize_with`.
pub fn read<'de, D: Deserializer<'de>, T: Value>(source: D) -> Result<Option<T>, D::Error> {
    from_toml(&Toml::deserialize(source)?).map(Some).map_err(D::Error::custom)
}

/// Writes a value. For serde's `serialize_with`.
pub fn write<S: Serializer, T: Value>(value: &T, target: S) -> Result<S::Ok, S::Error> {
    to_toml(value).serialize(target)
}

/// Writes the value of a key that is there. For serde's `serialize_with`.
pub fn write_some<S: Serializer, T: Value>(
    value: &Option<T>,
    target: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(to_toml).serialize(target)
}

/// Parses a value. A list may be an array of texts.
pub(crate) fn from_toml<T: Value>(value: &Toml) -> Result<T, Invalid> {
    let rejected = |value: &Toml| Invalid(format!("{value} is not {}", T::EXPECTED));
    match value {
        Toml::String(text) => text.parse(),
        Toml::Integer(_) | Toml::Float(_) | Toml::Boolean(_) => value.to_string().parse(),
        Toml::Array(entries) if T::FORM == Form::List => {
            // A comma within an entry would make two of it.
            let text = |entry: &Toml| {
                let text = entry.as_str().filter(|text| !text.contains(','));
                text.map(str::to_owned).ok_or_else(|| rejected(entry))
            };
            entries.iter().map(text).collect::<Result<Vec<_>, _>>()?.join(",").parse()
        }
        other => Err(rejected(other)),
    }
}

/// A value in its form: a number, a boolean, a list or a text.
fn to_toml<T: Value>(value: &T) -> Toml {
    let text = value.to_string();
    let string = |text: &str| Toml::String(text.to_owned());
    match T::FORM {
        Form::Text => string(&text),
        Form::Number => text.parse().map_or_else(|_| string(&text), Toml::Integer),
        Form::Boolean => text.parse().map_or_else(|_| string(&text), Toml::Boolean),
        Form::List if text == "none" => Toml::Array(Vec::new()),
        Form::List => Toml::Array(text.split(',').map(string).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::str::FromStr;

    use throng_units::{Count, Size, Switch};

    use super::*;

    /// A list of words.
    #[derive(Debug, PartialEq)]
    struct Hosts(Vec<String>);

    impl Value for Hosts {
        const PLACEHOLDER: &'static str = "HOST,…";
        const EXPECTED: &'static str = "a list of hosts";
        const FORM: Form = Form::List;
    }

    impl FromStr for Hosts {
        type Err = Invalid;

        fn from_str(text: &str) -> Result<Hosts, Invalid> {
            let words =
                text.split(',').filter(|word| !["", "none"].contains(word)).map(str::to_owned);
            Ok(Hosts(words.collect()))
        }
    }

    impl fmt::Display for Hosts {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(if self.0.is_empty() { "none" } else { "" })?;
            f.write_str(&self.0.join(","))
        }
    }

    #[test]
    fn values_are_written_in_their_form_and_read_back() {
        fn check<T: Value + PartialEq + std::fmt::Debug>(text: &str, expected: &str) {
            let value: T = text.parse().unwrap();
            let toml = to_toml(&value);
            assert_eq!(toml.to_string(), expected);
            assert_eq!(from_toml::<T>(&toml), Ok(value));
        }
        check::<Count>("1k", "1000");
        check::<Size>("64k", "\"64KiB\"");
        check::<Switch>("yes", "true");
        check::<Hosts>("none", "[]");
        check::<Hosts>("a,b", "[\"a\", \"b\"]");
    }

    #[test]
    fn lists_are_for_lists_and_hold_single_entries() {
        let read = |text: &str| toml::from_str::<toml::Table>(text).unwrap()["a"].clone();
        assert!(from_toml::<Count>(&read("a = [1]")).is_err());
        for bad in ["a = ['b,c']", "a = [1]", "a = { b = 1 }"] {
            assert!(from_toml::<Hosts>(&read(bad)).is_err(), "{bad}");
        }
    }
}
