//! The known servers: from the settings, and announced by the cluster.

use std::net::IpAddr;

use super::address::ServerAddress;

/// Servers that are announced, at most: clusters have a handful.
const ANNOUNCED_MAX: usize = 64;

/// A server, and who it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownServer {
    pub(super) address: ServerAddress,
    /// The name that its certificate has to have.
    pub(super) name: String,
}

/// How a server came to announce others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// On a connection that stays without TLS.
    Plainly,
    /// Before TLS began, so that anyone on the way may have said it.
    BeforeTls,
    /// On a connection that speaks TLS.
    OverTls,
}

/// All servers, in the order in which they are tried.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    known: Vec<KnownServer>,
    announced: Vec<KnownServer>,
    at: usize,
}

impl Servers {
    pub(super) fn new(known: &[ServerAddress]) -> Servers {
        let known = known
            .iter()
            .map(|address| KnownServer { address: address.clone(), name: address.host.clone() });
        Servers { known: known.collect(), announced: Vec::new(), at: 0 }
    }

    /// The server to try now, and the next one after it; `None` if there is none.
    pub(super) fn next(&mut self) -> Option<KnownServer> {
        let count = self.count();
        let at = self.at.checked_rem(count)?;
        self.at = at + 1;
        self.known.iter().chain(&self.announced).nth(at).cloned()
    }

    pub(super) fn count(&self) -> usize {
        self.known.len() + self.announced.len()
    }

    /// Takes what `by` says about its cluster, in place of what was said before.
    ///
    /// A server known only by its address has to be as good as the one that announced it: if that
    /// one has a name, the certificate must be for the same name. Announcements before TLS began,
    /// which anyone on the way can forge, add only servers known by address, and replace none.
    pub(super) fn announced(&mut self, by: &KnownServer, urls: &[String], said: Said) {
        if urls.is_empty() {
            return;
        }
        let is_name = by.name.parse::<IpAddr>().is_err();
        let found = urls.iter().filter_map(|url| {
            let mut address = ServerAddress::parse(url)?;
            address.is_tls |= said != Said::Plainly;
            address.is_first |= by.address.is_first;
            let is_address = address.host.parse::<IpAddr>().is_ok();
            let name = if is_address && is_name { &by.name } else { &address.host }.clone();
            let is_safe = said != Said::BeforeTls || name == by.name;
            is_safe.then_some(KnownServer { address, name })
        });
        let found: Vec<KnownServer> = found.take(ANNOUNCED_MAX).collect();
        let is_replaced = said != Said::BeforeTls && !found.is_empty();
        let mut announced =
            if is_replaced { Vec::new() } else { std::mem::take(&mut self.announced) };
        for server in found {
            let is_here = |other: &KnownServer| {
                (&other.address.host, other.address.port)
                    == (&server.address.host, server.address.port)
            };
            let is_known = self.known.iter().chain(&announced).any(is_here);
            if !is_known && announced.len() < ANNOUNCED_MAX {
                announced.push(server);
            }
        }
        self.announced = announced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> ServerAddress {
        ServerAddress::parse(text).expect("it is one")
    }

    fn announce(known: &str, urls: &[&str], said: Said) -> Vec<String> {
        let mut servers = Servers::new(&[server(known)]);
        let by = servers.next().expect("there is one");
        let urls: Vec<String> = urls.iter().map(ToString::to_string).collect();
        servers.announced(&by, &urls, said);
        servers.announced.iter().map(|found| format!("{} {}", found.address, found.name)).collect()
    }

    #[test]
    fn all_servers_are_tried_one_after_the_other() {
        let mut servers = Servers::new(&[server("a"), server("b")]);
        let first = servers.next().expect("there are two");
        servers.announced(&first, &["c:1".into(), "b:4222".into()], Said::Plainly);
        let next = |servers: &mut Servers| servers.next().map(|found| found.address.host);
        let hosts: Vec<_> = (0..4).filter_map(|_| next(&mut servers)).collect();
        assert_eq!(hosts, ["b", "c", "a", "b"]);
        servers.announced(&first, &["d".into()], Said::Plainly);
        servers.announced(&first, &[], Said::Plainly);
        assert_eq!((next(&mut servers), servers.count()), (Some("d".into()), 3));
        assert_eq!(Servers::new(&[]).next(), None);
    }

    #[test]
    fn an_announced_server_is_held_to_its_announcers_name() {
        let urls = ["10.0.0.2:4222", "n3.example:1", "[fd00::2]:2", "bad url"];
        assert_eq!(
            announce("nats://n1.example", &urls, Said::Plainly),
            [
                "nats://10.0.0.2:4222 n1.example",
                "nats://n3.example:1 n3.example",
                "nats://[fd00::2]:2 n1.example",
            ]
        );
        assert_eq!(
            announce("tls://n1.example", &urls, Said::OverTls),
            [
                "tls://10.0.0.2:4222 n1.example",
                "tls://n3.example:1 n3.example",
                "tls://[fd00::2]:2 n1.example",
            ]
        );
        assert_eq!(
            announce("nats://n1.example", &urls, Said::BeforeTls),
            ["tls://10.0.0.2:4222 n1.example", "tls://[fd00::2]:2 n1.example"]
        );
        assert_eq!(announce("tls://10.0.0.1", &urls, Said::BeforeTls), [""; 0]);
        let first = announce("tls-first://n1.example", &urls[..1], Said::OverTls);
        assert_eq!(first, ["tls-first://10.0.0.2:4222 n1.example"]);
        assert_eq!(announce("tls://10.0.0.1", &urls, Said::OverTls).len(), 3);
    }

    #[test]
    fn what_is_said_before_tls_takes_no_server_away() {
        let mut servers = Servers::new(&[server("nats://n1.example")]);
        let by = servers.next().expect("there is one");
        let mut announce = |urls: &[&str], said| {
            let urls: Vec<String> = urls.iter().map(ToString::to_string).collect();
            servers.announced(&by, &urls, said);
            servers.announced.iter().map(|found| found.address.host.clone()).collect::<Vec<_>>()
        };
        let both = ["n2.example", "n3.example"];
        assert_eq!(announce(&["n2.example", "n3.example"], Said::OverTls), both);
        assert_eq!(announce(&["n4.example"], Said::BeforeTls), both, "a name of its own");
        assert_eq!(announce(&["bad url"], Said::BeforeTls), both);
        let more = ["n2.example", "n3.example", "10.0.0.4"];
        assert_eq!(announce(&["10.0.0.4"], Said::BeforeTls), more);
        assert_eq!(announce(&["10.0.0.4"], Said::BeforeTls), more, "once only");
        assert_eq!(announce(&["bad url"], Said::OverTls), more, "nothing that can be read");
        assert_eq!(announce(&["n5.example"], Said::OverTls), ["n5.example"]);
        assert_eq!(announce(&["n1.example"], Said::OverTls), [""; 0], "the cluster has no other");
    }

    #[test]
    fn announcements_are_bounded() {
        let urls: Vec<String> = (0..1_000).map(|nth| format!("n{nth}.example")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        assert_eq!(announce("a", &urls, Said::Plainly).len(), ANNOUNCED_MAX);
        let mut servers = Servers::new(&[server("n.example")]);
        let by = servers.next().expect("there is one");
        for nth in 0..2 * ANNOUNCED_MAX {
            servers.announced(&by, &[format!("10.0.0.{nth}")], Said::BeforeTls);
        }
        assert_eq!(servers.announced.len(), ANNOUNCED_MAX);
    }
}
