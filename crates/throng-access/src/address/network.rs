//! Addresses by prefix.

use std::net::IpAddr;
use std::str::FromStr;

/// A network such as `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// IPv4 or IPv6; never IPv4 within IPv6.
    address: IpAddr,
    prefix_bits: u8,
}

/// A text that is no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It is no address, or its prefix is no number up to the address's bits.
    #[error("a network is an address, or an address with the length of its prefix: 10.0.0.0/8")]
    Form,
    /// Bits behind the prefix are set, so that it is unclear which network is meant.
    #[error("this network has bits set behind its prefix")]
    HostBits,
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Form)?;
        let max_bits = bits_of(address);
        let prefix_bits = match prefix {
            None => max_bits,
            // `parse` takes a plus sign as well.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| NetworkError::Form)?
            }
            Some(_) => return Err(NetworkError::Form),
        };
        if prefix_bits > max_bits {
            return Err(NetworkError::Form);
        }
        let canonical = address.to_canonical();
        let prefix_bits = if canonical.is_ipv4() == address.is_ipv4() {
            prefix_bits
        } else {
            // An IPv4 network within IPv6.
            prefix_bits.checked_sub(96).ok_or(NetworkError::HostBits)?
        };
        let network = Network { address: canonical, prefix_bits };
        if !network.is_prefix() {
            return Err(NetworkError::HostBits);
        }
        Ok(network)
    }
}

impl Network {
    /// True if it contains `address`. IPv4 within IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            _ => false,
        }
    }

    /// True if no bit behind the prefix is set.
    fn is_prefix(&self) -> bool {
        let (bits, host_bits) = match self.address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32 - self.prefix_bits),
            IpAddr::V6(address) => (address.to_bits(), 128 - self.prefix_bits),
        };
        bits.trailing_zeros() >= u32::from(host_bits)
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The networks of trusted proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Addresses in any of these.
    pub fn new(networks: Vec<Network>) -> Networks {
        Networks(networks)
    }

    /// True if one of them contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn network(text: &str) -> Result<Network, NetworkError> {
        text.parse()
    }

    #[test]
    fn networks_contain_their_addresses() {
        for (text, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::1", "::1", true),
            ("::ffff:10.0.0.0/104", "10.2.3.4", true),
        ] {
            let contains = network(text).unwrap().contains(address.parse().unwrap());
            assert_eq!(contains, expected, "{text} {address}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0/8", "x", "::/129", "1/2/3"]
        {
            assert_eq!(network(text), Err(NetworkError::Form), "{text}");
        }
        for text in ["10.0.0.1/8", "2001:db8::1/32", "0.0.0.1/0", "::ffff:0:0/64"] {
            assert_eq!(network(text), Err(NetworkError::HostBits), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_the_network_of_its_prefix(
            bits in any::<u128>(), prefix in 0..=128_u32, flipped in 0..128_u32,
        ) {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            let text = format!("{}/{prefix}", Ipv6Addr::from_bits(bits & mask));
            prop_assume!(!Ipv6Addr::from_bits(bits & mask).to_canonical().is_ipv4());
            let network = network(&text).unwrap();
            let other = bits ^ 1 << flipped;
            let addresses = [bits, other].map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)));
            prop_assume!(addresses.iter().all(|address| address.to_canonical().is_ipv6()));
            prop_assert!(network.contains(addresses[0]));
            prop_assert_eq!(network.contains(addresses[1]), 127 - flipped >= prefix);
        }

        #[test]
        fn so_is_an_ipv4_address(bits in any::<u32>(), prefix in 0..=32_u32, flipped in 0..32_u32) {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            let text = format!("{}/{prefix}", Ipv4Addr::from_bits(bits & mask));
            let network = network(&text).unwrap();
            let address = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
            prop_assert!(network.contains(address(bits)));
            prop_assert_eq!(network.contains(address(bits ^ 1 << flipped)), 31 - flipped >= prefix);
        }
    }
}
