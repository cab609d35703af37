//! What the server says on standard output when it starts.
//!
//! The line with `listening on http://…` is for programs too: its form is fixed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use throng_machine::preflight::{Check, Preflight, Tables, Verdict};
use throng_text::figures::count;
use throng_text::paint::{Ink, Paint};

/// The number of connections that the way to more is shown for.
const MANY: u64 = 1_000_000;

/// What there is to say.
#[derive(Debug)]
pub struct Banner<'a> {
    /// Where the server listens.
    pub address: SocketAddr,
    /// Worker threads.
    pub workers: usize,
    /// Descriptors of each.
    pub descriptors_max: u64,
    /// Connections in all.
    pub connections_max: usize,
    /// What the machine says to that.
    pub preflight: &'a Preflight,
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
        writeln!(text)?;
        writeln!(text, "{}{here}/chat", label("chat"))?;
        if self.address.ip().to_canonical().is_loopback() {
            writeln!(text, "{}{here}/status", label("status"))?;
        }
        writeln!(text, "{}curl -N {here}/channels/news", label("follow"))?;
        writeln!(text, "{}curl -d hello {here}/channels/news", label("publish"))?;
        writeln!(text)?;
        self.write_room(text, label("room for"), label(""))?;
        self.write_warnings(text, paint)?;
        writeln!(text)
    }

    fn write_warnings(&self, text: &mut String, paint: Paint) -> std::fmt::Result {
        let short = |check: &&Check| check.verdict >= Verdict::Should;
        let mut warnings: Vec<String> =
            self.preflight.checks.iter().filter(short).map(Check::sentence).collect();
        if !warnings.is_empty() {
            warnings.push(format!(
                "what to do about it: throng doctor --connections {}",
                self.connections_max
            ));
        }
        for warning in warnings {
            writeln!(text, "{}{warning}", paint.ink(Ink::DOUBT, format!("  {:<11}", "warning")))?;
        }
        Ok(())
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
                "{no_label}--max-connections {MANY} starts {} workers",
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
    use throng_machine::preflight::{Room, Wanted};

    use super::*;

    fn banner(address: &str, room: &Room) -> String {
        let banner = Banner {
            address: address.parse().unwrap(),
            workers: 2,
            descriptors_max: 20_000,
            connections_max: 39_000,
            preflight: &room.check(&Wanted::server(39_000)),
        };
        banner.text(Paint::plain())
    }

    #[test]
    fn says_what_a_newcomer_needs() {
        let text = banner("127.0.0.1:8080", &Room::default());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], concat!("throng ", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[1], "listening on http://127.0.0.1:8080");
        assert!(text.contains("http://127.0.0.1:8080/status\n"));
        assert!(text.contains("curl -N http://127.0.0.1:8080/channels/news\n"));
        assert!(text.contains("39,000 connections: 2 workers, 20,000 descriptors each\n"));
        assert!(text.contains("--max-connections 1000000 starts 51 workers\n"));
        // What cannot be read is not warned of.
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn examples_name_an_address_that_works() {
        let text = banner("[::]:80", &Room::default());
        assert!(text.contains("listening on http://[::]:80\n"));
        assert!(text.contains("http://[::1]:80/chat\n"));
        assert!(!text.contains("/status"), "it would be refused");
    }

    #[test]
    fn warnings_come_last_with_the_next_step() {
        let room = Room { somaxconn: Some(128), ..Room::default() };
        let text = banner("127.0.0.1:1", &room);
        assert!(text.contains("sysctl -w net.core.somaxconn=4096\n"), "{text}");
        let last = text.trim_end().lines().last().unwrap();
        assert!(last.ends_with("throng doctor --connections 39000"), "{text}");
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
