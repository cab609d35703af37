//! The clocks that hold messages back, see `pace`.

use std::collections::{BTreeMap, BTreeSet};

use super::subscription::SubscriptionId;
use crate::id::LocalId;

/// The pace of a channel's rule among the clocks of the channel. No subscription has it as its own.
pub(super) const OF_RULE: u32 = 0;

/// A clock that runs.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) due_ms: u64,
    /// The channel's head when it started: a subscription that lacks this message gets it still.
    pub(super) head: u64,
    /// Messages that have come since.
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// The subscriptions that are blocked until it is due.
    pub(super) waiting: BTreeSet<SubscriptionId>,
}

/// The clocks of a worker.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// By channel and pace.
    pub(super) running: BTreeMap<(u32, u32), Clock>,
    /// The time at which each is due, with its channel and pace.
    pub(super) due: BTreeSet<(u64, u32, u32)>,
    /// The number of subscriptions with a pace of their own, of each channel that has any.
    own: BTreeMap<u32, u32>,
}

impl Clocks {
    pub(super) fn start(&mut self, local: LocalId, pace: u32, due_ms: u64, head: u64) {
        let clock = Clock { due_ms, head, messages: 0, bytes: 0, waiting: BTreeSet::new() };
        self.insert(local, pace, clock);
    }

    pub(super) fn insert(&mut self, local: LocalId, pace: u32, clock: Clock) {
        self.due.insert((clock.due_ms, local.index(), pace));
        self.running.insert((local.index(), pace), clock);
    }

    pub(super) fn stop(&mut self, local: LocalId, pace: u32) -> Option<Clock> {
        let clock = self.running.remove(&(local.index(), pace))?;
        self.due.remove(&(clock.due_ms, local.index(), pace));
        Some(clock)
    }

    pub(super) fn of_rule(&self, local: LocalId) -> Option<&Clock> {
        self.running.get(&(local.index(), OF_RULE))
    }

    /// Stops the clocks of a channel that is followed no more.
    pub(super) fn forget(&mut self, local: LocalId) {
        let of_channel = (local.index(), OF_RULE)..=(local.index(), u32::MAX);
        let paces: Vec<_> = self.running.range(of_channel).map(|(&(_, pace), _)| pace).collect();
        paces.into_iter().for_each(|pace| drop(self.stop(local, pace)));
    }

    /// Counts a subscription with a pace of its own.
    pub(super) fn add_own(&mut self, local: LocalId) {
        *self.own.entry(local.index()).or_default() += 1;
    }

    /// Counts one less.
    pub(super) fn remove_own(&mut self, local: LocalId) {
        let count = self.own.get_mut(&local.index());
        debug_assert!(count.is_some(), "it was counted");
        if let Some(count) = count {
            *count -= 1;
            if *count == 0 {
                self.own.remove(&local.index());
            }
        }
    }

    /// True if subscriptions of a channel have a pace of their own.
    pub(super) fn has_own(&self, local: LocalId) -> bool {
        !self.own.is_empty() && self.own.contains_key(&local.index())
    }
}
