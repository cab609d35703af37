//! Watchlists: users are told whether others whom they watch are online.
//!
//! A user is *online* while somebody follows the user's inbox, in any process, and for a grace
//! after that: a page that is loaded again is no departure. Whoever watches a user follows an
//! [internal log](crate::ChannelName::online), which keeps nothing. [`Watchlists`] knows what was
//! told of each user whom somebody here watches, and says when to look again: when the inbox gets
//! its first follower or loses its last one.
//!
//! Each process tells those who are connected to it. A user whom nobody watches costs a look into
//! the table. Another process goes on with what was told.
//!
//! Invariant: what is told is noted before it is published. So who follows the log and then looks
//! misses nothing, and the last word is the right one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::events::{Event, EventSink};
use crate::name::Kind;

/// For how long a user stays online whose inbox nobody follows, in milliseconds.
const GRACE_MS: u64 = 3_000;

/// When a process that has taken over looks at all that were told, in milliseconds: it knows the
/// users of all others by then.
const TAKEN_OVER_MS: u64 = 12_500;

/// After this time is told what the queues had no room for, in milliseconds.
const AGAIN_MS: u64 = 100;

/// Users of whom is found out at a time whether somebody still watches them.
const PASSED_MAX: usize = 64;

#[derive(Debug, Default)]
struct Watched {
    /// What was told last.
    is_online: bool,
    /// When to look again.
    due_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// By the names of users.
    watched: BTreeMap<Arc<str>, Watched>,
    due: BTreeSet<(u64, Arc<str>)>,
    /// The last one of whom was found out whether somebody watches it.
    passed: Option<Arc<str>>,
}

impl State {
    /// Looks at a user at a time, and not when it was due.
    fn plan(&mut self, due_ms: u64, user: &str) {
        let Some((name, _)) = self.watched.get_key_value(user) else { return };
        let name = Arc::clone(name);
        if let Some(watched) = self.watched.get_mut(user)
            && let Some(before_ms) = watched.due_ms.replace(due_ms)
        {
            self.due.remove(&(before_ms, Arc::clone(&name)));
        }
        self.due.insert((due_ms, name));
    }

    /// Notes what is told of a user from now on. Returns whether that is news.
    fn tell(&mut self, user: &str, is_online: bool) -> bool {
        let watched = self.watched.get_mut(user);
        watched.is_some_and(|it| std::mem::replace(&mut it.is_online, is_online) != is_online)
    }
}

/// See the module. Stands before the sink of events that mean all processes.
#[derive(Debug)]
pub struct Watchlists {
    /// The beginnings of the names of users who may watch each other.
    prefixes: Vec<String>,
    next: Option<Arc<dyn EventSink>>,
    state: Mutex<State>,
}

impl Watchlists {
    /// For users whose names begin with one of these, each one segment and a slash. `next` gets all
    /// events, too.
    pub fn new(prefixes: Vec<String>, next: Option<Arc<dyn EventSink>>) -> Watchlists {
        Watchlists { prefixes, next, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if users may watch those whose names begin with this.
    pub fn have(&self, prefix: &str) -> bool {
        self.prefixes.iter().any(|known| known == prefix)
    }

    fn may_watch(&self, user: &str) -> bool {
        user.split_once('/').is_some_and(|(app, _)| self.have(&user[..=app.len()]))
    }

    /// Goes on with what another process has told.
    pub(crate) fn resume(&self, now_ms: u64, told: Vec<(Box<str>, bool)>) {
        let mut state = self.lock();
        for (user, is_online) in told.into_iter().filter(|(user, _)| self.may_watch(user)) {
            state.watched.insert((&*user).into(), Watched { is_online, due_ms: None });
            state.plan(now_ms + TAKEN_OVER_MS, &user);
        }
    }

    /// Calls `each` with every user who is watched, and whether others were told that the user is
    /// online.
    pub(crate) fn each<E>(
        &self,
        mut each: impl FnMut(&str, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        self.lock().watched.iter().try_for_each(|(user, it)| each(user, it.is_online))
    }

    /// Whether it was told that a user is online; `None` if nobody watches the user.
    pub(crate) fn told(&self, user: &str) -> Option<bool> {
        self.lock().watched.get(user).map(|watched| watched.is_online)
    }

    /// Somebody watches a user who was online just now, or not. Returns what was told. Call it
    /// behind a subscription to the [log](crate::ChannelName::online) of that.
    pub(crate) fn begin(&self, now_ms: u64, user: &str, is_online: bool) -> bool {
        let mut state = self.lock();
        if let Some(watched) = state.watched.get(user) {
            return watched.is_online;
        }
        state.watched.insert(user.into(), Watched { is_online, due_ms: None });
        // It may have changed since.
        state.plan(now_ms, user);
        is_online
    }

    /// The next user to look at.
    pub(crate) fn take_due(&self, now_ms: u64) -> Option<Arc<str>> {
        let mut state = self.lock();
        state.due.first().filter(|(due_ms, _)| *due_ms <= now_ms)?;
        let (_, user) = state.due.pop_first()?;
        if let Some(watched) = state.watched.get_mut(&user) {
            watched.due_ms = None;
        }
        Some(user)
    }

    /// Notes what is told of a user from now on. Returns whether that is news.
    pub(crate) fn tell(&self, user: &str, is_online: bool) -> bool {
        self.lock().tell(user, is_online)
    }

    /// It could not be told.
    pub(crate) fn tell_again(&self, now_ms: u64, user: &str, was_online: bool) {
        let mut state = self.lock();
        state.tell(user, was_online);
        state.plan(now_ms + AGAIN_MS, user);
    }

    /// The next users of whom is to be found out whether somebody still watches them.
    pub(crate) fn next_passed(&self) -> Vec<Arc<str>> {
        let mut state = self.lock();
        let from = state.passed.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = state.watched.range::<Arc<str>, _>((from, Bound::Unbounded));
        let next: Vec<_> = next.take(PASSED_MAX).map(|(user, _)| Arc::clone(user)).collect();
        state.passed = next.last().cloned();
        next
    }

    /// Nobody watches a user any more. Returns what was told.
    pub(crate) fn forget(&self, user: &str) -> Option<bool> {
        let mut state = self.lock();
        let (name, Watched { is_online, due_ms }) = state.watched.remove_entry(user)?;
        if let Some(due_ms) = due_ms {
            state.due.remove(&(due_ms, name));
        }
        Some(is_online)
    }
}

impl EventSink for Watchlists {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        let (inbox, due_ms) = match event {
            Event::Occupied(inbox) => (Some(inbox), now_ms),
            Event::Vacated(inbox) => (Some(inbox), now_ms + GRACE_MS),
            _ => (None, now_ms),
        };
        if let Some(inbox) = inbox.filter(|inbox| inbox.kind() == Kind::User)
            && self.may_watch(inbox.name())
        {
            self.lock().plan(due_ms, inbox.name());
        }
        if let Some(next) = &self.next {
            next.notify(now_ms, event);
        }
    }

    fn next(&self) -> Option<&dyn EventSink> {
        self.next.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ChannelName;

    #[test]
    fn a_user_is_looked_at_once_and_a_departure_after_the_grace() {
        let watchlists = Watchlists::new(vec!["shop/".to_owned()], None);
        let inbox = ChannelName::user("shop/ann");
        let due = |now_ms| watchlists.take_due(now_ms).map(|user| user.to_string());
        watchlists.notify(0, Event::Occupied(&inbox));
        assert_eq!(due(u64::MAX), None, "nobody watches");
        assert!(!watchlists.begin(0, "shop/ann", false) && !watchlists.begin(0, "shop/ann", true));
        assert_eq!((due(0).as_deref(), due(0)), (Some("shop/ann"), None));
        watchlists.notify(10, Event::Vacated(&inbox));
        assert_eq!(due(9 + GRACE_MS), None);
        watchlists.notify(20, Event::Occupied(&inbox));
        watchlists.notify(30, Event::Vacated(&inbox));
        assert_eq!(due(29 + GRACE_MS), None);
        assert_eq!(due(30 + GRACE_MS).as_deref(), Some("shop/ann"));
        assert!(watchlists.tell("shop/ann", true) && !watchlists.tell("shop/ann", true));
        watchlists.notify(40, Event::Vacated(&inbox));
        assert_eq!(
            (watchlists.forget("shop/ann"), watchlists.told("shop/ann")),
            (Some(true), None)
        );
        assert_eq!(due(u64::MAX), None);
    }

    #[test]
    fn users_of_others_and_channels_are_not_looked_at() {
        let watchlists = Watchlists::new(vec!["shop/".to_owned()], None);
        let names = ["shop", "shops/ann", "ann", "shop/"];
        for name in names {
            assert_eq!(watchlists.may_watch(name), name == "shop/", "{name}");
        }
        watchlists.begin(0, "shop/ann", false);
        while watchlists.take_due(0).is_some() {}
        watchlists.notify(0, Event::Occupied(&ChannelName::channel("shop/ann")));
        assert_eq!(watchlists.take_due(u64::MAX), None);
    }

    #[test]
    fn all_are_passed_in_turn() {
        let watchlists = Watchlists::new(vec!["a/".to_owned()], None);
        for nth in 0..PASSED_MAX + 5 {
            watchlists.begin(0, &format!("a/{nth:04}"), false);
        }
        let counts = [(); 3].map(|()| watchlists.next_passed().len());
        assert_eq!(counts, [PASSED_MAX, 5, 0]);
        assert_eq!(watchlists.next_passed().len(), PASSED_MAX);
    }
}
