//! Where clients connect from: local addresses and ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::plan;

/// Clients that share one address of 127.0.0.0/8 (and one target port). Each address has the whole
/// range of local ports to itself; far below that range, finding a free port is one look-up.
pub const CLIENTS_PER_LOOPBACK_SOURCE: usize = 4_000;

/// Addresses that [`loopback`] can give.
const LOOPBACK_SOURCES_MAX: usize = 250 * 250;

/// Sources tried for one client when the first one has no port left.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// The choice of local addresses and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    choice: Choice,
    /// Ports of the target.
    targets: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// The kernel's.
    Kernel,
    /// 127.0.2.1 and up, ports by the kernel.
    Loopback,
    /// In turn, ports by the kernel.
    Addresses(Vec<IpAddr>),
    /// In turn, each with all ports from the first to the last; `None` for any address.
    Ports { addresses: Vec<Option<IpAddr>>, first: u16, last: u16 },
}

/// Where a socket is to be bound to, if anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Port 0 is the kernel's choice.
    pub address: SocketAddr,
}

impl Sources {
    /// For a target with so many ports.
    pub fn new(sources: &plan::Sources, target: IpAddr, targets: usize) -> Sources {
        let is_loopback = matches!(target, IpAddr::V4(address) if address.is_loopback());
        let listed =
            sources.addresses.iter().filter(|address| address.is_ipv4() == target.is_ipv4());
        let listed: Vec<IpAddr> = listed.copied().collect();
        let choice = match sources.ports {
            None if !listed.is_empty() => Choice::Addresses(listed),
            None if is_loopback => Choice::Loopback,
            None => Choice::Kernel,
            Some((first, last)) => {
                let addresses = match listed.is_empty() {
                    false => listed.into_iter().map(Some).collect(),
                    true if is_loopback => (0..250).map(|block| Some(loopback(block))).collect(),
                    true => vec![None],
                };
                Choice::Ports { addresses, first: first.min(last), last: first.max(last) }
            }
        };
        Sources { choice, targets: targets.max(1) }
    }

    /// Whether fleets of other processes on this machine take the same addresses by themselves.
    pub(super) fn are_shared(&self) -> bool {
        matches!(self.choice, Choice::Loopback)
    }

    /// The source of a client, or of its next attempt. Clients with the same source have different
    /// target ports as long as there are enough sources.
    pub fn of(&self, number: usize, attempt: usize, target: &SocketAddr) -> Option<Source> {
        let any = |port| Some(Source { address: SocketAddr::new(unspecified(target), port) });
        let with = |address, port| Some(Source { address: SocketAddr::new(address, port) });
        // Clients `number..number + targets` go to different ports of the target.
        let round = number / self.targets;
        match &self.choice {
            Choice::Kernel => None,
            Choice::Loopback => {
                let block = number / CLIENTS_PER_LOOPBACK_SOURCE / self.targets;
                // Attempts go to addresses of other threads' clients, half the range away.
                let block = block + attempt * (LOOPBACK_SOURCES_MAX / 2 + 1);
                with(loopback(block), 0)
            }
            Choice::Addresses(addresses) => with(addresses[(round + attempt) % addresses.len()], 0),
            Choice::Ports { addresses, first, last } => {
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
    /// Whether the port is left to the kernel.
    pub fn is_port_free(&self) -> bool {
        self.address.port() == 0
    }
}

/// An address of 127.0.0.0/8, from 127.0.2.1 on, where servers hardly listen.
pub fn loopback(block: usize) -> IpAddr {
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

    fn sources(addresses: &[&str], ports: Option<(u16, u16)>, targets: usize) -> Sources {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Sources::new(&plan::Sources { addresses, ports }, Ipv4Addr::LOCALHOST.into(), targets)
    }

    fn of(sources: &Sources, number: usize) -> SocketAddr {
        let target = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
        sources.of(number, 0, &target).expect("a source").address
    }

    #[test]
    fn loopback_takes_addresses_by_itself() {
        let sources = sources(&[], None, 1);
        assert_eq!(of(&sources, 0).to_string(), "127.0.2.1:0");
        assert_eq!(of(&sources, 3_999).to_string(), "127.0.2.1:0");
        assert_eq!(of(&sources, 4_000 * 250).to_string(), "127.0.3.1:0");
        assert!(of(&sources, usize::MAX).ip().is_loopback());
    }

    #[test]
    fn elsewhere_the_kernel_chooses_unless_told() {
        let target = SocketAddr::from(([10, 0, 0, 1], 80));
        let plan = plan::Sources { addresses: Vec::new(), ports: None };
        assert_eq!(Sources::new(&plan, target.ip(), 1).of(5, 0, &target), None);
        let plan = plan::Sources { ports: Some((9, 5)), ..plan };
        let source = Sources::new(&plan, target.ip(), 1).of(5, 0, &target).expect("a source");
        assert_eq!(source.address.to_string(), "0.0.0.0:5");
    }

    #[test]
    fn no_two_clients_have_the_same_ends() {
        let (targets, addresses) = (3, ["127.0.9.1", "127.0.9.2"]);
        let sources = sources(&addresses, Some((100, 104)), targets);
        let all: BTreeSet<_> =
            (0..30).map(|number| (of(&sources, number), number % targets)).collect();
        assert_eq!(all.len(), 30);
        assert!(all.iter().all(|(source, _)| (100..=104).contains(&source.port())));
    }
}
