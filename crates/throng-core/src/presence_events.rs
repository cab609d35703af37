//! Presence events: who begins to follow a channel and who ceases to, told to those who ask.
//!
//! Subscribers that want them follow a second, internal log of the channel
//! ([`ChannelName::presence_events`]), which keeps nothing. [`PresenceEvents`] is its only
//! publisher. It keeps the users of each watched channel that has few connections, and looks at
//! them again, by a presence query, after the channel was [marked](crate::WatchedPresence::mark).
//! So an event is the difference between two looks, however many have come and gone in between:
//!
//! * A channel has at most two events a second, fewer if many follow them, so that all of them
//!   together are at most [`DELIVERIES_PER_S`] deliveries.
//! * A user counts as there until the last connection has been away for the grace. Connections are
//!   counted alike: a number that falls is told when it has not risen again within the grace.
//! * Beyond [`PresenceEventSettings::max_named`] connections, events have their number only, and
//!   nobody is looked for.
//! * In a channel that several processes serve, a look asks all of them. The others say when there
//!   is something new. While one of them does not answer, nobody leaves, and events are partial.
//!   Users who were on a process that is gone leave without a grace: it was silent for
//!   about as long.
//!
//! Another process goes on with all of that: `frozen` writes and reads it.
//!
//! It does no I/O: call [`PresenceEvents::step`] about ten times a second.

mod frozen;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use throng_wire::v1;

use crate::age_clock::SLACK_MS;
use crate::channels::Channels;
use crate::clock;
use crate::later::{Answer, Later, Ticket};
use crate::members::exchange::{Contact, GONE_MS};
use crate::memory::MemoryEngine;
use crate::message::Body;
use crate::name::ChannelName;
use crate::presence::{Presence, PresenceAsk};
use crate::publication::Publication;
use crate::watched_presence::PresenceState;
pub use frozen::PresenceThaw;

/// The shortest time between two events of a channel.
const INTERVAL_MS: u64 = 500;

/// The deliveries of one channel's events in a second, roughly: the more follow them, the fewer
/// there are.
const DELIVERIES_PER_S: u64 = 20_000;

/// For how long a channel is remembered after its last subscriber of events: a long-poll comes
/// back.
const IDLE_MS: u64 = 60_000;

/// Channels that nobody follows any more are not remembered while there are more than this: a
/// client can follow and leave any number.
const REMEMBERED_MAX: usize = 10_000;

/// How long not all processes have to answer until it is told, in milliseconds, and how often they
/// are asked again: one may only be late, or go on in another process.
const PARTIAL_MS: u64 = 1_000;

/// Channels that are looked at in one step, and queries under way. The others wait their turn.
const LOOKS_MAX: usize = 1024;

/// Channels that are looked at or forgotten in one step.
const PASSED_MAX: usize = 50_000;

/// The settings of presence events.
#[derive(Debug, Clone, Copy)]
pub struct PresenceEventSettings {
    /// For how long a user stays after the last connection has ended.
    pub grace_ms: u64,
    /// Connections of a channel up to which events name its users; at most
    /// [`v1::LIMIT_MAX`](throng_wire::v1::LIMIT_MAX).
    pub max_named: usize,
}

/// Answers to queries, by channel. `None` if there will be none.
type Found = Arc<Mutex<Vec<(ChannelName, Option<Presence>)>>>;

#[derive(Debug, Default)]
struct Channel {
    /// When to look at it; `None` while a query is under way.
    due_ms: Option<u64>,
    is_changed: bool,
    /// When the last look began.
    looked_ms: u64,
    /// When it may be looked at next, and with that, when the next event may come.
    next_ms: u64,
    /// When somebody followed its events, as far as is known.
    watched_ms: u64,
    /// The users that subscribers know of, each with the time since when the user has no
    /// connection; `None` while events name nobody.
    users: Option<BTreeMap<Arc<str>, Option<u64>>>,
    /// The number of connections that subscribers know of.
    connections: usize,
    /// Since when there are fewer, and the most that there were since.
    fewer: Option<(u64, usize)>,
    /// Since when looks have found a part only.
    partial_since_ms: Option<u64>,
    /// True if subscribers know that.
    is_partial: bool,
    /// Since when a process was silent that is gone now, if no look without it has been complete.
    silent_since_ms: Option<u64>,
    /// Changes not yet sent to subscribers.
    joined: BTreeSet<Arc<str>>,
    left: BTreeMap<Arc<str>, u64>,
    /// True if there is something to tell.
    is_untold: bool,
    /// The time of the last event, by the machine's clock.
    told_ms: u64,
}

/// The owner of what subscribers have been told.
#[derive(Debug)]
pub struct PresenceEvents {
    settings: PresenceEventSettings,
    channels: HashMap<ChannelName, Channel>,
    /// Channels in the order in which they are to be looked at.
    due: BTreeSet<(u64, ChannelName)>,
    found: Found,
    /// Queries under way.
    asked: usize,
    /// How well other processes were known in the last step.
    contact: Option<Contact>,
}

impl PresenceEvents {
    /// Events of no channel yet.
    pub fn new(settings: PresenceEventSettings) -> PresenceEvents {
        PresenceEvents {
            settings,
            channels: HashMap::new(),
            due: BTreeSet::new(),
            found: Found::default(),
            asked: 0,
            contact: None,
        }
    }

    /// Takes in what has changed, and publishes the events that are due.
    pub fn step(&mut self, now_ms: u64, channels: &Channels) {
        let engine = &**channels.memory();
        engine.tell_changed_presence(now_ms);
        let mut names = Vec::new();
        engine.presence_cache().watched.take_changed(&mut names);
        for name in names {
            let channel = self.channels.entry(name.clone()).or_insert_with(|| Channel {
                due_ms: Some(now_ms),
                watched_ms: now_ms,
                ..Channel::default()
            });
            channel.is_changed = true;
            let due_ms = channel.next_ms.max(now_ms);
            self.bring_forward(&name, due_ms);
        }
        self.follow_contact(now_ms, channels);
        let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, presence) in found {
            self.asked -= 1;
            self.conclude(now_ms, engine, &name, presence);
        }
        let mut looks = 0;
        for _ in 0..PASSED_MAX {
            let is_due = self.due.first().is_some_and(|(due_ms, _)| *due_ms <= now_ms);
            if !is_due || looks >= LOOKS_MAX || self.asked >= LOOKS_MAX {
                break;
            }
            let Some((_, name)) = self.due.pop_first() else { break };
            if self.forget_if_unused(now_ms, engine, &name) || self.rests(now_ms, &name) {
                continue;
            }
            looks += 1;
            self.look(now_ms, channels, &name);
        }
    }

    /// The number of channels that are watched, or were recently.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Looks at all channels that several processes serve, if others may have changed without
    /// telling.
    fn follow_contact(&mut self, now_ms: u64, channels: &Channels) {
        let contact = channels.memory().contact(now_ms);
        let before = std::mem::replace(&mut self.contact, contact);
        let Some(contact) = contact.filter(|_| before != contact) else { return };
        let is_one_gone = before.is_some_and(|before| before.gone < contact.gone);
        let mut marked = Vec::new();
        for (name, channel) in &mut self.channels {
            if channels.is_of_several(name) {
                channel.is_changed = true;
                if is_one_gone {
                    channel.silent_since_ms.get_or_insert(now_ms.saturating_sub(GONE_MS));
                }
                marked.push((name.clone(), channel.next_ms.max(now_ms)));
            }
        }
        for (name, due_ms) in marked {
            self.bring_forward(&name, due_ms);
        }
    }

    /// Looks at a channel not later than this, unless a query is under way.
    fn bring_forward(&mut self, name: &ChannelName, due_ms: u64) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        let Some(known_ms) = channel.due_ms else { return };
        if due_ms < known_ms {
            self.due.remove(&(known_ms, name.clone()));
        }
        let due_ms = due_ms.min(known_ms);
        channel.due_ms = Some(due_ms);
        self.due.insert((due_ms, name.clone()));
    }

    /// Forgets a channel whose events nobody follows, and says whether it has.
    fn forget_if_unused(&mut self, now_ms: u64, engine: &MemoryEngine, name: &ChannelName) -> bool {
        let are_many = self.channels.len() > REMEMBERED_MAX;
        let Some(channel) = self.channels.get_mut(name) else { return true };
        let log = ChannelName::presence_events(name.name());
        if engine.audience(&log).subscribers > 0 {
            channel.watched_ms = now_ms;
            return false;
        }
        if !are_many && now_ms.saturating_sub(channel.watched_ms) < IDLE_MS {
            return false;
        }
        self.channels.remove(name);
        let watched = &engine.presence_cache().watched;
        watched.forget(name);
        // Somebody may have followed it in between, and knows the state that is gone.
        if engine.audience(&log).subscribers > 0 {
            watched.watch(name);
        }
        true
    }

    /// Says whether there is nothing to look for in a channel, and when to come by again: so that
    /// many channels in which nothing happens do not delay the others.
    fn rests(&mut self, now_ms: u64, name: &ChannelName) -> bool {
        let Some(channel) = self.channels.get_mut(name) else { return true };
        let is_settled = !channel.is_changed && !channel.is_untold && channel.told_ms > 0;
        let is_whole = channel.partial_since_ms.is_none();
        if !is_settled || !is_whole || channel.grace_ends_ms(self.settings.grace_ms).is_some() {
            return false;
        }
        let again_ms = now_ms + IDLE_MS;
        channel.due_ms = Some(again_ms);
        self.due.insert((again_ms, name.clone()));
        true
    }

    /// Counts a channel's connections, and asks for its users if they are few.
    fn look(&mut self, now_ms: u64, channels: &Channels, name: &ChannelName) {
        let engine = &**channels.memory();
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.due_ms = None;
        channel.looked_ms = now_ms;
        channel.is_changed = false;
        let connections = engine.audience(name).subscribers;
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        let is_crowded = connections > self.settings.max_named;
        if is_crowded && !channels.is_of_several(name) {
            let presence = Presence { connections, is_cut: true, ..Presence::default() };
            return self.conclude(now_ms, engine, name, Some(presence));
        }
        let found = Arc::clone(&self.found);
        let mut issue = || {
            let (found, name) = (Arc::clone(&found), name.clone());
            Ticket::new(move |presence| {
                found.lock().unwrap_or_else(PoisonError::into_inner).push((name, presence));
            })
        };
        // Anew: an answer that is remembered for clients lacks the change.
        let max_users = if is_crowded { 0 } else { self.settings.max_named };
        let ask = PresenceAsk { max_users, is_anew: true };
        match channels.presence(now_ms, name, ask, Later::new(&mut issue)) {
            Ok(Answer::Now(presence)) => self.conclude(now_ms, engine, name, Some(presence)),
            Ok(Answer::Later(_)) => self.asked += 1,
            Err(_) => self.conclude(now_ms, engine, name, None),
        }
    }

    /// Takes in what a look has found, tells it, and says when to look again.
    fn conclude(
        &mut self,
        now_ms: u64,
        engine: &MemoryEngine,
        name: &ChannelName,
        presence: Option<Presence>,
    ) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        let watchers = engine.audience(&ChannelName::presence_events(name.name())).subscribers;
        let interval_ms = INTERVAL_MS.max(watchers.saturating_mul(1000) / DELIVERIES_PER_S);
        match presence {
            Some(mut presence) => {
                presence.is_cut |= presence.connections > self.settings.max_named;
                channel.take(now_ms, self.settings.grace_ms, presence);
            }
            None => channel.is_changed = true,
        }
        if channel.is_untold {
            channel.tell(now_ms, engine, name);
        }
        channel.next_ms = now_ms + interval_ms;
        let is_pending = channel.is_changed || channel.is_untold;
        let grace_ends_ms = channel.grace_ends_ms(self.settings.grace_ms);
        let again_ms = match (is_pending, grace_ends_ms) {
            (true, _) => channel.next_ms.max(now_ms + 1),
            (false, _) if channel.partial_since_ms.is_some() => {
                channel.next_ms.max(now_ms + PARTIAL_MS)
            }
            (false, Some(ends_ms)) => ends_ms.max(channel.next_ms),
            (false, None) => now_ms + IDLE_MS,
        };
        channel.due_ms = Some(again_ms);
        self.due.insert((again_ms, name.clone()));
    }
}

impl Channel {
    /// Compares what a look has found with what subscribers know.
    fn take(&mut self, now_ms: u64, grace_ms: u64, found: Presence) {
        let is_first = self.told_ms == 0;
        self.is_untold |= is_first;
        // From the end of the look that did not find a user to the beginning of this one, which may
        // have found it: that is the time for which the user was away for sure.
        let looked_ms = self.looked_ms;
        let silent_since_ms = self.silent_since_ms;
        let is_over = |since_ms: u64| {
            looked_ms.saturating_sub(since_ms) >= grace_ms
                || silent_since_ms.is_some_and(|silent_ms| since_ms >= silent_ms)
        };
        let is_partial = found.is_partial;
        self.take_partial(now_ms, is_partial, is_first);
        // A process that has not answered may have those that were not found.
        if !is_partial || found.connections > self.connections {
            self.count(found.connections, now_ms, is_over);
        }
        // Others may still have so many.
        let is_crowded = self.users.is_none() && is_partial && !is_first;
        if found.is_cut || is_crowded {
            self.is_untold |= self.users.take().is_some();
            self.joined.clear();
            self.left.clear();
            return;
        }
        let present: BTreeSet<Arc<str>> = found.users.into_iter().collect();
        let Some(users) = &mut self.users else {
            self.users = Some(present.into_iter().map(|user| (user, None)).collect());
            self.is_untold = true;
            return;
        };
        users.retain(|user, away_since_ms| {
            if present.contains(user) {
                *away_since_ms = None;
                return true;
            }
            if is_partial {
                return true;
            }
            let since_ms = *away_since_ms.get_or_insert(now_ms);
            if is_over(since_ms) {
                // If subscribers have not been told of the user, there is nothing to take back.
                if !self.joined.remove(user) {
                    self.left.insert(Arc::clone(user), since_ms);
                }
                self.is_untold = true;
                return false;
            }
            true
        });
        for user in present {
            if !users.contains_key(&user) {
                users.insert(Arc::clone(&user), None);
                if self.left.remove(&user).is_none() {
                    self.joined.insert(user);
                }
                self.is_untold = true;
            }
        }
    }

    /// Notes whether all processes have answered.
    fn take_partial(&mut self, now_ms: u64, is_partial: bool, is_first: bool) {
        let since_ms = *self.partial_since_ms.get_or_insert(now_ms);
        if !is_partial {
            (self.partial_since_ms, self.silent_since_ms) = (None, None);
        }
        let is_late = is_first || now_ms.saturating_sub(since_ms) >= PARTIAL_MS;
        let is_told = is_partial && (self.is_partial || is_late);
        self.is_untold |= std::mem::replace(&mut self.is_partial, is_told) != is_told;
    }

    fn count(&mut self, connections: usize, now_ms: u64, is_over: impl Fn(u64) -> bool) {
        if connections >= self.connections {
            self.is_untold |= connections > self.connections;
            self.connections = connections;
            self.fewer = None;
            return;
        }
        let (since_ms, most) = self.fewer.unwrap_or((now_ms, connections));
        let most = most.max(connections);
        if is_over(since_ms) {
            self.is_untold = true;
            self.connections = most;
            self.fewer = (connections < most).then_some((now_ms, connections));
        } else {
            self.fewer = Some((since_ms, most));
        }
    }

    /// When a grace ends next.
    fn grace_ends_ms(&self, grace_ms: u64) -> Option<u64> {
        let away = self.users.iter().flatten().filter_map(|(_, since_ms)| *since_ms);
        let fewer = self.fewer.map(|(since_ms, _)| since_ms);
        away.chain(fewer).min().map(|since_ms| since_ms + grace_ms)
    }

    /// Publishes an event. If the workers are too busy for it, what it tells waits for the next
    /// one.
    fn tell(&mut self, now_ms: u64, engine: &MemoryEngine, name: &ChannelName) {
        // A client says by its time which state it knows.
        let wall_ms = clock::wall_ms(now_ms);
        let is_set_back = self.told_ms > wall_ms.saturating_add(SLACK_MS);
        let time_ms = if is_set_back { wall_ms } else { wall_ms.max(self.told_ms + 1) };
        let named = self.users.as_ref();
        let users: Option<Vec<&str>> =
            named.map(|users| users.keys().map(|user| &**user).collect());
        let fields = v1::PresenceEvent {
            channel: name.name(),
            time_ms,
            connections: self.connections,
            users: users.as_deref(),
            is_partial: self.is_partial,
        };
        let mut state = Vec::new();
        v1::presence_state(&mut state, fields);
        let mut event = Vec::new();
        let left = self.left.iter().map(|(user, at_ms)| (user, clock::wall_ms(*at_ms)));
        v1::presence_event(&mut event, fields, self.joined.iter(), left);
        let (Ok(state), Ok(event)) = (String::from_utf8(state), String::from_utf8(event)) else {
            return debug_assert!(false, "names are UTF-8");
        };
        let watched = &engine.presence_cache().watched;
        watched.set_state(name, Arc::new(PresenceState { time_ms, json: state.into() }));
        self.told_ms = time_ms;
        let publication =
            Publication::new(ChannelName::presence_events(name.name()), Body::Json(event.into()));
        if engine.publish_internal(now_ms, publication).is_ok() {
            watched.count_event();
            self.joined.clear();
            self.left.clear();
            self.is_untold = false;
        }
    }
}
