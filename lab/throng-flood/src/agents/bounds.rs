//! The load that an agent allows, whatever a coordinator asks for.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use throng_units::{Invalid, format};

use crate::protocol::url::host_and_port;

/// The limits of an agent.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    /// Clients of a run on this agent; `None` if the machine is the limit.
    pub(crate) clients_max: Option<usize>,
    /// If empty, loopback and private addresses are allowed.
    pub(crate) targets: Vec<AllowedTarget>,
}

/// Addresses that an agent may load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedTarget {
    /// A name may have several.
    addresses: Vec<IpAddr>,
    /// `None` for all ports.
    port: Option<u16>,
}

impl FromStr for AllowedTarget {
    type Err = Invalid;

    /// Looks a name up.
    fn from_str(text: &str) -> Result<AllowedTarget, Invalid> {
        if let Ok(address) = text.parse() {
            return Ok(AllowedTarget { addresses: vec![address], port: None });
        }
        let (host, port) = host_and_port(text);
        let invalid = |_| Invalid::new(text, "a host or address, like 10.0.0.2:8080");
        let port = port.map(str::parse).transpose().map_err(invalid)?;
        let found = (host, 0).to_socket_addrs();
        let found = found.map_err(|error| Invalid(format!("{host:?}: {error}")))?;
        Ok(AllowedTarget { addresses: found.map(|address| address.ip()).collect(), port })
    }
}

impl AllowedTarget {
    fn allows(&self, target: &SocketAddr) -> bool {
        self.port.is_none_or(|port| port == target.port()) && self.addresses.contains(&target.ip())
    }
}

impl Bounds {
    /// Checks the number of clients. The error says which bound is exceeded.
    pub(super) fn check_clients(&self, clients: usize) -> Result<(), String> {
        match self.clients_max.filter(|&most| clients > most) {
            Some(most) => {
                let clients = format::counted(clients as u64, "client", "clients");
                Err(format!("it allows {most} and not {clients} (--max-clients)"))
            }
            None => Ok(()),
        }
    }

    /// Checks the addresses that clients are going to connect to.
    pub(super) fn check_targets(&self, targets: &[SocketAddr]) -> Result<(), String> {
        let is_allowed = |target: &&SocketAddr| {
            self.targets.iter().any(|allowed| allowed.allows(target))
                || self.targets.is_empty() && is_private(target.ip().to_canonical())
        };
        match targets.iter().find(|target| !is_allowed(target)) {
            Some(target) => Err(format!("it does not allow the target {target} (--allow-target)")),
            None => Ok(()),
        }
    }
}

/// True for addresses of this machine and of private networks.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(bounds: &[&str], target: &str) -> bool {
        let targets = bounds.iter().map(|text| text.parse().expect("a target")).collect();
        let bounds = Bounds { targets, ..Bounds::default() };
        bounds.check_targets(&[target.parse().expect("an address")]).is_ok()
    }

    #[test]
    fn private_addresses_are_allowed_unless_told() {
        for target in ["127.9.0.1:1", "10.0.0.1:80", "192.168.9.9:1", "[::1]:1", "[fd00::1]:9"] {
            assert!(allowed(&[], target), "{target}");
        }
        for target in ["8.8.8.8:80", "172.32.0.1:1", "[2001:db8::1]:80", "[::ffff:8.8.8.8]:80"] {
            assert!(!allowed(&[], target), "{target}");
        }
    }

    #[test]
    fn only_the_given_targets_are_allowed() {
        let given = ["203.0.113.7:8080", "10.1.0.1", "fd00:1::9", "[::1]:81", "localhost:82"];
        for target in ["203.0.113.7:8080", "10.1.0.1:9", "[fd00:1::9]:9", "[::1]:81"] {
            assert!(allowed(&given, target), "{target}");
        }
        for target in ["203.0.113.7:80", "10.1.0.2:9", "[fd00:1::8]:9", "[::1]:8", "127.0.0.1:1"] {
            assert!(!allowed(&given, target), "{target}");
        }
        assert!(allowed(&given, "127.0.0.1:82"));
    }

    #[test]
    fn invalid_targets_are_explained() {
        for text in ["", ":80", "10.0.0.0/8", "h:99999", "http://h/", "10.0.0.0:x"] {
            assert!(text.parse::<AllowedTarget>().is_err(), "{text}");
        }
    }

    #[test]
    fn more_clients_than_allowed_are_refused() {
        let bounds = Bounds { clients_max: Some(9), ..Bounds::default() };
        let words = bounds.check_clients(10).expect_err("too many");
        assert_eq!(words, "it allows 9 and not 10 clients (--max-clients)");
        assert!(bounds.check_clients(9).is_ok() && Bounds::default().check_clients(10).is_ok());
    }
}
