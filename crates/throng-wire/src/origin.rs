//! The policy for `Origin` and `Host`: which pages may use the server, and under which host names
//! it answers.
//!
//! A browser sends the page's origin in a header that the page cannot forge. Without this check,
//! any page could reach a server on its visitor's machine or network. Programs send no origin; the
//! policy does not keep them out.
//!
//! Two facts make the host as important as the origin. The owner of a name can let it resolve to
//! 127.0.0.1 (DNS rebinding), so an origin that equals `Host` proves little. And a browser sends no
//! `Origin` with a `GET` to the page's own host (Fetch, section 3.1), so such a page could read
//! everything. Hence a server on loopback answers only under addresses, which no name server
//! resolves, and under the names that its settings list.

use std::net::{IpAddr, Ipv6Addr};

use crate::error::{ErrorCode, ErrorResponse};

/// The longest name in DNS. Error messages do not repeat longer ones.
const HOST_BYTES_MAX: usize = 253;

/// The address and the settings that decide which requests are answered.
#[derive(Debug, Clone, Copy)]
pub struct OriginPolicy<'a> {
    /// The address on which the server listens.
    pub listen: IpAddr,
    /// The setting `allowed-origins`: origins, `https://*.example.com` for all hosts below one,
    /// `null`, or `*` for any.
    pub origins: &'a [String],
    /// The setting `allowed-hosts`: host names without a port, or `*` for any.
    pub hosts: &'a [String],
    /// True if pages on loopback must come from the server's own port.
    pub is_same_port_only: bool,
}

impl OriginPolicy<'_> {
    /// Returns an error unless a request with this `Origin` and `Host` may be answered. Only
    /// HTTP/1.0 has requests without a host, and no browser sends one.
    pub fn check(&self, origin: Option<&str>, host: Option<&str>) -> Result<(), ErrorResponse> {
        match (origin, host) {
            (Some(origin), _) if self.allows_page(origin, host) => Ok(()),
            (Some(origin), _) => Err(origin_refused(origin)),
            (None, Some(host)) if !self.is_own_host(host) => Err(host_refused(host)),
            (None, _) => Ok(()),
        }
    }

    /// True if pages of this origin may use the server under this host name.
    pub fn allows_page(&self, origin: &str, host: Option<&str>) -> bool {
        if self.origins.iter().any(|entry| entry == "*" || entry.eq_ignore_ascii_case(origin)) {
            return true;
        }
        if self.lists_origin(origin) {
            return true;
        }
        let Some(origin) = Origin::parse(origin) else { return false };
        let Some((host, port)) = host.and_then(split_authority) else { return false };
        let port = port.or(origin.default_port());
        if is_loopback(host) {
            return is_loopback(origin.host) && (!self.is_same_port_only || origin.port == port);
        }
        let is_same_origin = is_same_name(origin.host, host) && origin.port == port;
        is_same_origin && (is_address(host) || self.lists_host(host))
    }

    /// True if the settings list this origin itself, or all hosts below one of which it is. Neither
    /// `*` nor `null`, the origin of every sandboxed page, lists one, nor `file://`, whose pages
    /// say `null` or have no host.
    pub fn lists_origin(&self, origin: &str) -> bool {
        let Some(origin) = Origin::parse(origin) else { return false };
        self.origins
            .iter()
            .filter_map(|entry| Origin::parse(entry))
            .any(|entry| entry.covers(&origin))
    }

    /// True if the server answers requests without an origin under this host name. The hosts of
    /// allowed origins count too: a proxy that serves such a page forwards its own name.
    fn is_own_host(&self, host: &str) -> bool {
        let Some((host, _)) = split_authority(host) else { return false };
        let is_of_page = |entry: &String| {
            entry == "*" || Origin::parse(entry).is_some_and(|origin| origin.covers_host(host))
        };
        is_address(host)
            || is_loopback(host)
            || self.lists_host(host)
            || self.origins.iter().any(is_of_page)
    }

    /// True if the settings allow this host name. A server that does not listen on loopback may
    /// have names that it cannot know, so there an empty list allows any.
    fn lists_host(&self, host: &str) -> bool {
        let is_any = self.hosts.is_empty() && !self.listen.to_canonical().is_loopback();
        is_any || self.hosts.iter().any(|entry| entry == "*" || is_same_name(entry, host))
    }
}

fn origin_refused(origin: &str) -> ErrorResponse {
    let sentence = format!(
        "pages of {origin} may not use this server; allow them with --allowed-origins {origin}"
    );
    ErrorResponse::new(ErrorCode::OriginRefused, sentence)
}

fn host_refused(host: &str) -> ErrorResponse {
    let name = split_authority(host).map_or(host, |(name, _)| name);
    let sentence = if name.len() > HOST_BYTES_MAX {
        "the name in `Host` is longer than a host name can be".to_owned()
    } else {
        format!(
            "this server does not answer under the name {name}: use its address, or allow the \
             name with --allowed-hosts {name}"
        )
    };
    ErrorResponse::new(ErrorCode::HostRefused, sentence)
}

/// True if a request to this `Host` may see status and metrics. There is no authentication, so only
/// clients on the same machine may: the server listens on loopback, and no name server resolves the
/// host. DNS rebinding, and a proxy that forwards the host, show in the host alone, because a page
/// sends no `Origin` with a `GET` to its own host.
pub fn is_local(host: Option<&str>, listen: IpAddr) -> bool {
    let host = host.and_then(split_authority);
    listen.to_canonical().is_loopback() && host.is_some_and(|(host, _)| is_loopback(host))
}

/// True if a page of this origin was loaded from the machine that shows it.
pub fn is_loopback_origin(origin: &str) -> bool {
    Origin::parse(origin).is_some_and(|origin| is_loopback(origin.host))
}

/// A parsed origin, `scheme://host[:port]`.
struct Origin<'a> {
    scheme: &'a str,
    host: &'a str,
    /// The default port of the scheme if the origin has none; `None` for other schemes.
    port: Option<u16>,
}

impl<'a> Origin<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        // People end a listed origin with a slash; browsers never send one.
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

    /// True if this entry of the settings is the other origin, or a pattern for it.
    fn covers(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && self.covers_host(other.host)
            && self.port == other.port
    }

    /// True if this entry is for this host. `*.example.com` is for all below `example.com`, however
    /// deep, and not for `example.com` itself. No browser sends a host with an asterisk.
    fn covers_host(&self, host: &str) -> bool {
        let Some(parent) = self.host.strip_prefix('*').filter(|parent| parent.starts_with('.'))
        else {
            return is_same_name(self.host, host);
        };
        let (parent, host) = (complete(parent), complete(host));
        let below = host.len().checked_sub(parent.len()).and_then(|at| host.split_at_checked(at));
        below.is_some_and(|(name, rest)| !name.is_empty() && rest.eq_ignore_ascii_case(parent))
    }
}

/// Splits `host[:port]`; `None` if it is malformed. An IPv6 address keeps its brackets.
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

/// The characters of a registered name in RFC 3986.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}

/// True if two host names are equal. A final dot only marks a name as complete: resolvers treat
/// `localhost.` as `localhost`.
fn is_same_name(left: &str, right: &str) -> bool {
    complete(left).eq_ignore_ascii_case(complete(right))
}

fn complete(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

fn is_loopback(host: &str) -> bool {
    if let Some(address) = address(host) {
        return address.to_canonical().is_loopback();
    }
    let bytes = complete(host).as_bytes();
    let suffix = b".localhost";
    let is_below = bytes.len() > suffix.len()
        && bytes[bytes.len() - suffix.len()..].eq_ignore_ascii_case(suffix);
    bytes.eq_ignore_ascii_case(b"localhost") || is_below
}

/// True if a host is an address rather than a name.
fn is_address(host: &str) -> bool {
    address(host).is_some()
}

fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

#[cfg(test)]
mod tests;
