//! URLs of servers.

/// The parts of a URL whose scheme is `http`, `ws`, `https` or `wss`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpUrl<'a> {
    /// `host` or `host:port`, as in the `Host` header.
    pub authority: &'a str,
    /// The host, without brackets.
    pub host: &'a str,
    /// The port; 80 by default, or 443 with TLS.
    pub port: u16,
    /// From the slash on; `/` if there is none.
    pub path: &'a str,
}

impl<'a> HttpUrl<'a> {
    /// Splits a URL; `None` if it is invalid.
    pub(crate) fn parse(url: &'a str) -> Option<HttpUrl<'a>> {
        let (scheme, rest) = url.split_once("://")?;
        let default_port = default_port(scheme)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = host_and_port(authority);
        let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
        let is_whole = !host.is_empty() && (path.is_empty() || path.starts_with('/'));
        let path = if path.is_empty() { "/" } else { path };
        is_whole.then_some(HttpUrl { authority, host, port, path })
    }
}

/// The port of a scheme, in any case; `None` for a scheme that is not supported.
pub(crate) fn default_port(scheme: &str) -> Option<u16> {
    let schemes = [("http", 80), ("ws", 80), ("https", 443), ("wss", 443)];
    schemes.into_iter().find_map(|(name, port)| name.eq_ignore_ascii_case(scheme).then_some(port))
}

/// True if a URL asks for TLS.
pub(crate) fn is_secure(url: &str) -> bool {
    url.split_once("://").and_then(|(scheme, _)| default_port(scheme)) == Some(443)
}

/// The part of a URL between scheme and path; `None` without a scheme.
pub(crate) fn authority(url: &str) -> Option<&str> {
    url.split_once("://")?.1.split(['/', '?', '#']).next()
}

/// The host, without brackets, and the text of the port if there is one.
pub(crate) fn host_and_port(authority: &str) -> (&str, Option<&str>) {
    let (host, port) = match authority.rsplit_once(':') {
        // Colons in brackets belong to an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (host, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        let place = |authority, host, port, path| Some(HttpUrl { authority, host, port, path });
        for (url, expected) in [
            ("http://a.test:81/c/x?y=1", place("a.test:81", "a.test", 81, "/c/x?y=1")),
            ("ws://a.test", place("a.test", "a.test", 80, "/")),
            ("http://[::1]:8080/", place("[::1]:8080", "::1", 8080, "/")),
            ("http://[::1]", place("[::1]", "::1", 80, "/")),
            ("https://a.test/x", place("a.test", "a.test", 443, "/x")),
            ("WSS://a.test:1", place("a.test:1", "a.test", 1, "/")),
            ("ftp://a.test/", None),
            ("http://:80/", None),
            ("http://a.test:x/", None),
            ("http://a.test?x", None),
            ("", None),
        ] {
            assert_eq!(HttpUrl::parse(url), expected, "{url}");
        }
    }

    #[test]
    fn the_scheme_says_whether_tls_is_spoken() {
        for (url, expected) in
            [("https://h", true), ("WSS://h", true), ("ws://https", false), ("https", false)]
        {
            assert_eq!(is_secure(url), expected, "{url}");
        }
    }
}
