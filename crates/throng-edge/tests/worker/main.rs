//! One worker, driven by hand: what the seeded simulation cannot aim at.

mod answers;
mod behind;
mod close;
mod drain;
mod expiry;
mod fan_out;
mod freeze;
mod journal_world;
mod kept;
mod kept_elsewhere;
mod kept_world;
mod limit_world;
mod limits;
mod memory;
mod names;
mod poll;
mod presence;
mod presence_world;
mod read;
mod receipts;
mod rig;
mod scan;
mod tls_world;
mod token_world;
mod tokens;
mod waiting;
