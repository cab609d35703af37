//! Subscriptions that the server keeps: which channels each user follows, on every
//! connection.
//!
//! The application sets them once, and every connection of the user follows them. They are grants:
//! a user may follow a kept channel without a token that names it.
//!
//! # Invariants
//!
//! * A user has a channel exactly if the channel has the user as a follower.
//! * Users without channels and channels without followers are forgotten.
//! * A user's channels are looked up and changed once they are read from the store: see `unread`.
//! * Changes of a user are announced in the order in which they were made, and after they were
//!   made. So a reader that listens for announcements before it reads the channels of a user misses
//!   no change.

mod id_set;
mod names;
mod sequence;
mod shared;
mod source;
mod stored;
mod unread;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use throng_core::ChannelName;
use throng_wire::{ErrorCode, ErrorResponse};

use arc_swap::ArcSwapOption;
use names::NamedSets;
pub use shared::{KeptEntry, KeptTaken, KeptWritten, SharedKept, SharedKeptTable, read_entry};
pub use source::KeptRead;
use source::{Source, Unread};
pub use stored::parse_stored;
pub use unread::KeptProgress;

/// How many channels a change adds or removes before it lets readers look: workers read while
/// clients connect, and wait for the lock.
const CHANGED_PER_LOCK: usize = 256;

/// Limits of kept subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptLimits {
    /// Channels of one user.
    pub(crate) max_per_user: usize,
    /// Channels of all users together.
    pub(crate) max_in_all: usize,
}

impl Default for KeptLimits {
    fn default() -> KeptLimits {
        KeptLimits { max_per_user: 10_000, max_in_all: 50_000_000 }
    }
}

/// A change of what a user follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptChange {
    /// The user follows exactly these channels.
    Replace(Vec<String>),
    /// The user follows the first ones, too, and no longer the second ones.
    Update {
        /// Channels to follow from now on.
        add: Vec<String>,
        /// Channels to follow no more.
        remove: Vec<String>,
    },
}

/// The effect of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeptChanged {
    /// Channels that the user did not follow before.
    pub added: usize,
    /// Channels that the user followed before.
    pub removed: usize,
    /// Channels that the user follows now.
    pub channels: usize,
}

/// Why a change was refused. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeptError {
    /// The user would follow more than [`KeptLimits::max_per_user`] channels.
    #[error("the user would follow {0} channels; the maximum is {1}")]
    TooManyOfUser(usize, usize),
    /// All users together would follow more than [`KeptLimits::max_in_all`] channels.
    #[error("the server would keep {0} subscriptions; the maximum is {1}")]
    TooManyInAll(usize, usize),
}

impl From<KeptError> for ErrorResponse {
    fn from(error: KeptError) -> ErrorResponse {
        let code = match error {
            KeptError::TooManyOfUser(..) => ErrorCode::TooManyChannels,
            KeptError::TooManyInAll(..) => ErrorCode::NotStored,
        };
        ErrorResponse::new(code, error.to_string())
    }
}

/// Names, and where the next ones begin; `None` at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPage<N = Box<str>> {
    /// The names, in an order of the server's own that does not change while they are kept.
    pub names: Vec<N>,
    /// The argument for the next page.
    pub next: Option<u32>,
    /// How many names there are on all pages.
    pub count: usize,
}

impl<N> Default for KeptPage<N> {
    fn default() -> KeptPage<N> {
        KeptPage { names: Vec::new(), next: None, count: 0 }
    }
}

/// Totals of kept subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptCounts {
    /// Users that follow at least one channel.
    pub users: usize,
    /// Channels that at least one user follows.
    pub channels: usize,
    /// Pairs of a user and a channel.
    pub subscriptions: usize,
}

#[derive(Debug, Default)]
struct State {
    users: NamedSets,
    channels: NamedSets,
    /// Of several servers, the place in their table of the last entry of each user, by id. Empty
    /// for a server that is alone.
    revisions: Vec<u64>,
    /// The users whose entries are in the store alone; `None` if there are none.
    unread: Option<Unread>,
}

/// The subscriptions that the server keeps, for both planes.
#[derive(Debug, Default)]
pub struct KeptSubscriptions {
    limits: KeptLimits,
    state: RwLock<State>,
    /// Held from the check of a change until it is announced.
    changes: Mutex<()>,
    /// Pairs of a user and a channel, readable without a lock.
    count: AtomicUsize,
    /// The store of entries that are not read yet; `None` once all are.
    source: ArcSwapOption<Source>,
}

impl KeptSubscriptions {
    /// No subscriptions, and room for these. For tests: all servers have the same limits.
    #[cfg(test)]
    fn new(limits: KeptLimits) -> KeptSubscriptions {
        KeptSubscriptions { limits, ..KeptSubscriptions::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, to look at a user.
    fn of(&self, user: &str) -> RwLockReadGuard<'_, State> {
        let state = self.read();
        debug_assert!(state.is_read(user), "the user is read first");
        state
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nothing is kept, as far as is read. Costs nothing.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The number of channels that a user follows.
    pub fn channels_of(&self, user: &str) -> usize {
        if self.is_empty() {
            return 0;
        }
        let state = self.of(user);
        state.users.find(user).map_or(0, |id| state.users.set(id).len())
    }

    /// True if a user follows a channel.
    pub fn has(&self, user: &str, channel: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        self.of(user).has(user, channel)
    }

    /// A page of the channels that a user follows: at most `limit` after the page that had `after`
    /// as its [`KeptPage::next`].
    pub fn channels_page(&self, user: &str, after: Option<u32>, limit: usize) -> KeptPage {
        if self.is_empty() {
            return KeptPage::default();
        }
        let state = self.of(user);
        page(&state.users, &state.channels, user, (after, limit), |name| name.into())
    }

    /// The same page as the names that engines have for channels.
    pub fn channel_names_page(
        &self,
        user: &str,
        after: Option<u32>,
        limit: usize,
    ) -> KeptPage<ChannelName> {
        if self.is_empty() {
            return KeptPage::default();
        }
        let State { users, channels, .. } = &*self.of(user);
        page(users, channels, user, (after, limit), ChannelName::channel)
    }

    /// As [`KeptSubscriptions::channels_page`], of those channels only that `is_shown` names, which
    /// it is asked about all of them.
    pub fn shown_channels_page(
        &self,
        user: &str,
        after: Option<u32>,
        limit: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> KeptPage {
        let state = self.of(user);
        let Some(id) = state.users.find(user) else { return KeptPage::default() };
        let set = state.users.set(id);
        let name = |id: u32| state.channels.name(id);
        let count = set.above(None).filter(|&id| is_shown(name(id))).count();
        let ids = set.above(after).filter(|&id| is_shown(name(id)));
        fill(KeptPage { count, ..KeptPage::default() }, ids, limit, |id| name(id).into())
    }

    /// A page of the users that follow a channel, as [`KeptSubscriptions::channels_page`]. Unless
    /// [all are read](KeptSubscriptions::is_whole), there may be more.
    pub fn followers_page(&self, channel: &str, after: Option<u32>, limit: usize) -> KeptPage {
        let state = self.read();
        page(&state.channels, &state.users, channel, (after, limit), |name| name.into())
    }

    /// Totals of kept subscriptions, as far as they are [read](KeptSubscriptions::progress).
    pub fn counts(&self) -> KeptCounts {
        let state = self.read();
        KeptCounts {
            users: state.users.len(),
            channels: state.channels.len(),
            subscriptions: self.count.load(Ordering::Relaxed),
        }
    }

    /// Passes all users that follow channels, each with these. Changes wait meanwhile. All must be
    /// [read](KeptSubscriptions::is_whole).
    pub fn each_user(&self, mut each: impl FnMut(&str, &mut dyn Iterator<Item = &str>)) {
        debug_assert!(self.is_whole(), "users would be left out");
        let _order = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.read();
        for (name, set) in state.users.iter() {
            each(name, &mut set.above(None).map(|id| state.channels.name(id)));
        }
    }

    /// Makes a change that was planned, and calls `announce` with all channels that it is about,
    /// before any other change is made: also with those that the user followed before, which an
    /// earlier announcement may not have reached yet.
    ///
    /// Nothing else may change what the user follows in between.
    pub fn make<T>(
        &self,
        user: &str,
        change: &KeptChange,
        KeptPlan { add, remove, channels }: KeptPlan,
        announce: impl FnOnce(Vec<ChannelName>) -> T,
    ) -> (KeptChanged, T) {
        let _order = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.apply(user, &add, &remove);
        let changed = KeptChanged { added: add.len(), removed: remove.len(), channels };
        let (wanted, unwanted): (&[String], &[String]) = match change {
            KeptChange::Replace(channels) => (channels, &[]),
            KeptChange::Update { add, remove } => (add, remove),
        };
        let named = wanted.iter().chain(unwanted).map(String::as_str);
        let mut names: Vec<&str> = named.chain(remove.iter().map(|name| &**name)).collect();
        names.sort_unstable();
        names.dedup();
        let names = names.into_iter().map(ChannelName::channel).collect();
        (changed, announce(names))
    }

    /// The additions and removals of a change, if it is within the limits. Makes no change.
    /// `waiting` subscriptions are to be added by plans that are not made yet. The limit of all
    /// users together is about those that are read: nothing is refused that might be allowed.
    ///
    /// # Errors
    ///
    /// The limit that it would exceed.
    pub fn plan(
        &self,
        user: &str,
        change: &KeptChange,
        waiting: usize,
    ) -> Result<KeptPlan, KeptError> {
        self.plan_in(&self.read(), user, change, waiting)
    }

    fn plan_in(
        &self,
        state: &State,
        user: &str,
        change: &KeptChange,
        waiting: usize,
    ) -> Result<KeptPlan, KeptError> {
        let plan = state.plan(user, change);
        let in_all = self.count.load(Ordering::Relaxed) + waiting;
        let (added, removed) = (plan.add.len(), plan.remove.len());
        self.limits.check(plan.channels + removed - added, in_all, (added, removed))?;
        Ok(plan)
    }
}

/// The effect of a change, before it is made.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptPlan {
    /// Channels that the user does not follow yet. No two are equal.
    add: Vec<Box<str>>,
    /// Channels that the user follows. No two are equal.
    remove: Vec<Box<str>>,
    /// How many the user follows then.
    channels: usize,
}

impl KeptPlan {
    /// Channels that the user begins to follow.
    pub fn added_channels(&self) -> impl Iterator<Item = ChannelName> {
        self.add.iter().map(|name| ChannelName::channel(name))
    }

    /// Channels that the user begins or ceases to follow.
    pub fn named_channels(&self) -> impl Iterator<Item = ChannelName> {
        self.added_channels().chain(self.remove.iter().map(|name| ChannelName::channel(name)))
    }

    /// The effect of the change.
    pub fn changed(&self) -> KeptChanged {
        let (added, removed) = (self.add.len(), self.remove.len());
        KeptChanged { added, removed, channels: self.channels }
    }
}

impl State {
    /// True if a user's channels are here, and not in the store alone.
    fn is_read(&self, user: &str) -> bool {
        self.unread.as_ref().is_none_or(|unread| unread.is_read(user))
    }

    /// The additions and removals of a change, without regard to limits.
    fn plan(&self, user: &str, change: &KeptChange) -> KeptPlan {
        debug_assert!(self.is_read(user), "the user is read first");
        match change {
            KeptChange::Replace(channels) => self.difference(user, channels),
            KeptChange::Update { add, remove } => self.update(user, add, remove),
        }
    }

    /// The additions and removals after which a user follows exactly these channels.
    fn difference(&self, user: &str, channels: &[String]) -> KeptPlan {
        let wanted: std::collections::HashSet<&str> = channels.iter().map(String::as_str).collect();
        let known = self.users.find(user).into_iter();
        let known = known.flat_map(|id| self.users.set(id).above(None));
        let names = known.map(|channel| self.channels.name(channel));
        let remove = names.filter(|name| !wanted.contains(name)).map(Into::into).collect();
        self.plan_of(user, channels, remove)
    }

    fn update(&self, user: &str, add: &[String], remove: &[String]) -> KeptPlan {
        let wanted: std::collections::HashSet<&str> = add.iter().map(String::as_str).collect();
        let is_removed =
            |name: &&String| !wanted.contains(name.as_str()) && self.has(user, name.as_str());
        let known = remove.iter().filter(is_removed);
        self.plan_of(user, add, known.map(|name| name.as_str().into()).collect())
    }

    fn plan_of(&self, user: &str, add: &[String], mut remove: Vec<Box<str>>) -> KeptPlan {
        let id = self.users.find(user);
        let is_new = |name: &&String| {
            let pair = id.zip(self.channels.find(name));
            !pair.is_some_and(|(user, channel)| self.users.set(user).contains(channel))
        };
        let mut add: Vec<Box<str>> =
            add.iter().filter(is_new).map(|name| name.as_str().into()).collect();
        for list in [&mut add, &mut remove] {
            list.sort_unstable();
            list.dedup();
        }
        let before = id.map_or(0, |id| self.users.set(id).len());
        let channels = before + add.len() - remove.len();
        KeptPlan { add, remove, channels }
    }

    /// The place of a user's last entry in the table of several servers; 0 if it is not known. That
    /// of a user who has begun to follow channels may be another user's, until it is set.
    fn revision(&self, user: u32) -> u64 {
        self.revisions.get(user as usize).copied().unwrap_or(0)
    }

    fn set_revision(&mut self, user: u32, sequence: u64) {
        let place = user as usize;
        if place >= self.revisions.len() {
            self.revisions.resize(place + 1, 0);
        }
        self.revisions[place] = sequence;
    }
}

impl State {
    fn has(&self, user: &str, channel: &str) -> bool {
        let pair = self.users.find(user).zip(self.channels.find(channel));
        pair.is_some_and(|(user, channel)| self.users.set(user).contains(channel))
    }

    /// Adds channels of a user, at least one. Returns how many are new.
    fn add<'c>(&mut self, user: &str, channels: impl IntoIterator<Item = &'c str>) -> usize {
        let user = self.users.find_or_add(user);
        let mut added = 0;
        for name in channels {
            let channel = self.channels.find_or_add(name);
            let is_new = self.users.set_mut(user).insert(channel);
            let is_follower = self.channels.set_mut(channel).insert(user);
            debug_assert_eq!(is_new, is_follower, "a pair is in both");
            added += usize::from(is_new);
        }
        added
    }

    fn remove(&mut self, user: &str, channels: &[Box<str>]) {
        let Some(user) = self.users.find(user) else { return };
        for name in channels {
            let Some(channel) = self.channels.find(name) else { continue };
            self.users.set_mut(user).remove(channel);
            self.channels.set_mut(channel).remove(user);
            self.channels.forget_if_empty(channel);
        }
        self.users.forget_if_empty(user);
    }
}

fn page<N>(
    of: &NamedSets,
    names: &NamedSets,
    name: &str,
    (after, limit): (Option<u32>, usize),
    named: impl Fn(&str) -> N,
) -> KeptPage<N> {
    let Some(id) = of.find(name) else { return KeptPage::default() };
    let set = of.set(id);
    let page = KeptPage { count: set.len(), ..KeptPage::default() };
    fill(page, set.above(after), limit, |id| named(names.name(id)))
}

/// Fills a page with the first of these.
fn fill<N>(
    mut page: KeptPage<N>,
    ids: impl Iterator<Item = u32>,
    limit: usize,
    name: impl Fn(u32) -> N,
) -> KeptPage<N> {
    let (mut ids, mut last) = (ids.peekable(), None);
    while page.names.len() < limit
        && let Some(id) = ids.next()
    {
        page.names.push(name(id));
        last = Some(id);
    }
    page.next = last.filter(|_| ids.peek().is_some());
    page
}

#[cfg(test)]
mod tests;
