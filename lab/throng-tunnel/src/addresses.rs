//! The clients' local addresses, and the targets they connect to.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::route::Route;

/// The benchmarking network of RFC 2544, 198.18.0.0/15. No host on the internet uses it.
const NETWORK: u32 = 0xc612_0000;
const NETWORK_PREFIX: u32 = 15;

/// Prefix length of one device's part of the network.
pub(crate) const DEVICE_PREFIX: u32 = 21;

/// How many devices the network has room for.
pub(crate) const DEVICES_MAX: u32 = 1 << (DEVICE_PREFIX - NETWORK_PREFIX);

/// How many addresses one device has.
const ADDRESSES: u32 = 1 << (32 - DEVICE_PREFIX);

/// The first address names the network, the second is the kernel's end of the device.
const FIRST_ADDRESS: u32 = 2;

/// Client ports start above the well-known ones, so that addresses in logs are easy to tell apart.
const FIRST_PORT: u32 = 1024;
const PORTS: u32 = 65_536 - FIRST_PORT;

/// Clients of one device; the last address is the broadcast address and stays unused.
pub(crate) const CLIENTS_MAX: u32 = (ADDRESSES - FIRST_ADDRESS - 1) * PORTS;

/// The addresses of one device's clients: one address and port for each position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    first: u32,
}

impl Addresses {
    /// The addresses of device `number`, below [`DEVICES_MAX`].
    pub(crate) fn of_device(number: u32) -> Addresses {
        Addresses { first: NETWORK + number * ADDRESSES }
    }

    /// The kernel's end of the device.
    pub(crate) fn kernel(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    /// The route to these addresses, over the device with this interface index.
    pub(crate) fn route(self, device: u32) -> Route {
        let (network, kernel) = (Ipv4Addr::from(self.first), self.kernel());
        Route { device, network, prefix: DEVICE_PREFIX as u8, kernel }
    }

    /// The address of a position below [`CLIENTS_MAX`].
    pub(crate) fn of(self, position: u32) -> SocketAddrV4 {
        let address = self.first + FIRST_ADDRESS + position / PORTS;
        // Below 2^16.
        let port = (FIRST_PORT + position % PORTS) as u16;
        SocketAddrV4::new(Ipv4Addr::from(address), port)
    }

    /// The position with this address, if there is one.
    pub(crate) fn position(self, end: SocketAddrV4) -> Option<u32> {
        let address = u32::from(*end.ip()).checked_sub(self.first + FIRST_ADDRESS)?;
        let port = u32::from(end.port()).checked_sub(FIRST_PORT)?;
        address.checked_mul(PORTS)?.checked_add(port).filter(|&position| position < CLIENTS_MAX)
    }
}

/// The targets of one thread's clients. Client numbers grow by `step` from one position to the
/// next, and each client takes the target at its number, modulo their count.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The server's addresses; at least one.
    pub addresses: Vec<SocketAddrV4>,
    /// The client number at position 0.
    pub first: usize,
    /// The distance between the numbers of neighbouring positions.
    pub step: usize,
}

impl Targets {
    /// The target of a position.
    pub(crate) fn of(&self, position: u32) -> SocketAddrV4 {
        let number = self.first + self.step * position as usize;
        self.addresses[number % self.addresses.len()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_tells_whose_it_is(
            device in 0..DEVICES_MAX,
            position in prop_oneof![0..CLIENTS_MAX, Just(PORTS), Just(CLIENTS_MAX - 1)],
            other in any::<(u32, u16)>(),
        ) {
            let addresses = Addresses::of_device(device);
            let end = addresses.of(position);
            prop_assert_eq!(addresses.position(end), Some(position));
            prop_assert_eq!(u32::from(*end.ip()) >> (32 - NETWORK_PREFIX), NETWORK >> 17);
            let next = Addresses::of_device((device + 1) % DEVICES_MAX);
            prop_assert_eq!(next.position(end), None);
            let other = SocketAddrV4::new(Ipv4Addr::from(other.0), other.1);
            if let Some(position) = addresses.position(other) {
                prop_assert_eq!(addresses.of(position), other);
            }
        }
    }

    #[test]
    fn the_ends_of_a_part_are_left_out() {
        let addresses = Addresses::of_device(1);
        assert_eq!(addresses.kernel().to_string(), "198.18.8.1");
        assert_eq!(addresses.of(0).to_string(), "198.18.8.2:1024");
        assert_eq!(addresses.of(CLIENTS_MAX - 1).to_string(), "198.18.15.254:65535");
        assert_eq!(addresses.position(SocketAddrV4::new(addresses.kernel(), 2000)), None);
        assert_eq!(addresses.position("198.18.15.255:2000".parse().unwrap()), None);
        assert_eq!(addresses.position("198.18.8.2:80".parse().unwrap()), None);
    }

    #[test]
    fn clients_go_to_the_targets_in_turn() {
        let addresses =
            ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(|end| end.parse().unwrap());
        let targets = Targets { addresses: addresses.to_vec(), first: 5, step: 2 };
        let ports: Vec<u16> = (0..4).map(|position| targets.of(position).port()).collect();
        assert_eq!(ports, [3, 2, 1, 3]);
    }
}
