//! Checks several changes as if they were made one after the other.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use super::{KeptChange, KeptError, KeptLimits, KeptSubscriptions, State};

/// The state of one user after the changes so far.
#[derive(Debug)]
struct Changed<'c> {
    /// How many channels the user follows now.
    channels: usize,
    /// True if an earlier change has ended all that the user followed before.
    is_replaced: bool,
    /// The channels that changes have named, and whether the user follows them now.
    named: HashMap<&'c str, bool>,
}

impl KeptSubscriptions {
    /// The changes that would exceed a limit if all were made in this order, and the limit. A
    /// change beyond a limit counts as not made. Takes memory and time for the names in the
    /// changes.
    pub fn check_all<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c str, &'c KeptChange)>,
    ) -> Vec<(usize, KeptError)> {
        let mut users: HashMap<&str, Changed<'_>> = HashMap::new();
        let mut in_all = self.count.load(Ordering::Relaxed);
        let mut refused = Vec::new();
        for (index, (user, change)) in changes.into_iter().enumerate() {
            // Workers read between two changes.
            let state = self.of(user);
            let before = users.remove(user).unwrap_or_else(|| Changed::none(&state, user));
            let has = |name: &str| before.has(&state, user, name);
            let (added, removed) = difference(change, before.channels, has);
            match self.limits.check(before.channels, in_all, (added, removed)) {
                Ok(()) => {
                    in_all = in_all + added - removed;
                    users.insert(user, before.then(change, (added, removed)));
                }
                Err(error) => {
                    refused.push((index, error));
                    users.insert(user, before);
                }
            }
        }
        refused
    }
}

impl<'c> Changed<'c> {
    fn none(state: &State, user: &str) -> Changed<'c> {
        let channels = state.users.find(user).map_or(0, |id| state.users.set(id).len());
        Changed { channels, is_replaced: false, named: HashMap::new() }
    }

    fn has(&self, state: &State, user: &str, name: &str) -> bool {
        let named = self.named.get(name).copied();
        named.unwrap_or_else(|| !self.is_replaced && state.has(user, name))
    }

    fn then(mut self, change: &'c KeptChange, (added, removed): (usize, usize)) -> Changed<'c> {
        self.channels = self.channels + added - removed;
        let (add, remove) = match change {
            KeptChange::Replace(channels) => {
                self.is_replaced = true;
                self.named.clear();
                (channels, None)
            }
            KeptChange::Update { add, remove } => (add, Some(remove)),
        };
        let removed = remove.into_iter().flatten().map(|name| (name.as_str(), false));
        // Names in both are added.
        self.named.extend(removed.chain(add.iter().map(|name| (name.as_str(), true))));
        self
    }
}

/// How many channels a change adds and removes for a user who follows `channels`.
fn difference(change: &KeptChange, channels: usize, has: impl Fn(&str) -> bool) -> (usize, usize) {
    fn unique(names: &[String]) -> HashSet<&str> {
        names.iter().map(String::as_str).collect()
    }
    match change {
        KeptChange::Replace(wanted) => {
            let wanted = unique(wanted);
            let stay = wanted.iter().filter(|name| has(name)).count();
            (wanted.len() - stay, channels - stay)
        }
        KeptChange::Update { add, remove } => {
            let add = unique(add);
            let removed = unique(remove);
            let removed = removed.iter().filter(|name| !add.contains(*name) && has(name));
            (add.iter().filter(|name| !has(name)).count(), removed.count())
        }
    }
}

impl KeptLimits {
    /// Fails if a user who follows `channels`, of `in_all` subscriptions, must not follow as many
    /// more and fewer.
    pub(super) fn check(
        self,
        channels: usize,
        in_all: usize,
        (added, removed): (usize, usize),
    ) -> Result<(), KeptError> {
        let (channels, in_all) = (channels + added - removed, in_all + added - removed);
        if channels > self.max_per_user && added > 0 {
            return Err(KeptError::TooManyOfUser(channels, self.max_per_user));
        }
        if in_all > self.max_in_all && added > 0 {
            return Err(KeptError::TooManyInAll(in_all, self.max_in_all));
        }
        Ok(())
    }
}
