//! URLs of servers that need no TLS.

/// The parts of an `http://` or `ws://` URL.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpUrl<'a> {
    /// `host` or `host:port`, as in the `Host` header.
    pub authority: &'a str,
    /// The host, without brackets.
    pub host: &'a str,
    /// The port; 80 by default.
    pub port: u16,
    /// From the slash on; `/` if there is none.
    pub path: &'a str,
}

impl<'a> HttpUrl<'a> {
    /// Splits a URL; `None` if it is invalid or needs TLS.
    pub fn parse(url: &'a str) -> Option<HttpUrl<'a>> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("ws://"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            // Colons in brackets belong to an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_whole = !host.is_empty() && (path.is_empty() || path.starts_with('/'));
        let path = if path.is_empty() { "/" } else { path };
        is_whole.then_some(HttpUrl { authority, host, port, path })
    }
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
            ("https://a.test/", None),
            ("http://:80/", None),
            ("http://a.test:x/", None),
            ("http://a.test?x", None),
            ("", None),
        ] {
            assert_eq!(HttpUrl::parse(url), expected, "{url}");
        }
    }
}
