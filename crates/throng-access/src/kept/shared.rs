//! Subscriptions that several servers keep together, in a table that each of them has whole.
//!
//! # Entries
//!
//! The key is the user, with `=` and two hexadecimal digits for each byte that is no letter, digit,
//! `-` or `_`; the value is a list of all channels of the user, `["a","b"]`. An entry that was
//! removed is one of a user without channels.
//!
//! # Invariants
//!
//! * What is kept changes only as the table does: a change is written first, and made here when it
//!   comes back from there.
//! * An entry is written only if it replaces the one that the change was planned on. So of two
//!   servers that change a user at the same time, one plans again, on what the other has made.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use throng_core::key_text::{decode, encode};
use throng_core::{ChannelName, Kind, Ticket};
use throng_wire::check_name;

use super::{CHANGED_PER_LOCK, KeptChange, KeptError, KeptPlan, KeptSubscriptions};
use crate::shared::ShareError;

/// An entry to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEntry {
    /// The key, which names the user.
    pub key: String,
    /// Its value; `None` if the entry is to be removed.
    pub value: Option<Vec<u8>>,
    /// The place of the entry in the table that it replaces; 0 if there is none.
    pub replaces: u64,
}

/// The outcome of writing an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptWritten {
    /// The table has it, and it was [taken](SharedKept::take).
    Stored,
    /// The table has another one, which was [taken](SharedKept::take). Nothing is written.
    Conflict {
        /// The place of that entry; 0 if it is not known.
        last: u64,
    },
}

type Write = Box<dyn Fn(KeptEntry, Ticket<Result<KeptWritten, ShareError>>) + Send + Sync>;

/// The table, for one of its servers.
pub struct SharedKeptTable {
    /// Writes an entry, and answers when it was [taken](SharedKept::take) from the table.
    pub write: Write,
    /// Compares what is known here with the table, and answers once all was
    /// [taken](SharedKept::take) that the table has now. There is no answer if the table cannot be
    /// reached.
    pub compare: Box<dyn Fn(Ticket<()>) + Send + Sync>,
}

/// See the module.
pub struct SharedKept {
    kept: Arc<KeptSubscriptions>,
    table: SharedKeptTable,
    is_known: AtomicBool,
}

/// How an entry has changed what a user follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTaken {
    pub inbox: ChannelName,
    /// Channels that the user did not follow before.
    pub added: Vec<ChannelName>,
    /// Channels that the user follows no more.
    pub removed: Vec<ChannelName>,
}

impl fmt::Debug for SharedKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKept").finish_non_exhaustive()
    }
}

/// The user of a key, and the channels of a value; `None` if they are none of this format.
pub fn read_entry(key: &str, value: Option<&[u8]>) -> Option<(String, Vec<String>)> {
    let user = decode(key)?;
    check_name(&user, Kind::User.noun()).ok()?;
    let channels: Vec<String> = match value {
        Some(value) => serde_json::from_slice(value).ok()?,
        None => Vec::new(),
    };
    let is_name = |name: &String| check_name(name, Kind::Channel.noun()).is_ok();
    channels.iter().all(is_name).then_some((user, channels))
}

fn entry<'c>(user: &str, channels: impl Iterator<Item = &'c str>, replaces: u64) -> KeptEntry {
    // In an order of their own, so that equal states are equal entries.
    let channels: BTreeSet<&str> = channels.collect();
    // Texts always become JSON.
    let value = (!channels.is_empty()).then(|| serde_json::to_vec(&channels).unwrap_or_default());
    KeptEntry { key: encode(user), value, replaces }
}

impl SharedKept {
    /// Keeps `kept` as the table has it.
    pub fn new(kept: Arc<KeptSubscriptions>, table: SharedKeptTable) -> SharedKept {
        SharedKept { kept, table, is_known: AtomicBool::new(false) }
    }

    /// All that the table has was taken.
    pub fn becomes_known(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    /// True if all that the table has was taken once.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// The kept subscriptions.
    pub fn kept(&self) -> &Arc<KeptSubscriptions> {
        &self.kept
    }

    /// Writes an entry: see [`SharedKeptTable::write`].
    pub fn write(&self, entry: KeptEntry, done: Ticket<Result<KeptWritten, ShareError>>) {
        (self.table.write)(entry, done);
    }

    /// Compares what is known here with the table: see [`SharedKeptTable::compare`].
    pub fn compare(&self, done: Ticket<()>) {
        (self.table.compare)(done);
    }

    /// The additions and removals of a change, as [`KeptSubscriptions::plan`], and the entry that
    /// makes it. `last` is the place of an entry of the user that was in the way of an earlier
    /// attempt.
    ///
    /// # Errors
    ///
    /// The limit that it would exceed.
    pub fn plan(
        &self,
        user: &str,
        change: &KeptChange,
        last: u64,
    ) -> Result<(KeptPlan, KeptEntry), KeptError> {
        // The plan and the replaced entries must be of the same moment.
        let state = self.kept.read();
        let plan = self.kept.plan_in(&state, user, change, 0)?;
        let id = state.users.find(user);
        let before = id.into_iter().flat_map(|id| state.users.set(id).above(None));
        let before = before.map(|channel| state.channels.name(channel));
        let stays =
            before.filter(|name| plan.remove.binary_search_by(|gone| (**gone).cmp(name)).is_err());
        let all = stays.chain(plan.add.iter().map(|name| &**name));
        // Of a user without channels the last entry, which removed them, is not known.
        let replaces = id.map_or(last, |id| state.revision(id));
        let entry = entry(user, all, replaces);
        Ok((plan, entry))
    }

    /// Makes what the table has of a user, in the entry at this place.
    pub fn take(&self, user: &str, channels: &[String], sequence: u64) -> KeptTaken {
        let kept = &self.kept;
        let _order = kept.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let KeptPlan { add, remove, .. } = kept.read().difference(user, channels);
        kept.apply(user, &add, &remove);
        // Last: a plan on a part of it replaces an entry that is not the last one any more.
        let mut state = kept.write();
        if let Some(id) = state.users.find(user) {
            state.set_revision(id, sequence);
        }
        drop(state);
        let names = |names: &[Box<str>]| -> Vec<ChannelName> {
            names.iter().map(|name| ChannelName::channel(name)).collect()
        };
        KeptTaken { inbox: ChannelName::user(user), added: names(&add), removed: names(&remove) }
    }

    /// The table is another one, or lost entries: places from before mean nothing any more.
    pub fn forget_places(&self) {
        self.kept.write().revisions.clear();
    }

    /// The users that are kept and for whom `is_seen` is false, each with the entry that makes a
    /// table have what is kept of them, if it has nothing.
    pub fn unseen(&self, is_seen: impl Fn(&str) -> bool) -> Vec<(String, KeptEntry)> {
        let mut unseen = Vec::new();
        self.kept.each_user(|user, channels| {
            if !is_seen(user) {
                unseen.push((user.to_owned(), entry(user, channels, 0)));
            }
        });
        unseen
    }
}

impl KeptSubscriptions {
    /// Adds and removes channels of a user. The caller holds the order of changes.
    pub(super) fn apply(&self, user: &str, add: &[Box<str>], remove: &[Box<str>]) {
        for part in add.chunks(CHANGED_PER_LOCK) {
            let added = self.write().add(user, part.iter().map(|name| &**name));
            debug_assert_eq!(added, part.len(), "the plan names new channels only");
        }
        self.count.fetch_add(add.len(), Ordering::Relaxed);
        for part in remove.chunks(CHANGED_PER_LOCK) {
            self.write().remove(user, part);
        }
        self.count.fetch_sub(remove.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;

    /// The table, and what each server has taken of it.
    #[derive(Default)]
    struct Table {
        /// User and value by sequence.
        entries: Vec<(String, Option<Vec<u8>>)>,
        taken: [usize; 2],
    }

    impl Table {
        fn last(&self, key: &str) -> u64 {
            let at = self.entries.iter().rposition(|(of, _)| of == key);
            at.map_or(0, |at| at as u64 + 1)
        }

        fn write(&mut self, entry: KeptEntry) -> KeptWritten {
            let last = self.last(&entry.key);
            if last != entry.replaces {
                return KeptWritten::Conflict { last };
            }
            self.entries.push((entry.key, entry.value));
            KeptWritten::Stored
        }

        /// Has a server take entries up to this one.
        fn take(&mut self, server: usize, shared: &SharedKept, up_to: usize) {
            while self.taken[server] < up_to.min(self.entries.len()) {
                let (key, value) = &self.entries[self.taken[server]];
                let (user, channels) = read_entry(key, value.as_deref()).expect("it is one");
                self.taken[server] += 1;
                shared.take(&user, &channels, self.taken[server] as u64);
            }
        }
    }

    fn server() -> SharedKept {
        let table = SharedKeptTable { write: Box::new(|_, _| ()), compare: Box::new(drop) };
        SharedKept::new(Arc::default(), table)
    }

    fn names(shared: &SharedKept, user: &str) -> BTreeSet<String> {
        let page = shared.kept().channels_page(user, None, usize::MAX);
        page.names.into_iter().map(String::from).collect()
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn entries_are_as_documented() {
        let shared = server();
        let add = KeptChange::Update { add: strings(&["b/1", "a"]), remove: Vec::new() };
        let (plan, first) = shared.plan("ann@x", &add, 7).expect("it is within the limits");
        let value = Some(br#"["a","b/1"]"#.to_vec());
        assert_eq!(first, KeptEntry { key: "ann=40x".into(), value, replaces: 7 });
        assert_eq!((plan.added(), names(&shared, "ann@x").len()), (2, 0), "it is only planned");
        let (user, channels) = read_entry(&first.key, first.value.as_deref()).expect("it is one");
        let taken = shared.take(&user, &channels, 9);
        assert_eq!((taken.added.len(), taken.removed.len()), (2, 0));
        let (_, second) = shared.plan("ann@x", &KeptChange::Replace(Vec::new()), 7).unwrap();
        let key = "ann=40x".into();
        assert_eq!(second, KeptEntry { key, value: None, replaces: 9 }, "of the entry taken");
        assert_eq!(
            shared.unseen(|_| false),
            [("ann@x".to_owned(), KeptEntry { replaces: 0, ..first })]
        );
        let taken = shared.take(&user, &[], 10);
        assert_eq!((taken.added.len(), taken.removed.len()), (0, 2));
        assert!(shared.kept().is_empty() && shared.unseen(|_| false).is_empty());
        for (key, value) in [("", "[]"), ("a=2F", "[]"), ("a", "{}"), ("a", r#"["a//b"]"#)] {
            assert_eq!(read_entry(key, Some(value.as_bytes())), None, "{key} {value}");
        }
    }

    proptest! {
        /// Two servers that know of each other's changes late change the same users: each change is
        /// made on what was there when it was stored, and both have the same in the end.
        #[test]
        fn no_change_overwrites_another_one(
            steps in prop::collection::vec(
                (0usize..2, 0u8..3, any::<bool>(), prop::collection::vec(0u8..6, 0..4), 0usize..3),
                1..60,
            ),
        ) {
            let servers = [server(), server()];
            let table = Mutex::new(Table::default());
            let mut expected = BTreeMap::<String, BTreeSet<String>>::new();
            for (at, user, replaces, channels, lag) in steps {
                let user = format!("u{user}");
                let all: Vec<_> = channels.iter().map(|channel| format!("c{channel}")).collect();
                let (add, remove) = all.split_at(all.len() / 2);
                let change = if replaces {
                    KeptChange::Replace(all.clone())
                } else {
                    KeptChange::Update { add: add.to_vec(), remove: remove.to_vec() }
                };
                let mut last = 0;
                loop {
                    let (_, entry) = servers[at].plan(&user, &change, last).expect("few channels");
                    let mut table = table.lock().expect("no test panics");
                    let written = table.write(entry);
                    let stored = table.entries.len();
                    table.take(at, &servers[at], stored);
                    table.take(1 - at, &servers[1 - at], stored.saturating_sub(lag));
                    match written {
                        KeptWritten::Stored => break,
                        KeptWritten::Conflict { last: other } => {
                            prop_assert!(other > 0);
                            last = other;
                        }
                    }
                }
                let known = expected.entry(user).or_default();
                if replaces {
                    known.clear();
                } else {
                    known.retain(|name| !remove.contains(name));
                }
                known.extend(if replaces { all.clone() } else { add.to_vec() });
            }
            let mut table = table.lock().expect("no test panics");
            let stored = table.entries.len();
            for (at, server) in servers.iter().enumerate() {
                table.take(at, server, stored);
                for (user, channels) in &expected {
                    prop_assert_eq!(&names(server, user), channels);
                }
            }
        }
    }
}
