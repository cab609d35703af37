//! Settings that are lists: separated by commas in a flag or a variable, an array in the file.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use throng_access::address::Network;
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

pub(super) use list;

list! {
    /// Origins of web pages that may connect.
    Origins, "ORIGIN,…",
    "an origin, like https://app.example.com or https://*.example.com, or \"*\" for any",
    read_origin
}

list! {
    /// Host names that the server answers to.
    Hosts, "HOST,…",
    "a host name without scheme and port, like push.example.com, or \"*\" for any",
    read_host
}

list! {
    /// Values that a claim of a token may have.
    ClaimValues, "TEXT,…",
    "a text of at most 255 bytes without control characters",
    read_claim_value
}

list! {
    /// URLs of key sets.
    KeyUrls, "URL,…",
    "the URL of a key set, like https://login.example.com/keys.json (http:// on this machine only)",
    read_key_url
}

list! {
    /// The addresses and networks of proxies.
    Proxies, "NETWORK,…",
    "an address or a network, like 10.0.0.0/8",
    read_network
}

/// Accepts an address, or a network without bits behind its prefix.
fn read_network(text: &str) -> Option<String> {
    text.parse::<Network>().is_ok().then(|| text.to_ascii_lowercase())
}

/// Accepts `*`, `null` and `file://`, or scheme, host and optional port, as browsers send it.
/// Removes a trailing slash. A host may begin with `*.`: all hosts below the rest, which has two
/// labels at least, so that nobody allows all of `com`.
fn read_origin(text: &str) -> Option<String> {
    if matches!(text, "null" | "file://" | "file:///") {
        return Some(text.strip_suffix("//").map_or(text, |_| "file://").to_owned());
    }
    let plain = text.trim_end_matches('/').to_ascii_lowercase();
    let Some((scheme, host)) = plain.split_once("://") else {
        return (text == "*").then_some(plain);
    };
    let is_forbidden = |byte: u8| b"/?#@*, ".contains(&byte) || byte.is_ascii_control();
    let is_origin = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !host.is_empty();
    let named = match host.strip_prefix("*.") {
        Some(parent) => Some(parent).filter(|parent| parent.trim_matches('.').contains('.')),
        None => Some(host),
    };
    let is_origin = is_origin && named.is_some_and(|host| !host.bytes().any(is_forbidden));
    is_origin.then_some(plain)
}

/// Accepts `*`, or a name without a port. Addresses are always allowed and need no entry.
fn read_host(text: &str) -> Option<String> {
    let plain = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_name = !plain.is_empty()
        && plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    (text == "*" || is_name).then_some(plain)
}

fn read_claim_value(text: &str) -> Option<String> {
    (text.len() <= 255 && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// Accepts `https`, and `http` to an address of this machine: on the way from elsewhere, others
/// could exchange the keys. A URL has no user, because that would be a password in the settings.
fn read_key_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (authority, _) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']')?.0,
        None => authority.split(':').next()?,
    };
    let is_local = host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    let is_safe =
        scheme.eq_ignore_ascii_case("https") || (scheme.eq_ignore_ascii_case("http") && is_local);
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    (is_safe && is_plain && !host.is_empty() && !authority.contains('@')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for good in [
            "https://login.example.com/.well-known/jwks.json",
            "https://login.example.com:8443/keys?tenant=1",
            "HTTPS://login.example.com",
            "http://127.0.0.1:9000/keys",
            "http://[::1]:9000/keys",
            "http://localhost/keys",
        ] {
            assert_eq!(good.parse::<KeyUrls>(), Ok(KeyUrls(vec![good.into()])));
        }
        for bad in [
            "http://login.example.com/keys",
            "http://127.0.0.1.example.com/keys",
            "login.example.com/keys",
            "ftp://127.0.0.1/keys",
            "https://ann:secret@login.example.com/keys",
            "https:///keys",
            "https://login.example.com/a b",
            "https://login.example.com/keys#one",
        ] {
            assert!(bad.parse::<KeyUrls>().is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        let origins: Origins = "https://A.example, http://localhost:3000/,*".parse().unwrap();
        assert_eq!(origins.0, ["https://a.example", "http://localhost:3000", "*"]);
        let origins: Origins = "https://*.Example.com:1,null,file:///".parse().unwrap();
        assert_eq!(origins.0, ["https://*.example.com:1", "null", "file://"]);
        for none in ["", "none"] {
            assert_eq!(none.parse::<Origins>(), Ok(Origins(Vec::new())));
        }
        for bad in
            ["example.com", "https://", "https://a/b", "https://*.com", "https://a*.b.c", "://a"]
        {
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
