//! Settings that are lists: separated by commas in a flag or a variable, a list in the file.

use std::fmt;
use std::str::FromStr;

use toml::Value;

use super::written::{Invalid, Written, written};

/// Declares a list whose entries `$read` takes, each as it is to be kept.
macro_rules! list {
    ($(#[$doc:meta])* $name:ident, $value_name:literal, $expected:literal, $read:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub Vec<String>);

        written!($name);

        impl $name {
            fn read<'a>(each: impl Iterator<Item = &'a str>) -> Result<$name, Invalid> {
                let entries = each.map(str::trim).filter(|entry| !entry.is_empty());
                let read = entries
                    .map(|entry| $read(entry).ok_or_else(|| Invalid::new(entry, $name::EXPECTED)));
                read.collect::<Result<_, _>>().map($name)
            }
        }

        impl Written for $name {
            const NAME: &'static str = $value_name;
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &Value) -> Result<$name, Invalid> {
                match value {
                    Value::String(text) => text.parse(),
                    Value::Array(list) => {
                        let refuse = |each| Invalid(format!("{each} is not {}", $name::EXPECTED));
                        let texts =
                            list.iter().map(|each| each.as_str().ok_or_else(|| refuse(each)));
                        $name::read(texts.collect::<Result<Vec<_>, _>>()?.into_iter())
                    }
                    other => Err(Invalid(format!("{other} is not {}", $name::EXPECTED))),
                }
            }

            fn to_value(&self) -> Value {
                Value::Array(self.0.iter().cloned().map(Value::String).collect())
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$name, Invalid> {
                match text.trim().eq_ignore_ascii_case("none") {
                    true => Ok($name(Vec::new())),
                    false => $name::read(text.split(',')),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0.is_empty() {
                    true => f.write_str("none"),
                    false => f.write_str(&self.0.join(",")),
                }
            }
        }
    };
}

list! {
    /// Origins of pages.
    Origins, "ORIGIN,…",
    "an origin, like https://app.example.com, or \"*\" for any",
    read_origin
}

list! {
    /// Names of hosts.
    Hosts, "HOST,…",
    "a host name without scheme and port, like push.example.com, or \"*\" for any",
    read_host
}

/// `*`, or scheme and host and perhaps a port, as browsers send it. A slash at the end is forgiven.
fn read_origin(text: &str) -> Option<String> {
    let plain = text.trim_end_matches('/').to_ascii_lowercase();
    let Some((scheme, host)) = plain.split_once("://") else {
        return (text == "*").then_some(plain);
    };
    let is_forbidden = |byte: u8| b"/?#@*, ".contains(&byte) || byte.is_ascii_control();
    let is_origin = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !host.is_empty()
        && !host.bytes().any(is_forbidden);
    is_origin.then_some(plain)
}

/// `*`, or a name. Addresses need not be listed, and a port would not matter.
fn read_host(text: &str) -> Option<String> {
    let plain = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_name = !plain.is_empty()
        && plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    (text == "*" || is_name).then_some(plain)
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
    fn hosts_are_names() {
        let hosts: Hosts = "Push.example, throng ,push.example.,*".parse().unwrap();
        assert_eq!(hosts.0, ["push.example", "throng", "push.example", "*"]);
        assert_eq!("none".parse::<Hosts>(), Ok(Hosts(Vec::new())));
        for bad in ["http://a", "a:80", "a/b", "*.a", "a b", "."] {
            assert!(bad.parse::<Hosts>().is_err(), "{bad}");
        }
        assert_eq!(hosts.to_string().parse(), Ok(hosts));
    }
}
