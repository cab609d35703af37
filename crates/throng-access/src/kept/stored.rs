//! How subscriptions are stored: an entry for each pair of a user and a channel.
//!
//! The key is the length of the user's name in one byte, the user and the channel; the value is
//! empty. So a change writes what it changes, however many channels the user has, and all channels
//! of a user are read together.

use std::sync::atomic::Ordering;

use throng_core::records::{Change, Records, Table};

use super::{KeptPlan, KeptSubscriptions};

/// Why subscriptions cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Store(String),
    /// An entry that this build does not write.
    #[error("an entry is none of a user and a channel")]
    Entry,
}

/// The change that makes a user follow a channel, or follow it no more.
fn change(user: &str, channel: &str, is_followed: bool) -> Change {
    debug_assert!(user.len() <= u8::MAX.into(), "names are short");
    let key = [&[user.len() as u8], user.as_bytes(), channel.as_bytes()].concat();
    let value = is_followed.then(Box::default);
    Change { table: Table::Subscriptions, key: key.into(), value }
}

/// The user and the channel of a key of the table of subscriptions.
pub fn parse_stored(key: &[u8]) -> Option<(&str, &str)> {
    let (length, names) = key.split_first()?;
    let (user, channel) = names.split_at_checked(usize::from(*length))?;
    let [user, channel] = [user, channel].map(std::str::from_utf8);
    Some((user.ok()?, channel.ok()?))
        .filter(|(user, channel)| !user.is_empty() && !channel.is_empty())
}

impl KeptPlan {
    /// How many subscriptions it adds.
    pub fn added(&self) -> usize {
        self.add.len()
    }

    /// How many subscriptions it removes.
    pub fn removed(&self) -> usize {
        self.remove.len()
    }

    /// The changes to make in a store.
    pub fn changes(&self, user: &str) -> impl Iterator<Item = Change> {
        let add = self.add.iter().map(move |channel| change(user, channel, true));
        add.chain(self.remove.iter().map(move |channel| change(user, channel, false)))
    }
}

impl KeptSubscriptions {
    /// Adds the stored subscriptions. Call it once at the start, before anything is kept or read.
    /// Limits do not apply: what was accepted stays.
    ///
    /// # Errors
    ///
    /// Why it cannot be read. Then some of it may have been added.
    pub fn load(&self, records: &dyn Records) -> Result<(), LoadError> {
        let mut state = self.write();
        let mut added = 0;
        let mut is_broken = false;
        let mut each = |key: &[u8], _: &[u8]| match parse_stored(key) {
            Some((user, channel)) => {
                state.add(user, [channel]);
                added += 1;
            }
            None => is_broken = true,
        };
        records.read_all(Table::Subscriptions, &mut each).map_err(LoadError::Store)?;
        drop(state);
        self.count.fetch_add(added, Ordering::Relaxed);
        if is_broken { Err(LoadError::Entry) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use proptest::prelude::*;
    use throng_core::Ticket;
    use throng_core::records::{Each, StoreError};

    use super::*;
    use crate::kept::KeptChange;

    type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

    /// A store in memory.
    #[derive(Default)]
    struct Stored(Mutex<Entries>);

    impl Records for Stored {
        fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
            let mut stored = self.0.lock().expect("no test panics");
            for Change { key, value, .. } in changes {
                match value {
                    Some(value) => stored.insert(key, value),
                    None => stored.remove(&key),
                };
            }
            done.answer(Ok(()));
        }

        fn state(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn read_all(&self, _: Table, each: Each<'_>) -> Result<(), String> {
            let stored = self.0.lock().expect("no test panics");
            stored.iter().for_each(|(key, value)| each(key, value));
            Ok(())
        }
    }

    /// All users with their channels.
    fn everything(kept: &KeptSubscriptions) -> BTreeMap<String, Vec<Box<str>>> {
        let users = (0..5).map(|n| format!("user-{n}"));
        users
            .map(|user| {
                let mut names = kept.channels_page(&user, None, usize::MAX).names;
                names.sort_unstable();
                (user, names)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn what_is_stored_is_what_is_kept(
            steps in prop::collection::vec(
                (0u8..5, any::<bool>(), prop::collection::vec(0u8..9, 0..6)), 0..30,
            ),
        ) {
            let (kept, stored) = (KeptSubscriptions::default(), Stored::default());
            for (user, replaces, channels) in steps {
                let user = format!("user-{user}");
                let names = |part: &[u8]| part.iter().map(|n| format!("channel-{n}")).collect();
                let (add, remove) = channels.split_at(channels.len() / 2);
                let change = if replaces {
                    KeptChange::Replace(names(&channels))
                } else {
                    KeptChange::Update { add: names(add), remove: names(remove) }
                };
                let plan = kept.plan(&user, &change, 0).expect("it is within the limits");
                stored.change(plan.changes(&user).collect(), Ticket::new(drop));
                kept.make(&user, &change, plan, drop);
            }
            let loaded = KeptSubscriptions::default();
            loaded.load(&stored).expect("it is read");
            prop_assert_eq!(everything(&loaded), everything(&kept));
            prop_assert_eq!(loaded.counts(), kept.counts());
        }
    }

    #[test]
    fn a_key_has_both_names() {
        for (user, channel) in [("ann", "news"), ("é", "a/b"), (&*"u".repeat(255), "c")] {
            let Change { key, value, .. } = change(user, channel, true);
            assert_eq!((parse_stored(&key), value), (Some((user, channel)), Some(Box::default())));
            assert_eq!(change(user, channel, false).value, None);
        }
        for bad in [&b""[..], b"\0news", b"\x03ann", b"\x05ann", b"\x01\xffnews", b"\x01a\xff"] {
            assert_eq!(parse_stored(bad), None, "{bad:?}");
        }
    }
}
