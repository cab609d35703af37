//! Settings that are lists: separated by commas in a flag or a variable, an array in the file.

use std::fmt;
use std::str::FromStr;

use throng_units::{Form, Invalid, Value};

/// Declares a list. `$read` normalizes an entry, or returns `None` to reject it.
macro_rules! list {
    ($(#[$doc:meta])* $name:ident, $placeholder:literal, $expected:literal, $read:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) Vec<String>);

        impl Value for $name {
            const PLACEHOLDER: &'static str = $placeholder;
            const EXPECTED: &'static str = $expected;
            const FORM: Form = Form::List;
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$name, Invalid> {
                if text.trim().eq_ignore_ascii_case("none") {
                    return Ok($name(Vec::new()));
                }
                let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                let read =
                    |entry| $read(entry).ok_or_else(|| Invalid::new(entry, $name::EXPECTED));
                entries.map(read).collect::<Result<_, _>>().map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(",")) }
            }
        }
    };
}

list! {
    /// Origins of web pages that may connect.
    Origins, "ORIGIN,…",
    "an origin, like https://app.example.com, or \"*\" for any",
    read_origin
}

list! {
    /// Host names that the server answers to.
    Hosts, "HOST,…",
    "a host name without scheme and port, like push.example.com, or \"*\" for any",
    read_host
}

/// Accepts `*`, or scheme, host and optional port, as browsers send it. Removes a trailing slash.
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

/// Accepts `*`, or a name without a port. Addresses are always allowed and need no entry.
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
