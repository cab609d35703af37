//! Runs that no plan can describe: clients that are led step by step, kills, upgrades, drains,
//! starts, revocations. A run of a file names its program.

pub(crate) mod cluster;
mod drain;
mod durable;
mod led;
mod polls;
mod refusals;
mod revocation;
mod rounds;
mod upgrade;
pub(crate) mod users;

use crate::context::{Abort, Context};
use crate::file::Run;

/// Makes a run, and adds its figures.
pub(crate) type Program = fn(&mut Context<'_>, &Run) -> Result<(), Abort>;

const ALL: [(&str, Program); 14] = [
    ("polls", polls::run),
    ("rounds", rounds::run),
    ("health", rounds::health),
    ("upgrade", upgrade::run),
    ("drain", drain::run),
    ("refusals", refusals::run),
    ("revocation", revocation::run),
    ("inboxes-at-rest", durable::inboxes_at_rest),
    ("subscriptions", durable::subscriptions),
    ("hot", cluster::hot),
    ("join", cluster::join),
    ("node-killed", cluster::node_killed),
    ("broker-killed", cluster::broker_killed),
    ("leader-killed", cluster::leader_killed),
];

/// The program of this name.
pub(crate) fn find(name: &str) -> Option<Program> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, program)| *program)
}
