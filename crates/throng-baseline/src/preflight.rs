//! What the measurements need from the machine, checked before they start.

use anyhow::{Result, bail, ensure};
use throng_host::environment::raise_descriptors;
use throng_host::preflight::{self, Clients, Demand, Server, Tables};

use crate::net::CONNECTIONS_PER_SOURCE_MAX;
use crate::settings::Settings;

/// Descriptors of a thread beside its connections: standard streams, pipes to children, epoll.
const DESCRIPTORS_SLACK: u64 = 128;

/// Raises the descriptor limit as far as it may be; returns how many connections a thread can
/// hold.
pub fn connections_per_thread() -> Result<usize> {
    // Nothing is wanted beyond the hard limit: children get the same.
    let limit = raise_descriptors(0);
    ensure!(
        limit > DESCRIPTORS_SLACK * 2,
        "a process may have only {limit} descriptors: raise the hard limit (ulimit -Hn 20000)"
    );
    Ok(usize::try_from(limit - DESCRIPTORS_SLACK).unwrap_or(usize::MAX))
}

/// Checks the machine; changes what is too low if `is_applied`, else warns of it. An error if the
/// measurements are not possible.
pub fn prepare(settings: &Settings, is_applied: bool) -> Result<()> {
    let wanted = wanted(settings);
    let mut found = preflight::check(&wanted);
    if is_applied {
        for applied in preflight::apply(&found) {
            if let Err(error) = applied.outcome {
                bail!("cannot set {}: {error}", applied.setting.name);
            }
        }
        found = preflight::check(&wanted);
    }
    for warning in found.warnings() {
        eprintln!("warning: {warning}");
    }
    match found.refusal() {
        Some(refusal) => bail!("{refusal}"),
        None => Ok(()),
    }
}

fn wanted(settings: &Settings) -> Demand {
    let threads = settings.client_threads as u64;
    let tables = Tables {
        threads_least: threads,
        threads_max: threads,
        apart: DESCRIPTORS_SLACK,
        apart_per_thread: 0,
    };
    Demand {
        connections: settings.connections as u64,
        // The raw loop's clients are connected before they are accepted: all may be waiting.
        server: Some(Server {
            tables: None,
            port: None,
            burst: settings.connections.div_ceil(settings.senders) as u64,
        }),
        clients: Some(Clients {
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
    fn threads_that_the_command_line_chose_are_enough() {
        let arguments = Arguments::try_parse_from(["throng-baseline", "--connections", "60000"]);
        let settings = arguments.expect("valid").settings(19_872).expect("settings");
        let wanted = wanted(&settings);
        let tables = wanted.clients.expect("clients").tables;
        assert_eq!(tables.threads_for(60_000, 20_000), Some(settings.client_threads as u64));
        assert_eq!(wanted.server.expect("a server").burst, 15_000);
    }

    #[test]
    fn a_thread_holds_what_is_left_of_its_descriptors() {
        assert!(connections_per_thread().expect("enough") >= 128);
    }
}
