//! The checks, one file per concern. Each states what this machine has, what is needed, and why. A
//! value that cannot be read is [unknown](super::Verdict::Unknown) and never refuses a run.

mod descriptors;
mod files;
mod lookup;
mod memory;
mod ports;
mod queues;
mod threads;

use super::check::Check;
use super::room::Room;
use super::wanted::Wanted;

/// All checks of a request, in the order in which a person would go through them.
pub(super) fn all(wanted: &Wanted, room: &Room) -> Vec<Check> {
    let concerns = [
        descriptors::checks(wanted, room),
        threads::checks(wanted, room),
        files::checks(wanted, room),
        ports::checks(wanted, room),
        queues::checks(wanted, room),
        lookup::checks(wanted, room),
        memory::checks(wanted, room),
    ];
    concerns.into_iter().flatten().collect()
}
