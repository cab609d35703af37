//! The local addresses and ports of clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::plan::{self, PortRange};

/// Clients of one loopback address, per target port. Each address has the whole range of local
/// ports; far below its size, finding a free port takes one look-up.
const CLIENTS_PER_LOOPBACK_SOURCE: usize = 4_000;

/// How many addresses [`loopback`] can return.
const LOOPBACK_SOURCES_MAX: usize = 250 * 250;

/// Sources tried for one client if the first has no free port.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// The local addresses and ports of all clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceAddresses {
    choice: AddressChoice,
    /// How many ports the target has.
    targets: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressChoice {
    /// The kernel chooses address and port.
    Kernel,
    /// Addresses from 127.0.2.1 on; the kernel chooses ports.
    Loopback,
    /// These addresses in turn; the kernel chooses ports.
    Addresses(Vec<IpAddr>),
    /// These addresses in turn, each with all ports of a range.
    Ports { addresses: Vec<IpAddr>, first: u16, last: u16 },
}

impl SourceAddresses {
    /// For a target with this many ports.
    pub(super) fn new(sources: &plan::Sources, target: IpAddr, targets: usize) -> SourceAddresses {
        let is_loopback = matches!(target, IpAddr::V4(address) if address.is_loopback());
        let listed =
            sources.addresses.iter().filter(|address| address.is_ipv4() == target.is_ipv4());
        let listed: Vec<IpAddr> = listed.copied().collect();
        let choice = match sources.ports {
            None if !listed.is_empty() => AddressChoice::Addresses(listed),
            None if is_loopback => AddressChoice::Loopback,
            None => AddressChoice::Kernel,
            Some(PortRange((first, last))) => {
                let addresses = match target {
                    _ if !listed.is_empty() => listed,
                    _ if is_loopback => (0..250).map(loopback).collect(),
                    IpAddr::V4(_) => vec![Ipv4Addr::UNSPECIFIED.into()],
                    IpAddr::V6(_) => vec![Ipv6Addr::UNSPECIFIED.into()],
                };
                AddressChoice::Ports { addresses, first: first.min(last), last: first.max(last) }
            }
        };
        SourceAddresses { choice, targets: targets.max(1) }
    }

    /// The kernel chooses.
    pub(super) fn of_kernel() -> SourceAddresses {
        SourceAddresses { choice: AddressChoice::Kernel, targets: 1 }
    }

    /// True if pools of other processes on this machine use the same addresses.
    pub(super) fn are_shared(&self) -> bool {
        matches!(self.choice, AddressChoice::Loopback)
    }

    /// The local address to bind a client's socket to; `None` if the kernel chooses it. With port
    /// 0, the kernel chooses the port. Clients with the same source have different target ports if
    /// there are enough sources.
    pub(super) fn of(&self, number: usize, attempt: usize) -> Option<SocketAddr> {
        // Clients `number..number + targets` connect to different ports.
        let round = number / self.targets;
        let (address, port) = match &self.choice {
            AddressChoice::Kernel => return None,
            AddressChoice::Loopback => {
                let block = number / CLIENTS_PER_LOOPBACK_SOURCE / self.targets;
                // Retries use addresses of other threads' clients, half the range away.
                (loopback(block + attempt * (LOOPBACK_SOURCES_MAX / 2 + 1)), 0)
            }
            AddressChoice::Addresses(addresses) => {
                (addresses[(round + attempt) % addresses.len()], 0)
            }
            AddressChoice::Ports { addresses, first, last } => {
                let ports = usize::from(last - first) + 1;
                let port = (round / addresses.len() + attempt) % ports;
                // Less than `ports`, which fits.
                (addresses[round % addresses.len()], first + port as u16)
            }
        };
        Some(SocketAddr::new(address, port))
    }
}

/// A loopback address, from 127.0.2.1 on, where servers rarely listen.
fn loopback(block: usize) -> IpAddr {
    let block = block % LOOPBACK_SOURCES_MAX;
    let part = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 0, part(2 + block / 250), part(1 + block % 250)).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sources(addresses: &[&str], ports: Option<(u16, u16)>, targets: usize) -> SourceAddresses {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        SourceAddresses::new(
            &plan::Sources { addresses, ports: ports.map(PortRange) },
            Ipv4Addr::LOCALHOST.into(),
            targets,
        )
    }

    fn of(sources: &SourceAddresses, number: usize) -> SocketAddr {
        sources.of(number, 0).expect("a source")
    }

    #[test]
    fn loopback_sources_are_automatic() {
        let sources = sources(&[], None, 1);
        assert_eq!(of(&sources, 0).to_string(), "127.0.2.1:0");
        assert_eq!(of(&sources, 3_999).to_string(), "127.0.2.1:0");
        assert_eq!(of(&sources, 4_000 * 250).to_string(), "127.0.3.1:0");
        assert!(of(&sources, usize::MAX).ip().is_loopback());
    }

    #[test]
    fn the_kernel_chooses_elsewhere_by_default() {
        let target = SocketAddr::from(([10, 0, 0, 1], 80));
        let plan = plan::Sources { addresses: Vec::new(), ports: None };
        assert_eq!(SourceAddresses::new(&plan, target.ip(), 1).of(5, 0), None);
        let plan = plan::Sources { ports: Some(PortRange((9, 5))), ..plan };
        assert_eq!(of(&SourceAddresses::new(&plan, target.ip(), 1), 5).to_string(), "0.0.0.0:5");
    }

    #[test]
    fn clients_have_distinct_address_pairs() {
        let (targets, addresses) = (3, ["127.0.9.1", "127.0.9.2"]);
        let sources = sources(&addresses, Some((100, 104)), targets);
        let all: BTreeSet<_> =
            (0..30).map(|number| (of(&sources, number), number % targets)).collect();
        assert_eq!(all.len(), 30);
        assert!(all.iter().all(|(source, _)| (100..=104).contains(&source.port())));
    }
}
