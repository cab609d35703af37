//! Checks whether this machine allows what a plan needs.

use throng_host::environment::raise_descriptors;
use throng_host::preflight::{ClientDemand, Demand, Preflight, ServerDemand, TableDemand, check};

use crate::clients::ClientPool;
use crate::machine::is_loopback;
use crate::plan::{Network, Phase, Plan};

/// The connections that the plan's sources, ports and threads allow on this machine; and if the
/// plan cannot run here, why, and what helps.
pub(super) fn allowance(plan: &Plan) -> (Preflight, Option<String>) {
    let allowance = check(&demand(plan));
    let of_network = || ClientPool::check_network(plan).err().map(|error| error.to_string());
    let refusal = allowance.refusal().or_else(of_network);
    (allowance, refusal)
}

fn demand(plan: &Plan) -> Demand {
    let connections = plan.max_clients() as u64;
    let is_loopback = is_loopback(plan);
    let addresses = match plan.sources.addresses.len() as u64 {
        0 if is_loopback => None,
        0 => Some(1),
        addresses => Some(addresses),
    };
    let in_flight = plan.phases.iter().map(|phase| match phase {
        Phase::Ramp { in_flight, .. } => *in_flight as u64,
        _ => 0,
    });
    // Clients of a tunnel need nothing of the kernel, and their server is on this machine.
    let has_sockets = plan.network == Network::Sockets;
    let is_here = is_loopback || !has_sockets;
    let burst = in_flight.max().unwrap_or_default().min(connections);
    Demand {
        connections,
        // The server is running already, with limits that are unknown here.
        server: is_here.then_some(ServerDemand { tables: None, port: None, burst }),
        clients: has_sockets.then(|| ClientDemand {
            tables: TableDemand::clients_on(threads(plan, connections)),
            addresses,
            ports: plan.sources.ports.map(|range| range.0),
            target_ports: plan.target.ports.len().max(1) as u64,
            per_address: None,
        }),
        is_publishing: plan.publishes(),
    }
}

/// The threads that the plan asks for, or as many as cores and descriptors require.
fn threads(plan: &Plan, connections: u64) -> u64 {
    let needed = || {
        let tables = TableDemand::clients();
        let descriptors = raise_descriptors(tables.descriptors_with(connections, 1));
        tables.threads_for(connections, descriptors).unwrap_or(tables.threads_least)
    };
    plan.threads.map_or_else(needed, |threads| threads as u64)
}
