//! The local addresses and ports of clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::plan::{self, PortRange};

/// Clients of one loopback address, per target port. Each address has the whole range of local
/// ports; far below its size, finding a free port takes one look-up.
pub(crate) const CLIENTS_PER_LOOPBACK_SOURCE: usize = 4_000;

/// How many addresses [`loopback`] can return.
const LOOPBACK_SOURCES_MAX: usize = 250 * 250;

/// Sources tried for one client if the first has no free port.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// The local addresses and ports of all clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceAddresses {
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
    /// These addresses in turn, each with all ports of a range; `None` for any address.
    Ports { addresses: Vec<Option<IpAddr>>, first: u16, last: u16 },
}

/// A local address to bind a socket to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// With port 0, the kernel chooses the port.
    pub address: SocketAddr,
}

impl SourceAddresses {
    /// For a target with this many ports.
    pub(crate) fn new(sources: &plan::Sources, target: IpAddr, targets: usize) -> SourceAddresses {
        let is_loopback = matches!(target, IpAddr::V4(address) if address.is_loopback());
        let listed =
            sources.addresses.iter().filter(|address| address.is_ipv4() == target.is_ipv4());
        let listed: Vec<IpAddr> = listed.copied().collect();
        let choice = match sources.ports {
            None if !listed.is_empty() => AddressChoice::Addresses(listed),
            None if is_loopback => AddressChoice::Loopback,
            None => AddressChoice::Kernel,
            Some(PortRange((first, last))) => {
                let addresses = if !listed.is_empty() {
                    listed.into_iter().map(Some).collect()
                } else if is_loopback {
                    (0..250).map(|block| Some(loopback(block))).collect()
                } else {
                    vec![None]
                };
                AddressChoice::Ports { addresses, first: first.min(last), last: first.max(last) }
            }
        };
        SourceAddresses { choice, targets: targets.max(1) }
    }

    /// True if pools of other processes on this machine use the same addresses.
    pub(super) fn are_shared(&self) -> bool {
        matches!(self.choice, AddressChoice::Loopback)
    }

    /// The source of a client's connect attempt. Clients with the same source have different
    /// target ports if there are enough sources.
    pub(crate) fn of(&self, number: usize, attempt: usize, target: &SocketAddr) -> Option<Source> {
        let any = |port| Some(Source { address: SocketAddr::new(unspecified(target), port) });
        let with = |address, port| Some(Source { address: SocketAddr::new(address, port) });
        // Clients `number..number + targets` connect to different ports.
        let round = number / self.targets;
        match &self.choice {
            AddressChoice::Kernel => None,
            AddressChoice::Loopback => {
                let block = number / CLIENTS_PER_LOOPBACK_SOURCE / self.targets;
                // Retries use addresses of other threads' clients, half the range away.
                let block = block + attempt * (LOOPBACK_SOURCES_MAX / 2 + 1);
                with(loopback(block), 0)
            }
            AddressChoice::Addresses(addresses) => {
                with(addresses[(round + attempt) % addresses.len()], 0)
            }
            AddressChoice::Ports { addresses, first, last } => {
                let ports = usize::from(last - first) + 1;
                let port = (round / addresses.len() + attempt) % ports;
                // Less than `ports`, which fits.
                let port = first + port as u16;
                match addresses[round % addresses.len()] {
                    Some(address) => with(address, port),
                    None => any(port),
                }
            }
        }
    }
}

impl Source {
    /// True if the kernel chooses the port.
    pub(crate) fn is_port_free(&self) -> bool {
        self.address.port() == 0
    }
}

/// A loopback address, from 127.0.2.1 on, where servers rarely listen.
pub(crate) fn loopback(block: usize) -> IpAddr {
    let block = block % LOOPBACK_SOURCES_MAX;
    let part = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 0, part(2 + block / 250), part(1 + block % 250)).into()
}

fn unspecified(target: &SocketAddr) -> IpAddr {
    match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
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
        let target = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
        sources.of(number, 0, &target).expect("a source").address
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
        assert_eq!(SourceAddresses::new(&plan, target.ip(), 1).of(5, 0, &target), None);
        let plan = plan::Sources { ports: Some(PortRange((9, 5))), ..plan };
        let source =
            SourceAddresses::new(&plan, target.ip(), 1).of(5, 0, &target).expect("a source");
        assert_eq!(source.address.to_string(), "0.0.0.0:5");
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
