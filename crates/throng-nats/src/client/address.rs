//! Where a server is: `nats://HOST:PORT`, `tls://HOST:PORT`, or `tls-first://HOST:PORT`.

use std::fmt;

/// The port of NATS servers unless another one is given.
const PORT: u16 = 4222;

/// The longest host name of DNS, in bytes.
const HOST_BYTES_MAX: usize = 253;

/// Where a server is, and whether it has to speak TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// A name, or an address; one of IPv6 without its brackets.
    pub host: String,
    pub port: u16,
    /// True if nothing is said to it without TLS.
    pub is_tls: bool,
    /// True if TLS begins at once, as servers with `handshake_first` expect it.
    pub is_first: bool,
}

impl ServerAddress {
    /// Accepts a host with or without a port, and with or without the scheme. There is no user in
    /// it, because that would be a password in the settings.
    pub fn parse(text: &str) -> Option<ServerAddress> {
        let (scheme, place) = text.split_once("://").unwrap_or(("nats", text));
        let is_first = scheme.eq_ignore_ascii_case("tls-first");
        let is_tls = is_first || scheme.eq_ignore_ascii_case("tls");
        if !is_tls && !scheme.eq_ignore_ascii_case("nats") {
            return None;
        }
        let place = place.strip_suffix('/').unwrap_or(place).to_ascii_lowercase();
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (place.as_str(), PORT),
        };
        let is_address = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let host = if is_address { &host[1..host.len() - 1] } else { host };
        let is_plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || (is_address && byte == b':')
        };
        let is_server = (1..=HOST_BYTES_MAX).contains(&host.len()) && port > 0;
        (is_server && host.bytes().all(is_plain)).then(|| ServerAddress {
            host: host.to_owned(),
            port,
            is_tls,
            is_first,
        })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerAddress { host, port, is_tls, is_first } = self;
        let scheme = match (is_first, is_tls) {
            (true, _) => "tls-first",
            (false, true) => "tls",
            (false, false) => "nats",
        };
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_host_and_a_port() {
        for (text, expected) in [
            ("nats://10.0.0.1", "nats://10.0.0.1:4222"),
            ("Nats.Example:4300", "nats://nats.example:4300"),
            ("NATS://[::1]/", "nats://[::1]:4222"),
            ("tls://[fd00::2]:1", "tls://[fd00::2]:1"),
            ("TLS://n1.example", "tls://n1.example:4222"),
            ("tls-first://n1.example", "tls-first://n1.example:4222"),
        ] {
            let found = ServerAddress::parse(text).expect(text);
            assert_eq!(found.to_string(), expected);
            assert_eq!(ServerAddress::parse(expected), Some(found));
        }
        for bad in [
            "wss://a",
            "nats://ann:secret@a",
            "nats://a:0",
            "a:b",
            "a:70000",
            "nats://",
            "tls://",
            "a/b",
            "[::1",
            "[]:1",
            "a b",
        ] {
            assert_eq!(ServerAddress::parse(bad), None, "{bad}");
        }
        assert_eq!(ServerAddress::parse(&"a".repeat(HOST_BYTES_MAX + 1)), None);
    }
}
