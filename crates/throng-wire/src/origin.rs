//! Whose pages may talk to the server.
//!
//! A browser names the page's origin in a header that the page cannot forge. Without this check,
//! any page could reach a server on its visitor's own machine or network. Programs send no origin;
//! keys, not origins, keep those out.
//!
//! That an origin equals `Host` proves little: whoever owns a name may let it lead to 127.0.0.1,
//! and a page of that name then sends both (DNS rebinding). So a server that listens on loopback
//! believes only hosts that no name server answers for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether a request with this `Origin`, sent to this `Host`, is answered. `allowed` is the list
/// of the settings: origins, `null`, or `*` for any. `listen` is the address that the server
/// listens on.
pub fn origin_allowed(
    origin: Option<&str>,
    host: Option<&str>,
    allowed: &[String],
    listen: IpAddr,
) -> bool {
    let Some(origin) = origin else { return true };
    if allowed.iter().any(|entry| entry == "*" || entry.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let Some(origin) = Origin::parse(origin) else { return false };
    if allowed.iter().filter_map(|entry| Origin::parse(entry)).any(|entry| entry.equals(&origin)) {
        return true;
    }
    let Some((host, port)) = host.and_then(split_authority) else { return false };
    let port = port.or(origin.default_port());
    if is_loopback(host) {
        return is_loopback(origin.host);
    }
    let is_own = origin.host.eq_ignore_ascii_case(host) && origin.port == port;
    is_own && (is_address(host) || !listen.to_canonical().is_loopback())
}

/// Whether a request to this `Host` may see what the server tells about itself. Until somebody can
/// be asked who may, that is only who sits at the machine: the server listens on loopback, and the
/// host is one that no name server answers for. A page may send a `GET` to its own host without an
/// `Origin`, so that DNS rebinding shows in the host alone; so does a proxy that passes it on.
pub fn is_local(host: Option<&str>, listen: IpAddr) -> bool {
    let host = host.and_then(split_authority);
    listen.to_canonical().is_loopback() && host.is_some_and(|(host, _)| is_loopback(host))
}

/// `scheme://host[:port]`.
struct Origin<'a> {
    scheme: &'a str,
    host: &'a str,
    /// The scheme's own if none is written; `None` if the scheme has none either.
    port: Option<u16>,
}

impl<'a> Origin<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        // People write a slash at the end when they list an origin; browsers do not.
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = split_authority(authority)?;
        let mut origin = Self { scheme, host, port };
        origin.port = port.or(origin.default_port());
        Some(origin)
    }

    fn default_port(&self) -> Option<u16> {
        match self.scheme {
            scheme if scheme.eq_ignore_ascii_case("http") => Some(80),
            scheme if scheme.eq_ignore_ascii_case("https") => Some(443),
            _ => None,
        }
    }

    fn equals(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && self.host.eq_ignore_ascii_case(other.host)
            && self.port == other.port
    }
}

/// `host[:port]`, taken apart; `None` if it is none. The brackets of an IPv6 address stay.
pub(crate) fn split_authority(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = if let Some(inner) = text.strip_prefix('[') {
        let end = inner.find(']')?;
        inner[..end].parse::<Ipv6Addr>().ok()?;
        text.split_at(end + 2)
    } else {
        let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return None;
        }
        (host, rest)
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        None => return None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        Some(_) => return None,
    };
    Some((host, port))
}

/// What RFC 3986 lets a registered name consist of.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}

fn is_loopback(host: &str) -> bool {
    let bytes = host.as_bytes();
    if let Some(inner) = host.strip_prefix('[') {
        let address = inner.trim_end_matches(']').parse::<Ipv6Addr>();
        return address.is_ok_and(|address| address.is_loopback());
    }
    let suffix = b".localhost";
    let is_below = bytes.len() > suffix.len()
        && bytes[bytes.len() - suffix.len()..].eq_ignore_ascii_case(suffix);
    host.eq_ignore_ascii_case("localhost")
        || is_below
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a host is an address rather than a name.
fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn allowed_on(listen: IpAddr, origin: &str, host: &str, list: &[&str]) -> bool {
        let list: Vec<String> = list.iter().map(|&entry| entry.to_owned()).collect();
        origin_allowed(Some(origin), Some(host), &list, listen)
    }

    fn allowed(origin: &str, host: &str, list: &[&str]) -> bool {
        allowed_on(ANY, origin, host, list)
    }

    #[test]
    fn no_origin_is_allowed() {
        assert!(origin_allowed(None, Some("a"), &[], LOCAL));
        assert!(origin_allowed(None, None, &[], LOCAL));
    }

    /// Its page says `Origin: http://evil.example:9409` and `Host: evil.example:9409`, and its
    /// name leads to the visitor's own machine.
    #[test]
    fn a_name_that_leads_to_loopback_is_not_the_servers_own() {
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        for listen in [LOCAL, IpAddr::V6(Ipv6Addr::LOCALHOST), mapped, "127.9.9.9".parse().unwrap()]
        {
            let allowed = |origin, host, list: &[&str]| allowed_on(listen, origin, host, list);
            let (origin, host) = ("http://evil.example:9409", "evil.example:9409");
            assert!(!allowed(origin, host, &[]));
            assert!(!allowed(origin, host, &["http://other.example"]));
            assert!(!allowed("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", &[]));
            assert!(!allowed("http://127.0.0.1:9409", host, &[]));
            // The name of a proxy is to be listed, and then it does not matter what it forwards.
            assert!(allowed(origin, host, &[origin]));
            assert!(allowed(origin, "127.0.0.1:9409", &[origin]));
            // No name server answers for these.
            assert!(allowed("http://127.0.0.1:9409", "127.0.0.1:9409", &[]));
            assert!(allowed("http://localhost:9409", "localhost:9409", &[]));
            assert!(allowed("http://[::1]:9409", "[::1]:9409", &[]));
            assert!(allowed("http://192.168.0.1", "192.168.0.1", &[]));
            assert!(allowed("http://[2001:db8::1]", "[2001:db8::1]", &[]));
            assert!(!allowed("http://192.168.0.1", "192.168.0.2", &[]));
        }
    }

    #[test]
    fn only_loopback_is_local() {
        for host in ["127.0.0.1:8080", "localhost", "[::1]:8080", "a.localhost:1"] {
            assert!(is_local(Some(host), LOCAL), "{host}");
            assert!(is_local(Some(host), "::ffff:127.0.0.1".parse().unwrap()), "{host}");
            assert!(!is_local(Some(host), ANY), "{host}");
            assert!(!is_local(Some(host), "192.168.0.1".parse().unwrap()), "{host}");
        }
        for host in ["evil.example:8080", "127.0.0.1.evil.example", "192.168.0.1", "::1", ""] {
            assert!(!is_local(Some(host), LOCAL), "{host}");
        }
        assert!(!is_local(None, LOCAL));
    }

    #[test]
    fn the_servers_own_origin_is_allowed() {
        for (origin, host) in [
            ("http://a.example", "a.example"),
            ("http://a.example", "A.Example:80"),
            ("http://a.example:80", "a.example"),
            ("https://a.example", "a.example"),
            ("https://a.example", "a.example:443"),
            ("HTTPS://A.example:443", "a.example"),
            ("http://a.example:8080", "a.example:8080"),
            ("http://[2001:db8::1]:81", "[2001:DB8::1]:81"),
        ] {
            assert!(allowed(origin, host, &[]), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://b.example", "a.example"),
            ("http://x.a.example", "a.example"),
            ("http://a.example", "a.example:443"),
            ("https://a.example", "a.example:80"),
            ("http://a.example:8081", "a.example:8080"),
            ("http://a.example@evil.example", "a.example"),
            ("http://a.example/path", "a.example"),
            ("a.example", "a.example"),
            ("null", "null"),
            ("", ""),
            ("http://", ""),
        ] {
            assert!(!allowed(origin, host, &[]), "{origin} {host}");
        }
        assert!(!origin_allowed(Some("http://a"), None, &[], ANY));
    }

    #[test]
    fn loopback_may_talk_to_loopback() {
        for origin in [
            "http://localhost:3000",
            "https://app.LOCALHOST",
            "http://127.0.0.1",
            "http://127.8.9.10:1",
            "http://[::1]:5173",
        ] {
            for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "x.localhost"] {
                assert!(allowed(origin, host, &[]), "{origin} {host}");
            }
            assert!(!allowed(origin, "push.example", &[]), "{origin}");
            assert!(!allowed(origin, "192.168.0.1", &[]), "{origin}");
        }
        for origin in [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://evillocalhost",
            "http://.localhost.evil",
            "http://127.0.0.1.evil.example",
            "http://128.0.0.1",
            "http://[::2]",
            "null",
        ] {
            assert!(!allowed(origin, "localhost:8080", &[]), "{origin}");
        }
    }

    #[test]
    fn listed_origins_are_allowed() {
        let list = &["https://a.example", "http://B.example:8080/", "http://c.example:80"];
        for origin in [
            "https://a.example",
            "HTTPS://A.EXAMPLE",
            "https://a.example:443",
            "http://b.example:8080",
            "http://c.example",
        ] {
            assert!(allowed(origin, "push.example", list), "{origin}");
        }
        for origin in
            ["http://a.example", "https://a.example:444", "http://b.example", "https://x.a.example"]
        {
            assert!(!allowed(origin, "push.example", list), "{origin}");
        }
        assert!(allowed("http://anything", "push.example", &["*"]));
        assert!(allowed("null", "push.example", &["*"]));
        assert!(allowed("null", "push.example", &["null"]));
        assert!(!allowed("null", "push.example", list));
    }
}
