//! Whether this machine can hold a number of connections, and what would have to change.
//!
//! `throng doctor` prints the checks, `throng serve` warns, and the load generator and the
//! benchmarks refuse to start.
//!
//! ```no_run
//! use throng_host::preflight::{Demand, apply, check};
//!
//! let demand = Demand::both(1_000_000);
//! let mut found = check(&demand);
//! if !found.is_possible() {
//!     apply(&found);
//!     found = check(&demand);
//! }
//! if let Some(refusal) = found.refusal() {
//!     eprintln!("{refusal}");
//! }
//! ```
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `demand` | the request: [`Demand`], with [`ServerDemand`], [`ClientDemand`], [`TableDemand`] |
//! | `capacity` | the limits of the machine: [`Capacity`] |
//! | `checks` | the checks, one file per concern |
//! | `check` | a [`Check`]: found, needed, [`CheckVerdict`], [`Setting`] |
//! | `apply` | raises settings that are too low: [`apply`] |
//!
//! # Invariants
//!
//! - A value that cannot be read is [`CheckVerdict::Unknown`]: it neither refuses nor counts as
//!   enough.
//! - A [`Setting`] never lowers the current value.

mod apply;
mod capacity;
mod check;
mod checks;
mod demand;

use throng_units::format::{count, counted};

pub use apply::{Applied, ApplyError, apply};
pub use capacity::{AvailableMemory, Capacity, Firewall, ThreadLimit, Threads};
pub use check::{Check, CheckVerdict, Limit, Setting};
pub use demand::{CLIENTS_APART, ClientDemand, Demand, ServerDemand, TableDemand};

/// The checks of a request on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    pub connections: u64,
    /// All checks, in display order.
    pub checks: Vec<Check>,
}

/// Up to this many connections the default settings of any machine suffice, so that at startup only
/// hard limits cause a warning. The doctor lists all checks at any number.
pub const MANY: u64 = 10_000;

/// Checks this machine, as read by [`Capacity::read`].
pub fn check(demand: &Demand) -> Preflight {
    Capacity::read(demand).check(demand)
}

impl Capacity {
    /// Checks a request against this machine.
    pub fn check(&self, demand: &Demand) -> Preflight {
        Preflight { connections: demand.connections, checks: checks::all(demand, self) }
    }

    /// The largest number of connections that this machine allows, at most `max_connections`.
    /// `demand` makes the request for a number.
    pub fn fits(&self, max_connections: u64, demand: impl Fn(u64) -> Demand) -> u64 {
        let is_possible = |connections| self.check(&demand(connections)).is_possible();
        // Binary search: more connections never need less.
        let (mut fits, mut too_many) = (0, max_connections.saturating_add(1));
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if is_possible(middle) {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }
}

impl Preflight {
    /// True if no check failed, as far as the values could be read.
    pub fn is_possible(&self) -> bool {
        self.with(CheckVerdict::Must).next().is_none()
    }

    /// The checks with this verdict, in order.
    pub fn with(&self, verdict: CheckVerdict) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.verdict == verdict)
    }

    /// The tightest of the hard limits; `None` if none could be read.
    pub fn limit(&self) -> Option<&Limit> {
        let limits = self.checks.iter().filter_map(|check| check.limit.as_ref());
        limits.min_by_key(|limit| limit.allows)
    }

    /// The number of possible connections, in one line.
    pub fn summary(&self) -> String {
        match self.limit() {
            None => format!("at least {} connections fit", count(self.connections)),
            Some(limit) => {
                format!("{} connections fit: {}", count(limit.allows), limit.because)
            }
        }
    }

    /// Why the request is impossible, and what helps, one line each; `None` if it is possible.
    pub fn refusal(&self) -> Option<String> {
        let mut short: Vec<&Check> = self.with(CheckVerdict::Must).collect();
        let first = short.first()?;
        let requested = counted(self.connections, "connection", "connections");
        let mut text = match self.limit().filter(|limit| limit.allows < self.connections) {
            Some(limit) => {
                let allows = count(limit.allows);
                format!("{requested} requested, but only {allows} fit: {}.", limit.because)
            }
            None => format!("{requested} requested, but not possible: {}.", first.message()),
        };
        let allows = |check: &Check| check.limit.as_ref().map_or(u64::MAX, |limit| limit.allows);
        short.sort_by_key(|check| allows(check));
        let help: Vec<String> = short.iter().flat_map(|check| check.help()).collect();
        if !help.is_empty() {
            text.push_str(" To change that:\n  ");
            text.push_str(&help.join("\n  "));
        }
        Some(text)
    }

    /// Conditions that may distort measurements or endanger the machine, one line each; none up to
    /// [`MANY`].
    pub fn warnings(&self) -> Vec<String> {
        let is_many = self.connections > MANY;
        self.with(CheckVerdict::Should).filter(|_| is_many).map(Check::message).collect()
    }
}

#[cfg(test)]
mod tests;
