//! Checks before the start whether this machine can run a benchmark.

use std::net::{Ipv4Addr, SocketAddrV4};

use throng_flood::plan::Network;
use throng_host::preflight::{self, Applied, Demand, Preflight};
use throng_tunnel::{Targets, Tunnel};

use crate::file::{Benchmark, Size};
use crate::plan::IN_FLIGHT;

/// Checks this machine for both sides of a benchmark. Clients of a tunnel need no sockets.
pub(crate) fn check(benchmark: &Benchmark, size: &Size) -> Preflight {
    let connections = size.connections as u64;
    let mut demand = match benchmark.size.network {
        Network::Sockets => Demand::both(connections),
        Network::Tunnel => Demand::server(connections),
    };
    demand.is_publishing = benchmark.size.broadcasts;
    if let Some(server) = &mut demand.server {
        server.burst = size.connections.min(IN_FLIGHT) as u64;
    }
    preflight::check(&demand)
}

/// Why this machine cannot run the benchmark, and what helps; `None` if it can.
pub(crate) fn refusal(benchmark: &Benchmark, found: &Preflight) -> Option<String> {
    found.refusal().or_else(|| match benchmark.size.network {
        Network::Sockets => None,
        Network::Tunnel => Tunnel::probe(loopback()).err().map(|error| error.to_string()),
    })
}

/// The target of a tunnel to a server on loopback; the port is not known yet.
fn loopback() -> Targets {
    Targets { addresses: vec![SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)], first: 0, step: 1 }
}

/// Changes every kernel setting that is too low; one line of text for each.
pub(crate) fn apply(found: &Preflight) -> Vec<String> {
    let text = |Applied { setting, outcome }: Applied| match outcome {
        Ok(()) => format!("done: {}; to undo: {}", setting.command(), setting.undo()),
        Err(error) => format!("not done: {}: {error}", setting.command()),
    };
    preflight::apply(found).into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(connections: usize) -> Option<String> {
        let size = Size { connections, time: Duration::ZERO };
        check(&crate::benchmarks::all()[0], &size).refusal()
    }

    #[test]
    fn an_impossible_size_is_refused_with_help() {
        let refusal = refusal(1_000_000_000_000).expect("refused");
        assert!(refusal.starts_with("1,000,000,000,000 connections requested"), "{refusal}");
        assert!(refusal.contains("To change that:"), "{refusal}");
    }

    #[test]
    fn a_small_size_is_always_possible() {
        assert_eq!(refusal(100), None);
    }
}
