//! URLs of servers.

/// The host and port of a URL whose scheme is `http`, `ws`, `https` or `wss`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// Without brackets.
    pub host: &'a str,
    pub port: Option<u16>,
    /// 80, or 443 with TLS.
    pub default_port: u16,
}

impl<'a> Place<'a> {
    /// Finds them in a URL. The error says what is wrong with it.
    pub(crate) fn of(url: &'a str) -> Result<Place<'a>, &'static str> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let default_port = default_port(scheme)
            .ok_or("it does not begin with http://, ws://, https:// or wss://")?;
        let authority = authority(url).unwrap_or_default();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, after)| after);
        let (host, port) = host_and_port(authority);
        let port = port.map(str::parse).transpose();
        let port = port.map_err(|_| "its port is not a number up to 65535")?;
        if host.is_empty() {
            Err("it names no host")
        } else {
            Ok(Place { host, port, default_port })
        }
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
        let place = |host, port, default_port| Some(Place { host, port, default_port });
        for (url, expected) in [
            ("http://a.test:81/c/x?y=1", place("a.test", Some(81), 80)),
            ("ws://a.test", place("a.test", None, 80)),
            ("http://[::1]:8080/", place("::1", Some(8080), 80)),
            ("http://[::1]", place("::1", None, 80)),
            ("https://u:p@a.test/x@y", place("a.test", None, 443)),
            ("WSS://a.test:1", place("a.test", Some(1), 443)),
            ("http://a.test?x", place("a.test", None, 80)),
            ("ftp://a.test/", None),
            ("http://:80/", None),
            ("http://a.test:x/", None),
            ("", None),
        ] {
            assert_eq!(Place::of(url).ok(), expected, "{url}");
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
