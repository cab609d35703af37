//! The channels whose presence events somebody follows: what each subscriber is told at first, and
//! which channels have changed since the last event.
//!
//! If other processes serve some of the channels, too, each tells the others which of them have
//! changed in it, whether or not anybody watches them there.
//!
//! The engine marks a channel when its followers change, workers look up the state for a new
//! subscriber, and [`PresenceEvents`](crate::PresenceEvents) owns everything else. A channel that
//! nobody watches costs a look-up for each change, and only if its rule has presence events.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::name::{ChannelName, Kind, kind_of_key};

/// Changed channels that are noted for other processes, at most. If there are more, the others look
/// at all channels that they watch.
const UNTOLD_MAX: usize = 16_384;

/// The members of a channel as of the last presence event.
#[derive(Debug, PartialEq, Eq)]
pub struct PresenceState {
    /// When that was, in milliseconds since 1970. No two states of a channel have the same time.
    pub time_ms: u64,
    /// The event for a client that has just begun to follow: a JSON object on one line.
    pub json: Box<str>,
}

/// A channel whose presence events somebody follows, or did recently.
#[derive(Debug, Default)]
struct Watched {
    is_changed: bool,
    /// `None` until the first event.
    state: Option<Arc<PresenceState>>,
}

#[derive(Debug, Default)]
struct Channels {
    watched: HashMap<ChannelName, Watched>,
    /// Those of `watched` that have changed.
    changed: Vec<ChannelName>,
    /// What others are to be told; `None` if there are none.
    untold: Option<ChangedHere>,
}

/// The channels that have changed in this process since others were told.
#[derive(Debug, Default)]
pub(crate) struct ChangedHere {
    /// Their [keys](ChannelName::key).
    pub(crate) keys: HashSet<Box<str>>,
    /// True if not all of them are noted.
    pub(crate) has_more: bool,
}

impl ChangedHere {
    fn note(&mut self, key: &str) {
        if self.keys.contains(key) {
            return;
        }
        if self.keys.len() < UNTOLD_MAX {
            self.keys.insert(key.into());
        } else {
            self.has_more = true;
        }
    }
}

impl Channels {
    fn mark(&mut self, key: &str) -> bool {
        // The name is the key of the entry, so nothing is allocated for one that is not watched.
        let Some((name, _)) = self.watched.get_key_value(key) else { return false };
        let name = name.clone();
        if let Some(watched) = self.watched.get_mut(key)
            && !std::mem::replace(&mut watched.is_changed, true)
        {
            self.changed.push(name);
        }
        true
    }
}

/// The source of presence events. Its lock is taken under the engine's.
#[derive(Debug, Default)]
pub struct WatchedPresence {
    channels: Mutex<Channels>,
    /// True if there are changed channels, readable without the lock.
    has_changed: AtomicBool,
    events: AtomicU64,
}

impl WatchedPresence {
    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the followers of the channel with this [key](ChannelName::key) have changed, or
    /// their users.
    pub fn mark(&self, key: &str) {
        // Inboxes have no presence events.
        if kind_of_key(key) != Kind::Channel {
            return;
        }
        let mut channels = self.lock();
        if let Some(untold) = &mut channels.untold {
            untold.note(key);
        }
        if channels.mark(key) {
            self.has_changed.store(true, Ordering::Release);
        }
    }

    /// Notes that the followers of a channel have changed in another process, or their users.
    pub(crate) fn mark_elsewhere(&self, key: &str) {
        if self.lock().mark(key) {
            self.has_changed.store(true, Ordering::Release);
        }
    }

    /// Notes from now on what others are to be told.
    pub(crate) fn begin_telling(&self) {
        self.lock().untold.get_or_insert_default();
    }

    /// What others are to be told.
    pub(crate) fn take_untold(&self) -> ChangedHere {
        self.lock().untold.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns what a new subscriber of a channel's presence events is told. `None` if the first
    /// event is yet to come; then it will come. Call it after following the events.
    pub fn watch(&self, channel: &ChannelName) -> Option<Arc<PresenceState>> {
        let mut channels = self.lock();
        if let Some(watched) = channels.watched.get(channel) {
            return watched.state.clone();
        }
        channels.watched.insert(channel.clone(), Watched::default());
        channels.mark(channel.key());
        self.has_changed.store(true, Ordering::Release);
        None
    }

    /// The number of channels that are watched, or were recently.
    pub fn channels(&self) -> u64 {
        self.lock().watched.len() as u64
    }

    /// The number of presence events since the start.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Moves the names of the changed channels to the end of `into`.
    pub(crate) fn take_changed(&self, into: &mut Vec<ChannelName>) {
        if !self.has_changed.swap(false, Ordering::Acquire) {
            return;
        }
        let mut channels = self.lock();
        let changed = std::mem::take(&mut channels.changed);
        for name in changed {
            if let Some(watched) = channels.watched.get_mut(&name) {
                watched.is_changed = false;
                into.push(name);
            }
        }
    }

    /// Sets what new subscribers are told. Call it before the event is published: so whoever begins
    /// to follow in between misses nothing.
    pub(crate) fn set_state(&self, channel: &ChannelName, state: Arc<PresenceState>) {
        if let Some(watched) = self.lock().watched.get_mut(channel) {
            watched.state = Some(state);
        }
    }

    /// The first event for new subscribers of a channel's presence events.
    pub(crate) fn state(&self, channel: &ChannelName) -> Option<Arc<PresenceState>> {
        self.lock().watched.get(channel)?.state.clone()
    }

    /// Watches a channel that was watched in another process.
    pub(crate) fn resume(&self, channel: &ChannelName, state: Option<Arc<PresenceState>>) {
        let watched = Watched { is_changed: false, state };
        self.lock().watched.insert(channel.clone(), watched);
    }

    /// Counts on from the presence events of another process.
    pub(crate) fn resume_events(&self, events: u64) {
        self.events.store(events, Ordering::Relaxed);
    }

    pub(crate) fn count_event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets a channel, whose next subscriber begins to watch it anew.
    pub(crate) fn forget(&self, channel: &ChannelName) {
        self.lock().watched.remove(channel);
    }
}
