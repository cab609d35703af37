//! What the server says on standard output when it starts.
//!
//! The lines with `listening on http://…` and `admin listener on http://…` are for programs too:
//! their form is fixed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use throng_host::preflight::{self, Check, Preflight, Tables, Verdict};
use throng_units::Count;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint};

/// The number of connections that the way to more is shown for.
const MANY: u64 = 1_000_000;

/// What there is to say.
#[derive(Debug)]
pub struct Banner<'a> {
    /// Where the server listens.
    pub address: SocketAddr,
    /// Where the admin listener is, if there is one.
    pub admin: Option<SocketAddr>,
    /// Whether the demo is served.
    pub has_demo: bool,
    /// Whether clients may publish.
    pub do_clients_publish: bool,
    /// Worker threads.
    pub workers: usize,
    /// Descriptors of each.
    pub descriptors_max: u64,
    /// Connections in all.
    pub connections_max: usize,
    /// What the machine says to that.
    pub preflight: &'a Preflight,
    /// Connections that the settings ask for, rather than what the machine has room for.
    pub asked: Option<usize>,
    /// Whether the settings allow an address that others can reach.
    pub allows_anyone: bool,
}

impl Banner<'_> {
    /// The whole text.
    pub fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, paint);
        text
    }

    fn write(&self, text: &mut String, paint: Paint) -> std::fmt::Result {
        let label = |name: &'static str| paint.ink(Ink::Dim, format!("  {name:<11}"));
        let here = format!("http://{}", reachable(self.address));
        let address = format!("http://{}", self.address);
        writeln!(text, "{}", paint.ink(Ink::Bold, concat!("throng ", env!("CARGO_PKG_VERSION"))))?;
        writeln!(text, "  listening on {}", paint.ink(Ink::GOOD, address))?;
        if let Some(admin) = self.admin {
            let admin = paint.ink(Ink::GOOD, format!("http://{admin}"));
            writeln!(text, "  admin listener on {admin}")?;
        }
        writeln!(text)?;
        if self.has_demo {
            writeln!(text, "{}{here}/chat", label("chat"))?;
        }
        let admin = self.admin.map(|admin| format!("http://{}", reachable(admin)));
        if let Some(admin) = &admin {
            writeln!(text, "{}{admin}/status", label("status"))?;
        } else if self.address.ip().to_canonical().is_loopback() {
            writeln!(text, "{}{here}/status", label("status"))?;
        }
        writeln!(text, "{}curl -N {here}/channels/news", label("follow"))?;
        let publish_at = admin.filter(|_| !self.do_clients_publish).unwrap_or(here);
        writeln!(text, "{}curl -d hello {publish_at}/channels/news", label("publish"))?;
        writeln!(text)?;
        self.write_room(text, label("room for"), label(""))?;
        self.write_warnings(text, paint)?;
        writeln!(text)
    }

    fn write_warnings(&self, text: &mut String, paint: Paint) -> std::fmt::Result {
        let exposure = self.exposure().into_iter().chain(self.admin_exposure());
        for warning in exposure.chain(self.shortages()) {
            writeln!(text, "{}{warning}", paint.ink(Ink::WARNING, format!("  {:<11}", "warning")))?;
        }
        Ok(())
    }

    /// Who can reach the server, where that is not what one might think.
    fn exposure(&self) -> Option<String> {
        let Self { address, allows_anyone, .. } = self;
        let what = if self.do_clients_publish { "read and publish" } else { "read" };
        match address.ip().to_canonical().is_loopback() {
            false => Some(format!(
                "others can reach {address}, and nothing checks who may {what}: put a proxy that \
                 checks in front of it"
            )),
            true if *allows_anyone => Some(format!(
                "--allow-anyone has no effect: only this machine can reach {address}; to listen on \
                 all addresses, add --listen 0.0.0.0:{}",
                address.port()
            )),
            true => None,
        }
    }

    fn admin_exposure(&self) -> Option<String> {
        let admin = self.admin.filter(|admin| !admin.ip().to_canonical().is_loopback())?;
        Some(format!(
            "others may reach the admin listener on {admin}, and nothing checks who sees the \
             status or publishes: make sure that only operators can reach it"
        ))
    }

    /// What makes the room that is claimed untrue; and, where many connections are asked for, what
    /// makes them slow.
    fn shortages(&self) -> Vec<String> {
        let is_many = self.asked.is_some_and(|asked| asked as u64 > preflight::MANY);
        let least = if is_many { Verdict::Should } else { Verdict::Must };
        let short = |check: &&Check| check.verdict >= least;
        let mut warnings: Vec<String> =
            self.preflight.checks.iter().filter(short).map(Check::sentence).collect();
        if !warnings.is_empty() {
            warnings.push(format!(
                "what to do about it: throng doctor --connections {}",
                Count(self.connections_max).short()
            ));
        }
        warnings
    }

    fn write_room(
        &self,
        text: &mut String,
        label: impl std::fmt::Display,
        no_label: impl std::fmt::Display,
    ) -> std::fmt::Result {
        let workers = self.workers as u64;
        let s = if workers == 1 { "" } else { "s" };
        writeln!(
            text,
            "{label}{} connections: {} worker{s}, {} descriptors each",
            count(self.connections_max as u64),
            count(workers),
            count(self.descriptors_max),
        )?;
        if (self.connections_max as u64) >= MANY {
            return Ok(());
        }
        let tables = Tables { threads_least: workers, ..Tables::server() };
        match tables.threads_for(MANY, self.descriptors_max) {
            Some(needed) => writeln!(
                text,
                "{no_label}--max-connections {} starts {} workers",
                Count(MANY as usize).short(),
                count(needed)
            ),
            None => writeln!(
                text,
                "{no_label}more with more descriptors: ulimit -n 20000 (LimitNOFILE= of a service)"
            ),
        }
    }
}

/// An address that a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use throng_host::preflight::{Room, Wanted};

    use super::*;

    fn banner(address: &str, room: &Room, asked: Option<usize>) -> String {
        let banner = Banner {
            address: address.parse().unwrap(),
            admin: None,
            has_demo: true,
            do_clients_publish: true,
            workers: 2,
            descriptors_max: 20_000,
            connections_max: 39_000,
            preflight: &room.check(&Wanted::server(39_000)),
            asked,
            allows_anyone: false,
        };
        banner.text(Paint::plain())
    }

    #[test]
    fn says_what_a_newcomer_needs() {
        let text = banner("127.0.0.1:8080", &Room::default(), None);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], concat!("throng ", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[1], "listening on http://127.0.0.1:8080");
        assert!(text.contains("http://127.0.0.1:8080/status\n"));
        assert!(text.contains("curl -N http://127.0.0.1:8080/channels/news\n"));
        assert!(text.contains("39,000 connections: 2 workers, 20,000 descriptors each\n"));
        assert!(text.contains("--max-connections 1M starts 51 workers\n"));
        // What cannot be read is not warned of.
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn examples_name_an_address_that_works() {
        let text = banner("[::]:80", &Room::default(), None);
        assert!(text.contains("listening on http://[::]:80\n"));
        assert!(text.contains("http://[::1]:80/chat\n"));
        assert!(!text.contains("/status"), "it would be refused");
    }

    #[test]
    fn an_admin_listener_has_the_status_and_takes_messages() {
        let room = Room::default();
        let banner = Banner {
            address: "0.0.0.0:80".parse().unwrap(),
            admin: Some("0.0.0.0:9090".parse().unwrap()),
            has_demo: false,
            do_clients_publish: false,
            workers: 2,
            descriptors_max: 20_000,
            connections_max: 39_000,
            preflight: &room.check(&Wanted::server(39_000)),
            asked: None,
            allows_anyone: true,
        };
        let text = banner.text(Paint::plain());
        assert!(text.contains("  admin listener on http://0.0.0.0:9090\n"), "{text}");
        assert!(text.contains("http://127.0.0.1:9090/status\n"), "{text}");
        assert!(text.contains("curl -d hello http://127.0.0.1:9090/channels/news\n"), "{text}");
        assert!(text.contains("curl -N http://127.0.0.1:80/channels/news\n"), "{text}");
        assert!(!text.contains("/chat"), "{text}");
        assert!(text.contains("nothing checks who may read:"), "{text}");
        assert!(text.contains("others may reach the admin listener on 0.0.0.0:9090,"), "{text}");
    }

    #[test]
    fn many_connections_are_warned_of_with_the_next_step() {
        let room = Room { somaxconn: Some(128), ..Room::default() };
        let text = banner("127.0.0.1:1", &room, Some(39_000));
        assert!(text.contains("sysctl -w net.core.somaxconn=4096\n"), "{text}");
        let last = text.trim_end().lines().last().unwrap();
        assert!(last.ends_with("throng doctor --connections 39k"), "{text}");
        for asked in [None, Some(10_000)] {
            let text = banner("127.0.0.1:1", &room, asked);
            assert!(!text.contains("warning"), "{text}");
        }
    }

    #[test]
    fn room_that_is_not_there_is_always_told() {
        let room = Room { files_max: Some(20_000), ..Room::default() };
        let text = banner("127.0.0.1:1", &room, None);
        assert!(text.contains("sysctl -w fs.file-max="), "{text}");
    }

    #[test]
    fn exposure_is_warned_of_and_a_flag_without_effect() {
        let exposed = "warning    others can reach 0.0.0.0:80, and nothing checks who may";
        for (address, allows_anyone, expected) in [
            ("0.0.0.0:80", true, Some(exposed)),
            ("127.0.0.1:80", true, Some("warning    --allow-anyone has no effect: only this")),
            ("127.0.0.1:80", false, None),
            ("[::1]:80", false, None),
        ] {
            let address = address.parse().unwrap();
            let preflight = &Room::default().check(&Wanted::server(10));
            let (workers, descriptors_max, connections_max) = (1, 100, 10);
            let banner = Banner {
                address,
                admin: None,
                has_demo: true,
                do_clients_publish: true,
                workers,
                descriptors_max,
                connections_max,
                preflight,
                asked: None,
                allows_anyone,
            };
            let text = banner.text(Paint::plain());
            match expected {
                Some(expected) => assert!(text.contains(expected), "{text}"),
                None => assert!(!text.contains("warning"), "{text}"),
            }
        }
    }

    #[test]
    fn the_preflight_counts_descriptors_as_the_workers_do() {
        use throng_edge::start::{DESCRIPTORS_APART, DESCRIPTORS_PER_WORKER, WORKERS_MAX};
        let tables = Tables::server();
        assert_eq!(tables.threads_max, WORKERS_MAX as u64);
        assert_eq!(tables.apart, DESCRIPTORS_APART);
        assert_eq!(tables.apart_per_thread, DESCRIPTORS_PER_WORKER);
    }
}
