//! The checks, one file per concern. Each states what this machine has, what is needed, and why. A
//! value that cannot be read is [unknown](super::CheckVerdict::Unknown) and never refuses a run.

mod descriptors;
mod files;
mod lookup;
mod memory;
mod ports;
mod queues;
mod threads;

use super::capacity::Capacity;
use super::check::Check;
use super::demand::Demand;

/// All checks of a request, in the order in which a person would go through them.
pub(super) fn all(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let concerns = [
        descriptors::checks(demand, capacity),
        threads::checks(demand, capacity),
        files::checks(demand, capacity),
        ports::checks(demand, capacity),
        queues::checks(demand, capacity),
        lookup::checks(demand, capacity),
        memory::checks(demand, capacity),
    ];
    concerns.into_iter().flatten().collect()
}
