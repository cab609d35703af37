//! Local addresses to connect from: a list, a network, or those of an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use throng_units::Invalid;

/// Larger networks are cut to this many addresses, enough for four billion connections to a port.
const ADDRESSES_MAX: usize = 65_536;

const EXPECTED: &str =
    "an address, a network or an interface, like 127.0.0.2, 127.0.1.0/24 or eth0";

/// Local addresses, as one text names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalAddresses(pub Vec<IpAddr>);

impl FromStr for LocalAddresses {
    type Err = Invalid;

    /// Accepts several, separated by commas.
    fn from_str(text: &str) -> Result<LocalAddresses, Invalid> {
        let mut addresses = Vec::new();
        for each in text.split(',').map(str::trim) {
            addresses.extend(read(each)?);
        }
        addresses.dedup();
        Ok(LocalAddresses(addresses))
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
    if !is_interface_name(text) || !Path::new("/sys/class/net").join(text).exists() {
        let message = format!("{text:?} is not {EXPECTED}; this machine has no interface {text:?}");
        return Err(Invalid(message));
    }
    match interface_addresses(text) {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(Invalid(format!("the interface {text} has no address"))),
        Err(error) => Err(Invalid(format!("the addresses of {text} cannot be read: {error}"))),
    }
}

fn is_interface_name(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains('/')
}

/// The host addresses of a network: not its own address, nor the broadcast address.
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
            // The first address is the routers' anycast address.
            let skipped = usize::from(count > 2);
            let hosts = (skipped..count).map(|host| first + host as u128);
            Some(hosts.map(|host| IpAddr::V6(Ipv6Addr::from(host))).collect())
        }
    }
}

/// The addresses of an interface that a socket can be bound to.
fn interface_addresses(name: &str) -> std::io::Result<Vec<IpAddr>> {
    let all = getifaddrs().map_err(std::io::Error::from)?;
    let of_interface = all.filter(|interface| interface.interface_name == name);
    Ok(of_interface.filter_map(|interface| bindable(&interface.address?)).collect())
}

fn bindable(address: &SockaddrStorage) -> Option<IpAddr> {
    if let Some(address) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(address.ip()));
    }
    // A link-local address needs a scope, which a source cannot have.
    let ip = address.as_sockaddr_in6()?.ip();
    Some(IpAddr::V6(ip)).filter(|_| !ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let addresses: LocalAddresses = text.parse().unwrap_or_else(|error| panic!("{error}"));
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
    fn an_interface_has_its_addresses() {
        assert!(read("lo").contains(&"127.0.0.1".to_owned()));
    }

    #[test]
    fn invalid_sources_are_explained() {
        for text in ["", "10.0.0.1/33", "10.0.0/8", "no-such0", "../..", "10.0.0.1/", "300.1.1.1"] {
            let error = text.parse::<LocalAddresses>().unwrap_err().to_string();
            assert!(
                error.contains("is not an address, a network or an interface"),
                "{text}: {error}"
            );
        }
    }
}
