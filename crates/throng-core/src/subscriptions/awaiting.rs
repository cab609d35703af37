//! The subscriptions of a worker whose messages wait for their users.

use std::collections::BTreeSet;

use super::subscription::SubscriptionId;
use crate::id::LocalId;

/// Mostly none.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    all: BTreeSet<(LocalId, SubscriptionId)>,
    /// Those that have waited too long, until the worker ends the wait.
    overdue: Vec<SubscriptionId>,
}

impl Awaiting {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, local: LocalId, id: SubscriptionId) {
        self.all.insert((local, id));
    }

    pub(super) fn remove(&mut self, local: LocalId, id: SubscriptionId) {
        self.all.remove(&(local, id));
    }

    /// Those of a channel.
    pub(super) fn of(&self, local: LocalId) -> impl Iterator<Item = SubscriptionId> {
        let range = (local, SubscriptionId::FIRST)..=(local, SubscriptionId::LAST);
        self.all.range(range).map(|(_, id)| *id)
    }

    /// One has waited too long.
    pub(super) fn end(&mut self, local: LocalId, id: SubscriptionId) {
        self.remove(local, id);
        self.overdue.push(id);
    }

    pub(super) fn take_overdue(&mut self) -> Vec<SubscriptionId> {
        std::mem::take(&mut self.overdue)
    }
}
