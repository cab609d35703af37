//! The PROXY protocol, versions 1 and 2 (the specification is `doc/proxy-protocol.txt` of HAProxy).
//!
//! A proxy that does not read what it forwards sends the client's address once, before anything
//! else. A listener expects the header always or never: with "perhaps", any client could send one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The longest header of version 1, with its line end.
pub(crate) const PROXY_V1_BYTES_MAX: usize = 107;

/// The longest header of version 2 that is accepted. The addresses take at most 232 bytes; what
/// proxies add (TLS details, ids of private links) takes some hundred.
pub const PROXY_BYTES_MAX: usize = 2048;

/// First bytes of version 2. No HTTP request begins so.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_HEAD_BYTES: usize = 16;
const V1_SIGNATURE: &[u8] = b"PROXY ";

/// The state of a header that is arriving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The header is not complete yet.
    Incomplete,
    /// The header ends after `length` bytes.
    Complete {
        /// Whom the proxy speaks for.
        proxied: Proxied,
        length: usize,
    },
}

/// Whom the proxy speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxied {
    Client(SocketAddr),
    /// The proxy itself, which checks whether the server is alive (`LOCAL`).
    Itself,
    /// A client whose address the proxy does not know or cannot express (`UNKNOWN`, Unix sockets).
    Unknown,
}

/// Why a header is invalid. The connection is closed without an answer, as the specification
/// demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The connection begins with something else.
    #[error("there is no PROXY header, although this listener expects one")]
    Missing,
    /// It has a version, command or family that does not exist.
    #[error("the PROXY header has an unknown version, command or family")]
    Unsupported,
    /// Its addresses or ports are malformed.
    #[error("the PROXY header is malformed")]
    Malformed,
    /// It is longer than its version allows or [`PROXY_BYTES_MAX`].
    #[error("the PROXY header is too long")]
    TooLong,
}

/// Parses a header from the first bytes of a connection. The result for a part of a header is
/// [`ProxyHeader::Incomplete`] or the error of the whole.
///
/// # Errors
///
/// See [`ProxyError`].
pub fn parse_proxy_header(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let begins = |signature: &[u8]| {
        let common = bytes.len().min(signature.len());
        bytes[..common] == signature[..common]
    };
    if begins(V1_SIGNATURE) {
        if bytes.len() < V1_SIGNATURE.len() { Ok(ProxyHeader::Incomplete) } else { parse_v1(bytes) }
    } else if begins(V2_SIGNATURE) {
        parse_v2(bytes)
    } else {
        Err(ProxyError::Missing)
    }
}

/// `PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n`
fn parse_v1(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let within = &bytes[..bytes.len().min(PROXY_V1_BYTES_MAX)];
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        return if within.len() < PROXY_V1_BYTES_MAX {
            Ok(ProxyHeader::Incomplete)
        } else {
            Err(ProxyError::TooLong)
        };
    };
    let line =
        str::from_utf8(&within[V1_SIGNATURE.len()..end]).map_err(|_| ProxyError::Malformed)?;
    let mut parts = line.split(' ');
    let proxied = match parts.next() {
        // The rest of the line is to be ignored.
        Some("UNKNOWN") => Proxied::Unknown,
        Some("TCP4") => Proxied::Client(parse_v1_addresses::<Ipv4Addr>(parts)?),
        Some("TCP6") => Proxied::Client(parse_v1_addresses::<Ipv6Addr>(parts)?),
        _ => return Err(ProxyError::Unsupported),
    };
    Ok(ProxyHeader::Complete { proxied, length: end + 2 })
}

/// The client's address: the first of two, with the first of two ports.
fn parse_v1_addresses<'a, A: FromStr + Into<IpAddr>>(
    mut parts: impl Iterator<Item = &'a str>,
) -> Result<SocketAddr, ProxyError> {
    let mut next = || parts.next().ok_or(ProxyError::Malformed);
    let [source, destination, source_port, destination_port] = [next()?, next()?, next()?, next()?];
    if parts.next().is_some() {
        return Err(ProxyError::Malformed);
    }
    let address = |text: &str| text.parse::<A>().map_err(|_| ProxyError::Malformed);
    address(destination)?;
    parse_v1_port(destination_port)?;
    Ok(SocketAddr::new(address(source)?.into(), parse_v1_port(source_port)?))
}

/// A decimal number without sign and leading zeros.
fn parse_v1_port(text: &str) -> Result<u16, ProxyError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || (text.len() > 1 && text.starts_with('0')) {
        return Err(ProxyError::Malformed);
    }
    text.parse().map_err(|_| ProxyError::Malformed)
}

fn parse_v2(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let at = V2_SIGNATURE.len();
    // The checks go in the order of the bytes, so that a part gets the error of the whole.
    let Some(&version_and_command) = bytes.get(at) else { return Ok(ProxyHeader::Incomplete) };
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyError::Unsupported),
    };
    let Some(&family) = bytes.get(at + 1) else { return Ok(ProxyHeader::Incomplete) };
    if family >> 4 > 3 || family & 0xf > 2 {
        return Err(ProxyError::Unsupported);
    }
    let Some(&[high, low]) = bytes.get(at + 2..V2_HEAD_BYTES) else {
        return Ok(ProxyHeader::Incomplete);
    };
    let body_bytes = usize::from(u16::from_be_bytes([high, low]));
    let length = V2_HEAD_BYTES + body_bytes;
    if length > PROXY_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let address_bytes = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    // It may be longer: extensions (TLVs) follow the addresses.
    if !is_local && body_bytes < address_bytes {
        return Err(ProxyError::Malformed);
    }
    let Some(body) = bytes.get(V2_HEAD_BYTES..length) else { return Ok(ProxyHeader::Incomplete) };
    let proxied = match family {
        // A proxy that connects for itself, to check the server's health: its addresses mean
        // nothing.
        _ if is_local => Proxied::Itself,
        // TCP over IPv4 and IPv6.
        0x11 => Proxied::Client(v2_address::<4>(body, 8)),
        0x21 => Proxied::Client(v2_address::<16>(body, 32)),
        _ => Proxied::Unknown,
    };
    Ok(ProxyHeader::Complete { proxied, length })
}

/// The address at the start of a body, and the port at `port_at`.
fn v2_address<const BYTES: usize>(body: &[u8], port_at: usize) -> SocketAddr
where
    [u8; BYTES]: Into<IpAddr>,
{
    let mut address = [0; BYTES];
    address.copy_from_slice(&body[..BYTES]);
    SocketAddr::new(address.into(), u16::from_be_bytes([body[port_at], body[port_at + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2(version_and_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [V2_SIGNATURE, &[version_and_command, family][..], &length, body].concat()
    }

    fn complete(bytes: &[u8]) -> Result<Proxied, ProxyError> {
        match parse_proxy_header(bytes)? {
            ProxyHeader::Complete { proxied, length } => {
                assert_eq!(length, bytes.len());
                Ok(proxied)
            }
            ProxyHeader::Incomplete => panic!("incomplete"),
        }
    }

    fn client(address: &str) -> Result<Proxied, ProxyError> {
        Ok(Proxied::Client(address.parse().unwrap()))
    }

    const V4_BODY: &[u8] = &[203, 0, 113, 9, 10, 0, 0, 1, 0x12, 0x67, 1, 0xbb];

    fn v6_body() -> Vec<u8> {
        let addresses =
            ["2001:db8::1", "2001:db8::2"].map(|text| text.parse::<Ipv6Addr>().unwrap());
        [&addresses[0].octets()[..], &addresses[1].octets(), &[0x12, 0x67, 1, 0xbb]].concat()
    }

    /// Headers of all kinds, with and without additions.
    fn good() -> Vec<(Vec<u8>, Result<Proxied, ProxyError>)> {
        let v1 = |text: &str| format!("PROXY {text}\r\n").into_bytes();
        vec![
            (v1("TCP4 203.0.113.9 10.0.0.1 4711 443"), client("203.0.113.9:4711")),
            (v1("TCP6 2001:db8::1 2001:db8::2 4711 443"), client("[2001:db8::1]:4711")),
            (
                v1("TCP4 255.255.255.255 255.255.255.255 65535 65535"),
                client("255.255.255.255:65535"),
            ),
            (v1("TCP4 1.2.3.4 5.6.7.8 0 0"), client("1.2.3.4:0")),
            (v1("UNKNOWN"), Ok(Proxied::Unknown)),
            (
                v1("UNKNOWN ffff:f:f:f:ffff:ffff:ffff:ffff \
                     ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                    65535 65535"),
                Ok(Proxied::Unknown),
            ),
            (v2(0x21, 0x11, V4_BODY), client("203.0.113.9:4711")),
            (v2(0x21, 0x11, &[V4_BODY, &[4, 0, 1, 0]].concat()), client("203.0.113.9:4711")),
            (v2(0x21, 0x21, &v6_body()), client("[2001:db8::1]:4711")),
            (v2(0x21, 0x00, b""), Ok(Proxied::Unknown)),
            (v2(0x21, 0x31, &[0; 216]), Ok(Proxied::Unknown)),
            (v2(0x21, 0x12, V4_BODY), Ok(Proxied::Unknown)),
            (v2(0x20, 0x00, b""), Ok(Proxied::Itself)),
            (v2(0x20, 0x11, b"x"), Ok(Proxied::Itself)),
        ]
    }

    #[test]
    fn headers_of_both_versions_are_read() {
        for (bytes, expected) in good() {
            assert_eq!(complete(&bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_part_of_a_header_is_incomplete() {
        for (bytes, _) in good() {
            for cut in 0..bytes.len() {
                let part = parse_proxy_header(&bytes[..cut]);
                assert_eq!(part, Ok(ProxyHeader::Incomplete), "cut at {cut}");
            }
            let more = [&bytes[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(parse_proxy_header(&more), parse_proxy_header(&bytes));
        }
    }

    #[test]
    fn bad_headers_are_refused() {
        let v1 = |text: &str| format!("PROXY {text}\r\n").into_bytes();
        for (bytes, error) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), ProxyError::Missing),
            (b"\r\n".to_vec().repeat(3), ProxyError::Missing),
            (b"proxy TCP4".to_vec(), ProxyError::Missing),
            (v1("TCP5 1.2.3.4 5.6.7.8 1 2"), ProxyError::Unsupported),
            (v1(""), ProxyError::Unsupported),
            (v1("TCP4"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8 1"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8 1 2 3"), ProxyError::Malformed),
            (v1("TCP4  1.2.3.4 5.6.7.8 1 2"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8 1 65536"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8 +1 2"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8 01 2"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 5.6.7.8  2"), ProxyError::Malformed),
            (v1("TCP4 ::1 ::2 1 2"), ProxyError::Malformed),
            (v1("TCP6 1.2.3.4 5.6.7.8 1 2"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.04 5.6.7.8 1 2"), ProxyError::Malformed),
            (v1("TCP4 1.2.3.4 \u{e9} 1 2"), ProxyError::Malformed),
            (format!("PROXY UNKNOWN {}\r\n", "x".repeat(100)).into_bytes(), ProxyError::TooLong),
            (v2(0x11, 0x11, V4_BODY), ProxyError::Unsupported),
            (v2(0x22, 0x11, V4_BODY), ProxyError::Unsupported),
            (v2(0x21, 0x41, V4_BODY), ProxyError::Unsupported),
            (v2(0x21, 0x13, V4_BODY), ProxyError::Unsupported),
            (v2(0x21, 0x11, &V4_BODY[1..]), ProxyError::Malformed),
            (v2(0x21, 0x21, V4_BODY), ProxyError::Malformed),
            (v2(0x21, 0x11, &[0; PROXY_BYTES_MAX]), ProxyError::TooLong),
        ] {
            assert_eq!(parse_proxy_header(&bytes), Err(error), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        /// The result does not depend on how much has arrived.
        #[test]
        fn a_part_gets_the_result_of_the_whole(
            which in 0..14_usize,
            changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..3),
            tail in prop::collection::vec(any::<u8>(), 0..130), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = good().swap_remove(which).0;
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.extend(tail);
            let whole = parse_proxy_header(&bytes);
            let cut = cut.index(bytes.len() + 1);
            match (parse_proxy_header(&bytes[..cut]), whole) {
                (Ok(ProxyHeader::Incomplete), Ok(ProxyHeader::Complete { length, .. })) => {
                    prop_assert!(cut < length);
                }
                (Ok(ProxyHeader::Incomplete), _) => {}
                (part, whole) => prop_assert_eq!(part, whole),
            }
        }
    }
}
