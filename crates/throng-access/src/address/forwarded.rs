//! The headers in which proxies pass the client's address on.
//!
//! Each proxy adds the address that it saw at the end. So the list is read from its end: as long as
//! an address belongs to a trusted proxy, the one before it was added by that proxy and can be
//! believed. The first address of no trusted proxy is the client's. Earlier elements may be the
//! client's own invention, and are ignored.

use std::net::{IpAddr, SocketAddr};

use super::network::Networks;

/// The most elements of the list that are read, one for each proxy between client and server. The
/// rest of a line is gone through once for each.
pub(crate) const HOPS_MAX: usize = 16;

/// The header that the trusted proxies write. Only one is read: a proxy that writes one of them
/// passes on the other as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// `X-Forwarded-For`: addresses, separated by commas.
    XForwardedFor,
}

impl ForwardedHeader {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ForwardedHeader::Forwarded => "forwarded",
            ForwardedHeader::XForwardedFor => "x-forwarded-for",
        }
    }
}

/// The address of a client, as far as it can be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// The client's own address.
    Known(IpAddr),
    /// A trusted proxy does not say whom it speaks for, or says `unknown`. Limits per address
    /// cannot apply: they would hold for everybody behind the proxy.
    Unknown,
}

/// A header that a trusted proxy would not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the header with the client's address is malformed")]
    Malformed,
    /// Among the last [`HOPS_MAX`] elements there is none of a client.
    #[error("the request came through more than {HOPS_MAX} proxies")]
    TooManyHops,
}

/// The client's address, for a connection from `peer` with these values of `header`, in the order
/// of the request. Without trusted proxies, and if `peer` is none, it is `peer`. If all addresses
/// are trusted proxies', it is the first one.
///
/// # Errors
///
/// See [`HeaderError`]. Only what trusted proxies wrote can cause one, except that a client can
/// break a `Forwarded` line with an open quotation mark to which a proxy appends.
pub fn client_address<'a>(
    peer: IpAddr,
    trusted: &Networks,
    header: ForwardedHeader,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> Result<ClientAddress, HeaderError> {
    // A socket for both IP versions shows IPv4 peers as mapped addresses.
    let peer = peer.to_canonical();
    if !trusted.contains(peer) {
        return Ok(ClientAddress::Known(peer));
    }
    let mut farthest = None;
    let mut hops = 0;
    // From the end: proxies append, so that everything before the first stranger may be forged.
    for value in values.rev() {
        let value = str::from_utf8(value).map_err(|_| HeaderError::Malformed)?;
        let elements = match header {
            ForwardedHeader::XForwardedFor => Elements::XForwardedFor(value),
            ForwardedHeader::Forwarded => Elements::Forwarded(value),
        };
        let mut rest = Some(elements);
        while let Some(elements) = rest {
            let (last, before) = elements.split_last()?;
            rest = before;
            hops += 1;
            if hops > HOPS_MAX {
                return Err(HeaderError::TooManyHops);
            }
            match node(last, header)? {
                Node::None => {}
                Node::Hidden => return Ok(ClientAddress::Unknown),
                Node::Address(address) if trusted.contains(address) => {
                    farthest = Some(address);
                }
                Node::Address(address) => return Ok(ClientAddress::Known(address)),
            }
        }
    }
    Ok(farthest.map_or(ClientAddress::Unknown, ClientAddress::Known))
}

/// The elements of one line that are not read yet.
enum Elements<'a> {
    XForwardedFor(&'a str),
    Forwarded(&'a str),
}

impl<'a> Elements<'a> {
    /// The last element, and those before it.
    fn split_last(self) -> Result<(&'a str, Option<Elements<'a>>), HeaderError> {
        match self {
            Elements::XForwardedFor(list) => Ok(match list.rsplit_once(',') {
                Some((before, last)) => (last, Some(Elements::XForwardedFor(before))),
                None => (list, None),
            }),
            Elements::Forwarded(list) => {
                let comma = last_comma(list)?;
                let last = comma.map_or(list, |at| &list[at + 1..]);
                Ok((last, comma.map(|at| Elements::Forwarded(&list[..at]))))
            }
        }
    }
}

/// The last comma outside of quotation marks (RFC 9110 section 5.6.4).
fn last_comma(list: &str) -> Result<Option<usize>, HeaderError> {
    let (mut is_quoted, mut is_escaped, mut last) = (false, false, None);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => last = Some(at),
            _ => {}
        }
    }
    if is_quoted { Err(HeaderError::Malformed) } else { Ok(last) }
}

/// A client, as one element names it.
enum Node {
    /// The element is empty or has no `for`, as when a proxy adds only `proto`.
    None,
    /// The proxy does not say.
    Hidden,
    Address(IpAddr),
}

fn node(element: &str, header: ForwardedHeader) -> Result<Node, HeaderError> {
    let element = element.trim_matches([' ', '\t']);
    if element.is_empty() {
        return Ok(Node::None);
    }
    match header {
        ForwardedHeader::XForwardedFor => parse_node(element),
        ForwardedHeader::Forwarded => match for_parameter(element)? {
            Some(node) => parse_node(&node),
            None => Ok(Node::None),
        },
    }
}

/// The value of `for` in an element such as `for="[2001:db8::1]:4711";proto=https`.
fn for_parameter(element: &str) -> Result<Option<String>, HeaderError> {
    let mut found = None;
    let mut rest = element;
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or(HeaderError::Malformed)?;
        let (value, after) = parameter_value(after)?;
        if name.trim_matches([' ', '\t', ';']).eq_ignore_ascii_case("for") {
            // RFC 7239 section 4: each parameter at most once in an element.
            if found.is_some() {
                return Err(HeaderError::Malformed);
            }
            found = Some(value);
        }
        rest = after;
    }
    Ok(found)
}

/// A token or a quoted string, and what follows its semicolon.
fn parameter_value(text: &str) -> Result<(String, &str), HeaderError> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_once(';').unwrap_or((text, ""));
        return Ok((value.trim_matches([' ', '\t']).to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                let rest = quoted[at + 1..].trim_start_matches([' ', '\t']);
                let rest = match rest.strip_prefix(';') {
                    Some(rest) => rest,
                    None if rest.is_empty() => rest,
                    None => return Err(HeaderError::Malformed),
                };
                return Ok((value, rest));
            }
            '\\' => value.push(characters.next().ok_or(HeaderError::Malformed)?.1),
            _ => value.push(character),
        }
    }
    Err(HeaderError::Malformed)
}

/// An address with or without a port, `unknown`, or a name that a proxy made up (RFC 7239 section
/// 6).
fn parse_node(node: &str) -> Result<Node, HeaderError> {
    if let Ok(address) = node.parse::<IpAddr>() {
        return Ok(Node::Address(address.to_canonical()));
    }
    if let Ok(address) = node.parse::<SocketAddr>() {
        return Ok(Node::Address(address.ip().to_canonical()));
    }
    let bracketed = node.strip_prefix('[').and_then(|inner| inner.split_once(']'));
    if let Some((inner, port)) = bracketed {
        let address: std::net::Ipv6Addr = inner.parse().map_err(|_| HeaderError::Malformed)?;
        return if is_port(port) {
            Ok(Node::Address(IpAddr::V6(address).to_canonical()))
        } else {
            Err(HeaderError::Malformed)
        };
    }
    let name = node.split_once(':').map_or(node, |(name, _)| name);
    if name.starts_with('_') || name.eq_ignore_ascii_case("unknown") {
        return Ok(Node::Hidden);
    }
    // An IPv4 address with a port that is a name.
    match node.split_once(':').and_then(|(address, port)| {
        is_port(&format!(":{port}")).then(|| address.parse::<std::net::Ipv4Addr>().ok()).flatten()
    }) {
        Some(address) => Ok(Node::Address(address.into())),
        None => Err(HeaderError::Malformed),
    }
}

/// Nothing, or a colon with a number or with a name that a proxy made up.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    port.parse::<u16>().is_ok() || port.starts_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use ForwardedHeader::{Forwarded, XForwardedFor};

    fn trusted() -> Networks {
        Networks::new(["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).into())
    }

    fn client(
        peer: &str,
        header: ForwardedHeader,
        values: &[&str],
    ) -> Result<ClientAddress, HeaderError> {
        let values = values.iter().map(|value| value.as_bytes());
        client_address(peer.parse().unwrap(), &trusted(), header, values)
    }

    fn known(address: &str) -> Result<ClientAddress, HeaderError> {
        Ok(ClientAddress::Known(address.parse().unwrap()))
    }

    #[test]
    fn a_peer_that_is_no_proxy_speaks_for_itself() {
        let spoofed = ["203.0.113.9, garbage\"", "\u{ff}"];
        for header in [Forwarded, XForwardedFor] {
            assert_eq!(client("192.0.2.1", header, &spoofed), known("192.0.2.1"));
        }
        assert_eq!(client("::ffff:192.0.2.1", XForwardedFor, &[]), known("192.0.2.1"));
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_client() {
        for (values, expected) in [
            (vec!["203.0.113.9"], known("203.0.113.9")),
            (vec!["198.51.100.1, 203.0.113.9"], known("203.0.113.9")),
            (vec!["198.51.100.1, 203.0.113.9, 10.1.1.1"], known("203.0.113.9")),
            (vec!["198.51.100.1", "203.0.113.9", "10.1.1.1,10.2.2.2"], known("203.0.113.9")),
            (vec!["garbage, 203.0.113.9"], known("203.0.113.9")),
            (vec!["203.0.113.9:4711"], known("203.0.113.9")),
            (vec!["[2001:db8::1]:4711"], known("2001:db8::1")),
            (vec!["2001:db8::1"], known("2001:db8::1")),
            (vec!["203.0.113.9, , "], known("203.0.113.9")),
            (vec!["10.3.3.3, 10.1.1.1"], known("10.3.3.3")),
            (vec!["203.0.113.9, unknown"], Ok(ClientAddress::Unknown)),
            (vec![], Ok(ClientAddress::Unknown)),
            (vec![""], Ok(ClientAddress::Unknown)),
            (vec!["203.0.113.9, garbage"], Err(HeaderError::Malformed)),
            (vec!["203.0.113.9", "10.1.1.1, 1.2.3.4.5"], Err(HeaderError::Malformed)),
        ] {
            assert_eq!(client("10.0.0.1", XForwardedFor, &values), expected, "{values:?}");
        }
    }

    #[test]
    fn elements_of_rfc_7239_are_read() {
        for (values, expected) in [
            (vec!["for=203.0.113.9;proto=http;by=10.0.0.1"], known("203.0.113.9")),
            (vec!["For=\"[2001:db8:cafe::17]:4711\""], known("2001:db8:cafe::17")),
            (vec!["for=192.0.2.43, for=198.51.100.17"], known("198.51.100.17")),
            (
                vec!["for=203.0.113.9, for=10.1.1.1;proto=https", "for=fd00::1"],
                known("203.0.113.9"),
            ),
            (vec!["for=203.0.113.9, proto=https"], known("203.0.113.9")),
            (vec!["for=\"203.0.113.9\\:80\""], known("203.0.113.9")),
            (vec!["host=\"a,b;for=1.2.3.4\";for=203.0.113.9"], known("203.0.113.9")),
            (vec!["for=_hidden"], Ok(ClientAddress::Unknown)),
            (vec!["for=unknown;proto=https"], Ok(ClientAddress::Unknown)),
            (vec!["for=\"_gazonk\""], Ok(ClientAddress::Unknown)),
            (vec!["for=\"203.0.113.9:_obf\""], known("203.0.113.9")),
            (vec!["for=1.2.3.4;for=203.0.113.9"], Err(HeaderError::Malformed)),
            (vec!["for=\"1.2.3.4"], Err(HeaderError::Malformed)),
            (vec!["for=\"1.2.3.4\"x"], Err(HeaderError::Malformed)),
            (vec!["203.0.113.9"], Err(HeaderError::Malformed)),
            (vec!["for=\"\\"], Err(HeaderError::Malformed)),
            // A client cannot hide the address that a proxy adds to its own line.
            (vec!["for=\"", "for=203.0.113.9"], known("203.0.113.9")),
            (vec!["for=\", for=203.0.113.9"], Err(HeaderError::Malformed)),
        ] {
            assert_eq!(client("10.0.0.1", Forwarded, &values), expected, "{values:?}");
        }
    }

    #[test]
    fn the_number_of_proxies_is_limited() {
        let proxies = |count| vec!["10.1.1.1"; count].join(",");
        let list = format!("203.0.113.9,{}", proxies(HOPS_MAX - 1));
        assert_eq!(client("10.0.0.1", XForwardedFor, &[&list]), known("203.0.113.9"));
        let list = format!("203.0.113.9,{}", proxies(HOPS_MAX));
        let commas = ",".repeat(16 << 10);
        for list in [&*list, &commas, &format!("203.0.113.9,{commas}")] {
            for header in [Forwarded, XForwardedFor] {
                let found = client("10.0.0.1", header, &[list]);
                let is_form = header == XForwardedFor || list.starts_with(',');
                assert!(found.is_err(), "{header:?} {found:?}");
                assert!(!is_form || found == Err(HeaderError::TooManyHops), "{header:?}");
            }
        }
    }

    proptest! {
        /// A client cannot choose its address by a header in front of the proxy's.
        #[test]
        fn a_client_cannot_choose_its_address(
            sent in "[ -~]{0,30}", has_own_line in any::<bool>(),
        ) {
            let headers = [(Forwarded, "for=203.0.113.9"), (XForwardedFor, "203.0.113.9")];
            for (header, added) in headers {
                let joined = format!("{sent}, {added}");
                let values: &[&str] = if has_own_line { &[&sent, added] } else { &[&joined] };
                let found = client("10.0.0.1", header, values);
                let is_broken = header == Forwarded && !has_own_line && sent.contains('"');
                prop_assert!(
                    found == known("203.0.113.9")
                        || is_broken && found == Err(HeaderError::Malformed),
                    "{:?}", found
                );
            }
        }

        #[test]
        fn garbage_never_panics(value in prop::collection::vec(any::<u8>(), 0..60)) {
            for header in [Forwarded, XForwardedFor] {
                let peer = "10.0.0.1".parse().unwrap();
                let _ = client_address(peer, &trusted(), header, [&value[..]].into_iter());
            }
        }
    }
}
