//! What the server says on standard output when it starts.
//!
//! The line with `listening on http://…` is for programs too: its form is fixed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use throng_edge::start::WORKERS_MAX;

use crate::machine::Machine;
use crate::terminal::{GREEN, Ink, Paint, YELLOW, grouped};

/// The number of connections that the way to more is shown for.
const MANY: u64 = 1_000_000;

/// Descriptors that each worker's table has for every worker there is.
const DESCRIPTORS_PER_WORKER: u64 = 3;

/// What there is to say.
#[derive(Debug)]
pub struct Banner<'a> {
    /// Where the server listens.
    pub address: SocketAddr,
    /// Worker threads.
    pub workers: usize,
    /// Connections that fit into each, if all of its descriptors are used.
    pub worker_connections_max: usize,
    /// Descriptors of each.
    pub descriptors_max: u64,
    /// Connections in all.
    pub connections_max: usize,
    /// The machine below.
    pub machine: &'a Machine,
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
        writeln!(text, "  listening on {}", paint.ink(GREEN, address))?;
        writeln!(text)?;
        writeln!(text, "{}{here}/chat", label("chat"))?;
        writeln!(text, "{}curl -N {here}/channels/news", label("follow"))?;
        writeln!(text, "{}curl -d hello {here}/channels/news", label("publish"))?;
        writeln!(text)?;
        self.write_room(text, label("room for"), label(""))?;
        for warning in self.machine.warnings(self.connections_max as u64) {
            writeln!(text, "{}{warning}", paint.ink(YELLOW, format!("  {:<11}", "warning")))?;
        }
        writeln!(text)
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
            grouped(self.connections_max as u64),
            grouped(workers),
            grouped(self.descriptors_max),
        )?;
        if (self.connections_max as u64) >= MANY {
            return Ok(());
        }
        match self.workers_for(MANY) {
            Some(needed) => writeln!(
                text,
                "{no_label}--max-connections {MANY} starts {} workers",
                grouped(needed)
            ),
            None => writeln!(
                text,
                "{no_label}more with more descriptors: ulimit -n 20000 (LimitNOFILE= of a service)"
            ),
        }
    }

    /// How many workers hold so many connections, if enough can be.
    fn workers_for(&self, connections: u64) -> Option<u64> {
        let now = self.workers as u64;
        let each = self.worker_connections_max as u64 + DESCRIPTORS_PER_WORKER * now;
        let holds = |workers| workers * each.saturating_sub(DESCRIPTORS_PER_WORKER * workers);
        (now..=WORKERS_MAX as u64).find(|&workers| holds(workers) >= connections)
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
    use super::*;

    fn banner(address: &str, machine: &Machine) -> String {
        let banner = Banner {
            address: address.parse().unwrap(),
            workers: 2,
            worker_connections_max: 19_500,
            descriptors_max: 20_000,
            connections_max: 39_000,
            machine,
        };
        banner.text(Paint::plain())
    }

    #[test]
    fn says_what_a_newcomer_needs() {
        let text = banner("127.0.0.1:8080", &Machine::default());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], concat!("throng ", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[1], "listening on http://127.0.0.1:8080");
        assert!(text.contains("curl -N http://127.0.0.1:8080/channels/news\n"));
        assert!(text.contains("39,000 connections: 2 workers, 20,000 descriptors each\n"));
        assert!(text.contains("--max-connections 1000000 starts 52 workers\n"));
    }

    #[test]
    fn examples_name_an_address_that_works() {
        let text = banner("[::]:80", &Machine::default());
        assert!(text.contains("listening on http://[::]:80\n"));
        assert!(text.contains("http://[::1]:80/chat\n"));
    }

    #[test]
    fn warnings_come_last() {
        let machine = Machine { somaxconn: Some(128), ..Machine::default() };
        let text = banner("127.0.0.1:1", &machine);
        assert!(text.trim_end().ends_with("sysctl -w net.core.somaxconn=4096"), "{text}");
    }
}
