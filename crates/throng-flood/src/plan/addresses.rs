//! Local addresses to connect from: one, a network, or those of an interface.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use throng_units::Invalid;

/// A network of more addresses is cut to this many: they hold four billion connections to one port.
const ADDRESSES_MAX: usize = 65_536;

const EXPECTED: &str =
    "an address, a network or an interface, like 127.0.0.2, 127.0.1.0/24 or eth0";

/// What was written, as addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(pub Vec<IpAddr>);

impl FromStr for Addresses {
    type Err = Invalid;

    /// Several may stand in one text, separated by commas.
    fn from_str(text: &str) -> Result<Addresses, Invalid> {
        let mut addresses = Vec::new();
        for each in text.split(',').map(str::trim) {
            addresses.extend(read(each)?);
        }
        addresses.dedup();
        Ok(Addresses(addresses))
    }
}

fn read(text: &str) -> Result<Vec<IpAddr>, Invalid> {
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    if let Some((address, prefix)) = text.split_once('/') {
        let network = address.parse().ok().zip(prefix.parse().ok());
        return network
            .and_then(|(address, prefix)| network_hosts(address, prefix))
            .ok_or_else(|| Invalid::new(text, EXPECTED));
    }
    let index = is_interface_name(text)
        .then(|| fs::read_to_string(format!("/sys/class/net/{text}/ifindex")).ok())
        .flatten()
        .and_then(|index| index.trim().parse().ok());
    let Some(index) = index else {
        let message = format!("{text:?} is not {EXPECTED}; this machine has no interface {text:?}");
        return Err(Invalid(message));
    };
    match interface_addresses(index) {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(Invalid(format!("the interface {text} has no address"))),
        Err(error) => Err(Invalid(format!("the addresses of {text} cannot be read: {error}"))),
    }
}

fn is_interface_name(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains('/')
}

/// All addresses of a network that a host may have: not the network itself nor its broadcast.
fn network_hosts(address: IpAddr, prefix: u32) -> Option<Vec<IpAddr>> {
    match address {
        IpAddr::V4(address) => {
            let size = 1_u64 << 32_u32.checked_sub(prefix)?;
            let first = u64::from(u32::from(address)) & !(size - 1);
            let ends = u64::from(size > 2);
            let hosts = (first + ends..first + size - ends).take(ADDRESSES_MAX);
            Some(hosts.map(|host| IpAddr::V4(Ipv4Addr::from(host as u32))).collect())
        }
        IpAddr::V6(address) => {
            let bits = 128_u32.checked_sub(prefix)?;
            let size = 1_u128.checked_shl(bits);
            let first = size.map_or(0, |size| u128::from(address) & !(size - 1));
            let count = size.map_or(ADDRESSES_MAX, |size| size.min(ADDRESSES_MAX as u128) as usize);
            // The first address of a network is that of any of its routers.
            let skipped = usize::from(count > 2);
            let hosts = (skipped..count).map(|host| first + host as u128);
            Some(hosts.map(|host| IpAddr::V6(Ipv6Addr::from(host))).collect())
        }
    }
}

/// A netlink message's head, and the head of an address in it.
const HEAD_BYTES: usize = 16;
const ADDRESS_HEAD_BYTES: usize = 8;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
/// The interface's own address; elsewhere (`ADDRESS`) a point-to-point link has its peer's.
const LOCAL: u16 = 2;
const ADDRESS: u16 = 1;
/// An IPv6 link-local address needs a scope, which a source has no place for.
const SCOPE_LINK: u8 = 253;
/// Loopback.
const SCOPE_HOST: u8 = 254;

/// The addresses of an interface, asked of the kernel by rtnetlink.
fn interface_addresses(index: u32) -> std::io::Result<Vec<IpAddr>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut request = Vec::with_capacity(HEAD_BYTES + ADDRESS_HEAD_BYTES);
    request.extend(((HEAD_BYTES + ADDRESS_HEAD_BYTES) as u32).to_ne_bytes());
    request.extend(GET_ADDRESS.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.resize(HEAD_BYTES + ADDRESS_HEAD_BYTES, 0);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut addresses = Vec::new();
    let mut room = vec![0_u8; 64 << 10];
    loop {
        let (_, bytes) = rustix::net::recv(&socket, &mut room[..], RecvFlags::empty())?;
        let mut rest = &room[..bytes.min(room.len())];
        while let Some((kind, body, after)) = message(rest) {
            match kind {
                NEW_ADDRESS => addresses.extend(address_of(body, index)),
                DONE => return Ok(addresses),
                _ => return Err(std::io::Error::other("the kernel refused to list them")),
            }
            rest = after;
        }
    }
}

/// The kind, the body and what comes after the first message.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEAD_BYTES..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, after))
}

/// The address in a message, if it is one of this interface that can be bound to.
fn address_of(body: &[u8], index: u32) -> Option<IpAddr> {
    let (head, mut rest) = body.split_first_chunk::<ADDRESS_HEAD_BYTES>()?;
    let [.., scope, a, b, c, d] = *head;
    let is_loopback = scope == SCOPE_HOST;
    if u32::from_ne_bytes([a, b, c, d]) != index || (scope >= SCOPE_LINK && !is_loopback) {
        return None;
    }
    let mut found = None;
    while let Some(length) = rest.first_chunk().map(|&two| usize::from(u16::from_ne_bytes(two))) {
        let kind = rest.get(2..4).and_then(|two| two.try_into().ok()).map(u16::from_ne_bytes)?;
        let value = rest.get(4..length)?;
        let address = match value.len() {
            4 => value.try_into().ok().map(|four: [u8; 4]| IpAddr::from(four)),
            16 => value.try_into().ok().map(|sixteen: [u8; 16]| IpAddr::from(sixteen)),
            _ => None,
        };
        if kind == LOCAL || (kind == ADDRESS && found.is_none()) {
            found = address;
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let addresses: Addresses = text.parse().unwrap_or_else(|error| panic!("{error}"));
        addresses.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reads_addresses_and_networks() {
        assert_eq!(read("127.0.0.2, ::1"), ["127.0.0.2", "::1"]);
        assert_eq!(read("10.1.2.9/30"), ["10.1.2.9", "10.1.2.10"]);
        assert_eq!(read("10.1.2.9/32"), ["10.1.2.9"]);
        assert_eq!(read("10.1.2.9/31"), ["10.1.2.8", "10.1.2.9"]);
        assert_eq!(read("127.0.0.0/8").len(), ADDRESSES_MAX);
        assert_eq!(read("fd00::/126"), ["fd00::1", "fd00::2", "fd00::3"]);
        assert_eq!(read("::/0").len(), ADDRESSES_MAX - 1);
    }

    #[test]
    fn asks_the_kernel_for_those_of_an_interface() {
        assert!(read("lo").contains(&"127.0.0.1".to_owned()));
    }

    #[test]
    fn says_what_is_wrong() {
        for text in ["", "10.0.0.1/33", "10.0.0/8", "no-such0", "../..", "10.0.0.1/", "300.1.1.1"] {
            let error = text.parse::<Addresses>().unwrap_err().to_string();
            assert!(
                error.contains("is not an address, a network or an interface"),
                "{text}: {error}"
            );
        }
    }
}
