//! Checks, before the measurements, whether the machine allows them.

use anyhow::{Result, bail, ensure};
use throng_host::environment::raise_descriptors;
use throng_host::preflight::{self, ClientDemand, Demand, ServerDemand, TableDemand};

use crate::net::CONNECTIONS_PER_SOURCE_MAX;
use crate::settings::Settings;

/// Descriptors of a thread besides its connections: standard streams, pipes to children, epoll.
const DESCRIPTORS_SLACK: u64 = 128;

/// Raises the descriptor limit as far as possible. Returns how many connections a thread can have.
pub(crate) fn connections_per_thread() -> Result<usize> {
    // Not beyond the hard limit, which the children have, too.
    let limit = raise_descriptors(0);
    ensure!(
        limit > DESCRIPTORS_SLACK * 2,
        "a process may have only {limit} descriptors: raise the hard limit (ulimit -Hn 20000)"
    );
    Ok(usize::try_from(limit - DESCRIPTORS_SLACK).unwrap_or(usize::MAX))
}

/// Checks the machine. Changes settings that are too low if `is_applied`, otherwise prints
/// warnings. An error if the measurements are not possible.
pub(crate) fn prepare(settings: &Settings, is_applied: bool) -> Result<()> {
    let demand = demand(settings);
    let mut checks = preflight::check(&demand);
    if is_applied {
        for applied in preflight::apply(&checks) {
            if let Err(error) = applied.outcome {
                bail!("cannot set {}: {error}", applied.setting.name);
            }
        }
        checks = preflight::check(&demand);
    }
    for warning in checks.warnings() {
        eprintln!("warning: {warning}");
    }
    match checks.refusal() {
        Some(refusal) => bail!("{refusal}"),
        None => Ok(()),
    }
}

fn demand(settings: &Settings) -> Demand {
    let threads = settings.client_threads as u64;
    let tables = TableDemand {
        threads_least: threads,
        max_threads: threads,
        apart: DESCRIPTORS_SLACK,
        apart_per_thread: 0,
    };
    Demand {
        connections: settings.connections as u64,
        // All clients of the raw loop may be connected before it accepts one.
        server: Some(ServerDemand {
            tables: None,
            port: None,
            burst: settings.connections.div_ceil(settings.senders) as u64,
        }),
        clients: Some(ClientDemand {
            tables,
            addresses: None,
            ports: None,
            target_ports: 1,
            per_address: Some(CONNECTIONS_PER_SOURCE_MAX as u64),
        }),
        is_publishing: true,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn the_default_number_of_threads_is_enough() {
        let arguments = Arguments::try_parse_from(["throng-baseline", "--connections", "60000"]);
        let settings = arguments.expect("valid").settings(19_872).expect("settings");
        let demand = demand(&settings);
        let tables = demand.clients.expect("clients").tables;
        assert_eq!(tables.threads_for(60_000, 20_000), Some(settings.client_threads as u64));
        assert_eq!(demand.server.expect("a server").burst, 15_000);
    }

    #[test]
    fn a_thread_can_have_connections() {
        assert!(connections_per_thread().expect("enough") >= 128);
    }
}
