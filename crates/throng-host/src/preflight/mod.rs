//! Can this machine hold so many connections, and what would have to change?
//!
//! Said before anything starts, not found out in the middle of it. `throng doctor` prints it,
//! `throng serve` warns of it, the load generator and the measuring programs refuse by it.
//!
//! ```no_run
//! use throng_host::preflight::{Wanted, apply, check};
//!
//! let wanted = Wanted::both(1_000_000);
//! let mut found = check(&wanted);
//! if !found.is_possible() {
//!     apply(&found);
//!     found = check(&wanted);
//! }
//! if let Some(refusal) = found.refusal() {
//!     eprintln!("{refusal}");
//! }
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `wanted` | what is asked: [`Wanted`], with [`Server`], [`Clients`], [`Tables`] |
//! | `room` | what it has to give: [`Room`] |
//! | `checks` | a check for each setting, by concern |
//! | `check` | a [`Check`]: what is here, what is needed, the [`Verdict`], the [`Setting`] |
//! | `apply` | changing what is too low: [`apply`] |
//!
//! # Invariants
//!
//! - What cannot be read is [`Verdict::Unknown`]: it never refuses, and is never called enough.
//! - A [`Setting`] asks for no less than what is there.

mod apply;
mod check;
mod checks;
mod room;
mod wanted;

use throng_units::format::{count, counted};

pub use apply::{Applied, ApplyError, apply};
pub use check::{Check, Limit, Setting, Verdict};
pub use room::{Firewall, Memory, Room, ThreadLimit, Threads};
pub use wanted::{CLIENTS_APART, Clients, Server, Tables, Wanted};

/// What a machine says to what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    /// So many connections were wanted.
    pub wanted: u64,
    /// Every check, in the order in which a person would go through them.
    pub checks: Vec<Check>,
}

/// Up to this many connections no machine needs other settings than those it comes with: what is
/// not a hard limit is the doctor's to say, not a warning at each start.
pub const MANY: u64 = 10_000;

/// Checks this machine, as [`Room::look`] finds it.
pub fn check(wanted: &Wanted) -> Preflight {
    Room::look(wanted).check(wanted)
}

impl Room {
    /// What this room allows of what is wanted.
    pub fn check(&self, wanted: &Wanted) -> Preflight {
        Preflight { wanted: wanted.connections, checks: checks::all(wanted, self) }
    }

    /// The most connections, up to `most`, that this room allows; `wanted` says what that many ask
    /// for.
    pub fn fits(&self, most: u64, wanted: impl Fn(u64) -> Wanted) -> u64 {
        let is_possible = |connections| self.check(&wanted(connections)).is_possible();
        // More connections never need less, so that halving finds the last number that is possible.
        let (mut fits, mut too_many) = (0, most.saturating_add(1));
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if is_possible(middle) { fits = middle } else { too_many = middle }
        }
        fits
    }
}

impl Preflight {
    /// Whether nothing stands in the way, as far as it could be read.
    pub fn is_possible(&self) -> bool {
        self.with(Verdict::Must).next().is_none()
    }

    /// The checks with this verdict, in order.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.verdict == verdict)
    }

    /// The tightest of the hard limits; `None` if none could be read.
    pub fn limit(&self) -> Option<&Limit> {
        let limits = self.checks.iter().filter_map(|check| check.limit.as_ref());
        limits.min_by_key(|limit| limit.allows)
    }

    /// What is allowed, in one line.
    pub fn summary(&self) -> String {
        match self.limit() {
            None => format!("room for {} connections and more", count(self.wanted)),
            Some(limit) => {
                format!("room for {} connections: {}", count(limit.allows), limit.because)
            }
        }
    }

    /// Why so many are not possible, and what helps, a line each; `None` if they are.
    pub fn refusal(&self) -> Option<String> {
        let mut short: Vec<&Check> = self.with(Verdict::Must).collect();
        let first = short.first()?;
        let wanted = counted(self.wanted, "connection is", "connections are");
        let mut text = match self.limit().filter(|limit| limit.allows < self.wanted) {
            Some(limit) => {
                let allows = count(limit.allows);
                format!("{wanted} wanted and there is room for {allows}: {}.", limit.because)
            }
            None => format!("{wanted} wanted and cannot be: {}.", first.sentence()),
        };
        let allows = |check: &Check| check.limit.as_ref().map_or(u64::MAX, |limit| limit.allows);
        short.sort_by_key(|check| allows(check));
        let help: Vec<String> = short.iter().flat_map(|check| check.help()).collect();
        if !help.is_empty() {
            text.push_str(" What helps:\n  ");
            text.push_str(&help.join("\n  "));
        }
        Some(text)
    }

    /// What may spoil figures or endanger the machine, a line each; nothing for up to [`MANY`].
    pub fn warnings(&self) -> Vec<String> {
        let is_many = self.wanted > MANY;
        self.with(Verdict::Should).filter(|_| is_many).map(Check::sentence).collect()
    }
}

#[cfg(test)]
mod tests;
