//! Whether this machine allows what a plan asks for.

use std::net::ToSocketAddrs as _;
use std::thread::available_parallelism;

use throng_machine::environment::raise_descriptors;

use crate::machine::preflight::{DESCRIPTORS_SLACK, Preflight, Room, Wanted, threads_for};
use crate::plan::{Phase, Plan};
use crate::run::clients_max;
use crate::template::Values;

/// What the choice of sources, ports and threads allows on this machine.
pub(super) fn allowance(plan: &Plan) -> Preflight {
    let wanted = wanted(plan);
    Room::look(&wanted).check(&wanted)
}

fn wanted(plan: &Plan) -> Wanted {
    let clients = clients_max(plan) as u64;
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
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    let descriptors = raise_descriptors(clients + DESCRIPTORS_SLACK);
    let threads = plan.threads.map(|threads| threads as u64);
    Wanted {
        clients,
        threads: threads.unwrap_or_else(|| threads_for(clients, descriptors, cores)),
        addresses,
        ports: plan.sources.ports,
        target_ports: plan.target.ports.len().max(1) as u64,
        in_flight: in_flight.max().unwrap_or_default(),
        is_loopback,
        is_publishing: plan.phases.iter().any(|phase| phase.publishing().is_some()),
    }
}

/// Whether the target is on this machine, as far as its address tells.
fn is_loopback(plan: &Plan) -> bool {
    let url = plan.target.url.rendered(&Values::default());
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let with_port =
        authority.to_socket_addrs().or_else(|_| format!("{authority}:80").to_socket_addrs());
    with_port.is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}
