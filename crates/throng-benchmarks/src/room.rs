//! Whether this machine allows a benchmark, said before it starts.

use std::net::{Ipv4Addr, SocketAddrV4};

use throng_flood::plan::Network;
use throng_host::preflight::{Applied, Preflight, Wanted, apply, check};
use throng_tunnel::{Targets, Tunnel};

use crate::benchmark::{Benchmark, Size};
use crate::measures::IN_FLIGHT;

/// What this machine says to a benchmark of a size: both sides are on it. Of clients without
/// sockets the kernel has nothing.
pub fn preflight(benchmark: &Benchmark, size: &Size) -> Preflight {
    let connections = size.connections as u64;
    let mut wanted = match benchmark.scope.network {
        Network::Sockets => Wanted::both(connections),
        Network::Tunnel => Wanted::server(connections),
    };
    wanted.is_publishing = benchmark.scope.broadcasts;
    if let Some(server) = &mut wanted.server {
        server.burst = size.connections.min(IN_FLIGHT) as u64;
    }
    check(&wanted)
}

/// Why a benchmark cannot be done here, and what helps; `None` if it can.
pub fn refusal(benchmark: &Benchmark, preflight: &Preflight) -> Option<String> {
    preflight.refusal().or_else(|| match benchmark.scope.network {
        Network::Sockets => None,
        Network::Tunnel => Tunnel::probe(loopback()).err().map(|error| error.to_string()),
    })
}

/// Where the server of a benchmark is: on loopback, at a port that is not known yet.
fn loopback() -> Targets {
    Targets { addresses: vec![SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)], first: 0, step: 1 }
}

/// Changes every kernel setting that is too low, and says what came of each, a line each.
pub fn raise(preflight: &Preflight) -> Vec<String> {
    let told = |Applied { setting, outcome }: Applied| match outcome {
        Ok(()) => format!("done: {}; to undo: {}", setting.command(), setting.undo()),
        Err(error) => format!("not done: {}: {error}", setting.command()),
    };
    apply(preflight).into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(connections: usize) -> Option<String> {
        let size = Size { connections, time: Duration::ZERO };
        preflight(crate::benchmarks::ALL[0], &size).refusal()
    }

    #[test]
    fn what_no_machine_holds_is_refused_with_what_helps() {
        let refusal = refusal(1_000_000_000_000).expect("refused");
        assert!(refusal.starts_with("1,000,000,000,000 connections are wanted"), "{refusal}");
        assert!(refusal.contains("What helps:"), "{refusal}");
    }

    #[test]
    fn a_few_are_always_possible() {
        assert_eq!(refusal(100), None);
    }
}
