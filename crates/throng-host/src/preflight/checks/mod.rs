//! The checks themselves, a file for each concern. Each says what is here, what is needed and why;
//! what cannot be read is unknown, and never refuses.

mod descriptors;
mod files;
mod lookup;
mod memory;
mod ports;
mod queues;
mod threads;

use throng_units::format::count;

use super::check::{Check, Verdict};
use super::room::Room;
use super::wanted::Wanted;

/// The kernel writes "no limit" as a number about as large as it can.
const UNLIMITED_FROM: u64 = 1 << 60;

/// All that matters for what is wanted, in the order in which a person would go through it.
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

/// A number for people.
fn number(number: u64) -> String {
    if number >= UNLIMITED_FROM { "no limit".to_owned() } else { count(number) }
}

/// With some to spare, for what else the machine does.
fn with_spare(number: u64) -> u64 {
    number.saturating_add(number / 8)
}

/// `severity` if something is short.
fn verdict(is_short: bool, severity: Verdict) -> Verdict {
    if is_short { severity } else { Verdict::Ok }
}
