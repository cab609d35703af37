//! Which pages may use a server, and under which names it answers: settings that both planes share,
//! and that a reload replaces.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use throng_wire::OriginPolicy;

/// The settings `allowed-origins` and `allowed-hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedPages {
    origins: Vec<String>,
    hosts: Vec<String>,
    /// `hosts` without `*`.
    admin_hosts: Vec<String>,
}

/// The current pages. A request is checked against the pages allowed at that moment.
pub type SharedPages = Arc<ArcSwap<AllowedPages>>;

impl AllowedPages {
    /// Allows pages of these origins beside the server's own, `*` for any, and requests that give
    /// these host names, beside addresses and the hosts of the origins.
    pub fn new(origins: Vec<String>, hosts: Vec<String>) -> AllowedPages {
        let admin_hosts = hosts.iter().filter(|host| *host != "*").cloned().collect();
        AllowedPages { origins, hosts, admin_hosts }
    }

    /// These, for planes to share.
    pub fn shared(self) -> SharedPages {
        Arc::new(ArcSwap::from_pointee(self))
    }

    /// The policy of a public listener that is reachable at `listen`.
    pub fn public(&self, listen: IpAddr) -> OriginPolicy<'_> {
        let AllowedPages { origins, hosts, .. } = self;
        OriginPolicy { listen, origins, hosts, is_same_port_only: false }
    }

    /// The policy of an admin listener. Only its own pages may use it. A browser may reach it at
    /// any address, so it checks host names as strictly as a server on loopback, and `*` allows
    /// none: that would let pages reach it by DNS rebinding.
    pub fn admin(&self) -> OriginPolicy<'_> {
        OriginPolicy {
            listen: Ipv4Addr::LOCALHOST.into(),
            origins: &[],
            hosts: &self.admin_hosts,
            is_same_port_only: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_none_of_the_admin_listener() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let pages = AllowedPages::new(Vec::new(), texts(&["*", "push.example"]));
        let local = Ipv4Addr::LOCALHOST.into();
        for (host, is_public, is_admin) in [
            ("push.example", true, true),
            ("other.example", true, false),
            ("127.0.0.1", true, true),
        ] {
            assert_eq!(pages.public(local).check(None, Some(host)).is_ok(), is_public, "{host}");
            assert_eq!(pages.admin().check(None, Some(host)).is_ok(), is_admin, "{host}");
        }
    }
}
