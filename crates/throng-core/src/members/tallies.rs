//! How many follow the channels of applications, on all processes together.
//!
//! Each process tells the others how many subscriptions of its own a channel has, through the
//! [exchange](super::exchange) of members and as if the channels were members of one channel more
//! ([`name`]). So lost news, parts, leases and processes that are cut off are those of members. The
//! number stands in the place of a member's stamp.
//!
//! Stands before the sinks of events that mean all processes: these are told when the first
//! subscriber of all comes and the last one goes. One process *leads*: it alone tells applications.
//! It is the one with the smallest stamp. A process takes a stamp once it knows the numbers of all
//! others, and another one after it was cut off or halted. So the next one takes over from
//! whichever is gone, and none from one that is there.
//!
//! Invariants:
//!
//! * What is told is told under the lock of the state, so in the order of the changes.
//! * A process leads up to the time at which it has last heard another one: until it notices that
//!   it is cut off, it tells nothing that the others do not know.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::exchange::{Exchange, MemberChange, MemberPart, MemberValue, MemberWant, PeerId};
use super::parts::SharedChannel;
use super::tally::{Share, Tally};
use crate::clock;
use crate::events::{Event, EventSink};
use crate::name::{ChannelName, Kind, is_public_key};

/// No public name begins with a slash.
const NAME: &str = "/subscribers";

/// The key of the stamps of those that may lead. No channel has it.
const LEADERS: &str = "\u{3}leaders";

/// Channels at most. The names come from clients of all processes.
const CHANNELS_MAX: usize = if cfg!(test) { 1_000 } else { 4_000_000 };

/// How often a number is told that has changed and is not zero, in milliseconds.
const TELL_MS: u64 = 100;

/// How long after its connection a process may lead at the earliest, in milliseconds: it has heard
/// all others by then.
const SETTLE_MS: u64 = 2_500;

/// How long after it has taken over from another process one leads at the earliest, if there are
/// others, in milliseconds: until then it has members that may have left.
const TAKEN_OVER_MS: u64 = 12_500;

/// How often parts are asked for again that are not known, in milliseconds.
const AGAIN_MS: u64 = 2_000;

/// Until when what happened is known to others, before one of them was heard, in milliseconds.
const UNDER_WAY_MS: u64 = 100;

/// Keys that are looked at in one go, at most: a millisecond's work or so, for which workers may
/// have to wait.
const LOOKED_AT_MAX: usize = if cfg!(test) { 4 } else { 16_384 };

/// Bits of a stamp below the time.
const SEED_BITS: u32 = 20;

/// The name of the channel that stands for all channels.
pub(crate) fn name() -> ChannelName {
    ChannelName::channel(NAME)
}

/// True if a name is [`name`].
pub(crate) fn is_name(channel: &ChannelName) -> bool {
    channel.name() == NAME
}

/// The channels of an application that are counted over all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TallyWant {
    /// One segment and a slash, with which the names of its channels and users begin.
    pub prefix: String,
    /// True if the numbers are wanted, and not only whether there is a subscriber.
    pub counts: bool,
    /// True if the members of its channels are to be known to each process.
    pub members: bool,
}

#[derive(Debug, Default)]
struct State {
    parts: SharedChannel,
    /// By the engine's key of a channel.
    by_key: BTreeMap<Box<str>, Tally>,
    /// Numbers of this process that others are to be told.
    due: BTreeSet<Box<str>>,
    told_ms: u64,
    asked_ms: u64,
    /// Since when others can be reached.
    connected_ms: Option<u64>,
    /// Until when members are here that were those of another process.
    thawed_until_ms: u64,
    /// True if there is another process, or was one.
    has_others: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Tallies {
    wants: Vec<TallyWant>,
    /// Tells apart stamps that were taken at the same time.
    seed: u64,
    takes_counts: bool,
    /// Told of what happens in this process.
    here: Option<Arc<dyn EventSink>>,
    /// Told of what happens in all.
    everywhere: Arc<dyn EventSink>,
    exchange: OnceLock<Arc<Exchange>>,
    uncounted: AtomicU64,
    state: Mutex<State>,
}

impl Tallies {
    /// `here` is told of what happens in this process, `everywhere` of what happens in all. `seed`
    /// is another one in each process.
    pub fn new(
        wants: Vec<TallyWant>,
        seed: u64,
        here: Option<Arc<dyn EventSink>>,
        everywhere: Arc<dyn EventSink>,
    ) -> Tallies {
        let takes_counts = wants.iter().any(|want| want.counts);
        let (exchange, uncounted, state) = Default::default();
        Tallies { wants, seed, takes_counts, here, everywhere, exchange, uncounted, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted of a channel.
    fn want(&self, channel: &ChannelName) -> Option<&TallyWant> {
        let (first, own) = channel.name().split_once('/')?;
        let is_named = match channel.kind() {
            // The protocols of applications have no others.
            Kind::Channel => !own.contains('/'),
            Kind::User => true,
            Kind::Internal => false,
        };
        let is_its = |want: &&TallyWant| want.prefix.strip_suffix('/') == Some(first);
        self.wants.iter().find(is_its).filter(|_| is_named)
    }

    /// True if the members of a channel are to be known here although nobody here follows it.
    pub(crate) fn keeps_members(&self, channel: &ChannelName) -> bool {
        channel.kind() == Kind::Channel && self.want(channel).is_some_and(|want| want.members)
    }

    /// True if anybody follows a channel, on any process.
    pub(crate) fn is_followed(&self, channel: &ChannelName) -> bool {
        self.lock().by_key.contains_key(channel.key())
    }

    /// Whether anybody follows a channel, on any process; `None` if it is not counted.
    pub(crate) fn has_any(&self, channel: &ChannelName) -> Option<bool> {
        self.want(channel)?;
        Some(self.lock().by_key.get(channel.key()).is_some_and(|tally| tally.total() > 0))
    }

    /// Begins to tell others through `exchange`. These channels are followed here already, and
    /// members may be here, if it has taken over from another process.
    pub(crate) fn begin(
        &self,
        now_ms: u64,
        exchange: Arc<Exchange>,
        (followed, has_taken_over): (Vec<(ChannelName, u64)>, bool),
    ) {
        let mut state = self.lock();
        if has_taken_over {
            state.thawed_until_ms = now_ms + TAKEN_OVER_MS;
        }
        for (channel, count) in followed {
            let Some(want) = self.want(&channel) else { continue };
            let own = if want.counts { count } else { 1 };
            let tally = Tally { own, told: own, others: Vec::new() };
            state.by_key.insert(channel.key().into(), tally);
        }
        exchange.lock().want(name());
        let is_first = self.exchange.set(exchange).is_ok();
        debug_assert!(is_first);
    }

    /// Changes what is known of the others' parts.
    pub(crate) fn with_parts<T>(&self, change: impl FnOnce(&mut SharedChannel) -> T) -> T {
        change(&mut self.lock().parts)
    }

    /// Others can be reached from now on, or not any more, or not all that they have said was read.
    pub(crate) fn connected(&self, now_ms: u64, is_connected: bool) {
        let mut state = self.lock();
        state.connected_ms = is_connected.then_some(now_ms);
        self.set_stamp(&mut state, now_ms, 0);
        self.everywhere.notify(now_ms, Event::Leads(0));
    }

    /// This process may lead from now on; 0: not any more.
    fn set_stamp(&self, state: &mut State, now_ms: u64, stamp: u64) {
        let tally = state.by_key.entry(LEADERS.into()).or_default();
        if tally.own != stamp {
            (tally.own, tally.told) = (stamp, stamp);
            self.push(now_ms, LEADERS, stamp);
        }
    }

    fn push(&self, now_ms: u64, key: &str, count: u64) {
        let Some(exchange) = self.exchange.get() else { return };
        let value = (count > 0).then(|| MemberValue { stamp: count, object: "{}".into() });
        exchange.push(now_ms, MemberChange { channel: name(), key: key.into(), value });
    }

    /// A channel has so many subscriptions here.
    fn count(&self, now_ms: u64, channel: &ChannelName, count: u64) {
        let (mut state, key) = (self.lock(), channel.key());
        let State { by_key, due, .. } = &mut *state;
        if !by_key.contains_key(key) {
            if count == 0 {
                return;
            }
            by_key.insert(key.into(), Tally::default());
        }
        let Some(tally) = by_key.get_mut(key) else { return };
        let before = tally.total();
        tally.own = count;
        let after = tally.total();
        if (tally.told == 0) != (count == 0) {
            tally.told = count;
            self.push(now_ms, key, count);
        } else if tally.told != count {
            due.insert(key.into());
        }
        if tally.is_unused() {
            by_key.remove(key);
        }
        self.tell(now_ms, channel, before, after);
    }

    /// Tells what a change of a channel's number means.
    fn tell(&self, now_ms: u64, channel: &ChannelName, before: u64, after: u64) {
        let counts = self.want(channel).is_some_and(|want| want.counts);
        let tell = |event| self.everywhere.notify(now_ms, event);
        if before == 0 && after > 0 {
            tell(Event::Occupied(channel));
        }
        if counts && before != after {
            tell(Event::Counted(channel, after));
        }
        if before > 0 && after == 0 {
            tell(Event::Vacated(channel));
        }
    }

    /// Takes a change of another process's number. Returns the channel if its members are to be
    /// known here.
    pub(crate) fn take(
        &self,
        now_ms: u64,
        (peer, number): (PeerId, u64),
        key: &str,
        count: Option<u64>,
    ) -> Option<ChannelName> {
        let mut state = self.lock();
        if state.parts.has((peer, number)) {
            return None;
        }
        let count = count.unwrap_or_default();
        if count == 0 {
            state.parts.removes((peer, number), key);
        }
        self.set(&mut state, now_ms, (peer, number), key, count)
    }

    fn set(
        &self,
        state: &mut State,
        now_ms: u64,
        (peer, number): (PeerId, u64),
        key: &str,
        count: u64,
    ) -> Option<ChannelName> {
        let by_key = &mut state.by_key;
        if !by_key.contains_key(key) {
            if count == 0 || (key != LEADERS && !is_public_key(key)) {
                return None;
            }
            if by_key.len() >= CHANNELS_MAX {
                state.parts.lacks = true;
                self.uncounted.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            by_key.insert(key.into(), Tally::default());
        }
        let tally = by_key.get_mut(key)?;
        let before = tally.total();
        let is_news = tally.set(peer, number, count);
        let after = tally.total();
        if tally.is_unused() {
            by_key.remove(key);
        }
        if !is_news || key == LEADERS {
            return None;
        }
        let channel = ChannelName::from_key(key);
        self.tell(now_ms, &channel, before, after);
        (count > 0 && self.keeps_members(&channel)).then_some(channel)
    }

    /// Takes a part of another process, or a piece of one whose first piece is as of `begun`.
    /// Returns the channels whose members are to be known here; `None` if a newer part has begun.
    pub(crate) fn take_part(
        &self,
        now_ms: u64,
        (peer, begun): (PeerId, u64),
        part: &MemberPart,
    ) -> Option<Vec<ChannelName>> {
        let MemberPart { after, as_of, members, next, .. } = part;
        let mut state = self.lock();
        if !state.parts.begins((peer, begun)) {
            return None;
        }
        drop(state);
        let is_there =
            |key: &str| members.binary_search_by(|(other, _)| (**other).cmp(key)).is_ok();
        let range = (after.as_deref(), next.as_deref());
        self.drop_shares(now_ms, (peer, *as_of), range, |key| !is_there(key));
        let mut state = self.lock();
        if !state.parts.begins((peer, begun)) {
            return None;
        }
        let mut followed = Vec::new();
        for (key, value) in members {
            if !state.parts.is_removed((peer, *as_of), key) {
                followed.extend(self.set(&mut state, now_ms, (peer, *as_of), key, value.stamp));
            }
        }
        Some(followed)
    }

    /// A process does not have the channels any more behind `after` up to `up_to` that are `gone`,
    /// as of a number of its changes. Workers get their turn in between.
    fn drop_shares(
        &self,
        now_ms: u64,
        (peer, as_of): (PeerId, u64),
        (after, up_to): (Option<&str>, Option<&str>),
        is_gone: impl Fn(&str) -> bool,
    ) {
        let is_its = |share: &Share| share.peer == peer && share.number <= as_of;
        let mut after: Option<Box<str>> = after.map(Into::into);
        loop {
            let mut state = self.lock();
            let (mut looked_at, mut last, mut gone) = (0, None, Vec::new());
            let is_in = |key: &str| up_to.is_none_or(|up_to| key <= up_to);
            let range = behind(&state.by_key, after.as_deref());
            for (key, tally) in range.take_while(|(key, _)| is_in(key)).take(LOOKED_AT_MAX) {
                (looked_at, last) = (looked_at + 1, Some(key));
                if tally.others.iter().any(is_its) && is_gone(key) {
                    gone.push(key.clone());
                }
            }
            after = last.cloned();
            for key in gone {
                self.set(&mut state, now_ms, (peer, as_of), &key, 0);
            }
            if looked_at < LOOKED_AT_MAX {
                return;
            }
        }
    }

    /// The part of this process that another one wants.
    pub(crate) fn part(&self, want: MemberWant, room: usize) -> MemberPart {
        let MemberWant { channel, after } = want;
        let state = self.lock();
        // No change is made meanwhile.
        let as_of = self.exchange.get().map_or(0, |exchange| exchange.lock().number());
        let (mut members, mut next, mut bytes) = (Vec::new(), None, 0);
        let mut last: Option<&Box<str>> = None;
        for (at, (key, tally)) in behind(&state.by_key, after.as_deref()).enumerate() {
            if bytes >= room || at >= LOOKED_AT_MAX {
                next = last.cloned();
                break;
            }
            last = Some(key);
            if tally.told > 0 {
                bytes += key.len() + 64;
                members.push((key.clone(), MemberValue { stamp: tally.told, object: "{}".into() }));
            }
        }
        MemberPart { channel, after, as_of, members, next }
    }

    /// Another process is gone.
    pub(crate) fn lose(&self, now_ms: u64, peer: PeerId) {
        self.lock().parts.loses(peer);
        // Who leads comes last.
        self.drop_shares(now_ms, (peer, u64::MAX), (None, None), |_| true);
    }

    /// Channels of other processes that were not counted, because there were too many.
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    /// True if this process may lead.
    #[cfg(test)]
    pub(crate) fn may_lead(&self) -> bool {
        self.lock().by_key.get(LEADERS).is_some_and(|tally| tally.own > 0)
    }

    /// The subscriptions of a channel on all processes.
    #[cfg(test)]
    pub(crate) fn total(&self, channel: &ChannelName) -> u64 {
        self.lock().by_key.get(channel.key()).map_or(0, Tally::total)
    }

    /// Tells and asks what is due, and who leads.
    pub(crate) fn tick(&self, now_ms: u64) {
        let Some(exchange) = self.exchange.get() else { return };
        let mut state = self.lock();
        state.parts.forget_removed(now_ms);
        let mut others = exchange.lock();
        if others.lacks_part(now_ms, &state.parts.parts) && now_ms >= state.asked_ms + AGAIN_MS {
            state.asked_ms = now_ms;
            others.want(name());
        }
        let is_whole = state.parts.is_asked && others.is_whole(now_ms, &state.parts.parts);
        let contact_ms = others.contact_ms();
        drop(others);
        if now_ms >= state.told_ms + TELL_MS {
            state.told_ms = now_ms;
            self.tell_due(&mut state, now_ms);
        }
        state.has_others |= contact_ms.is_some();
        let own = state.by_key.get(LEADERS).map_or(0, |tally| tally.own);
        let is_settled = state.connected_ms.is_some_and(|since_ms| now_ms >= since_ms + SETTLE_MS)
            && (!state.has_others || now_ms >= state.thawed_until_ms);
        if own == 0 && is_whole && is_settled {
            let seed = self.seed & ((1 << SEED_BITS) - 1);
            self.set_stamp(&mut state, now_ms, clock::wall_ms(now_ms) << SEED_BITS | seed);
        }
        let Some(leaders) = state.by_key.get(LEADERS) else { return };
        let others = leaders.others.iter().map(|share| share.count).min();
        if leaders.own > 0 && others.is_none_or(|other| leaders.own <= other) {
            let up_to_ms = contact_ms.map_or(u64::MAX, |at_ms| at_ms.saturating_sub(UNDER_WAY_MS));
            self.everywhere.notify(now_ms, Event::Leads(up_to_ms));
        } else if others.is_some() {
            self.everywhere.notify(now_ms, Event::Follows);
        }
    }

    fn tell_due(&self, state: &mut State, now_ms: u64) {
        for key in std::mem::take(&mut state.due) {
            let Some(tally) = state.by_key.get_mut(&key) else { continue };
            if tally.own != tally.told {
                tally.told = tally.own;
                self.push(now_ms, &key, tally.own);
            }
        }
    }
}

/// The channels behind a key.
fn behind<'a>(
    all: &'a BTreeMap<Box<str>, Tally>,
    after: Option<&str>,
) -> impl Iterator<Item = (&'a Box<str>, &'a Tally)> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    all.range::<str, _>((from, Bound::Unbounded))
}

impl EventSink for Tallies {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        if let Some(here) = &self.here {
            here.notify(now_ms, event);
        }
        let (channel, count) = match event {
            Event::Counted(channel, count) => (channel, Some(count)),
            Event::Occupied(channel) => (channel, (!self.takes_counts).then_some(1)),
            Event::Vacated(channel) => (channel, (!self.takes_counts).then_some(0)),
            _ => return self.everywhere.notify(now_ms, event),
        };
        let Some(want) = self.want(channel) else { return };
        if let Some(count) = count {
            self.count(now_ms, channel, if want.counts { count } else { count.min(1) });
        }
    }

    fn takes_counts(&self) -> bool {
        self.takes_counts
    }

    fn forget_user(&self, user: &str, before_ms: u64) -> u64 {
        let here = self.here.as_ref().map_or(0, |here| here.forget_user(user, before_ms));
        here + self.everywhere.forget_user(user, before_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl EventSink for Nobody {
        fn notify(&self, _: u64, _: Event<'_>) {}
    }

    #[test]
    fn a_key_that_no_channel_has_is_of_nobody() {
        let want = TallyWant { prefix: "a/".into(), counts: true, members: true };
        let tallies = Tallies::new(vec![want], 7, None, Arc::new(Nobody));
        let peer = PeerId::numbered(1);
        for (number, key) in
            (1..).zip(["", "a", "\u{e4}", "\u{3}x", "\u{5}a/b", "\u{1}", "\u{1}a/b"])
        {
            tallies.take(0, (peer, number), key, Some(3));
        }
        assert_eq!(tallies.total(&ChannelName::channel("a/b")), 3);
        assert_eq!(tallies.lock().by_key.len(), 2);
        let value = || MemberValue { stamp: 9, object: "{}".into() };
        let members = vec![("".into(), value()), ("\u{e4}".into(), value())];
        let (channel, after, next) = (name(), None, None);
        let part = MemberPart { channel, after, as_of: 9, members, next };
        assert_eq!(tallies.take_part(0, (peer, 9), &part), Some(Vec::new()));
        assert!(tallies.lock().by_key.is_empty());
    }

    #[test]
    fn a_process_that_is_gone_has_nothing_and_too_many_channels_are_counted_as_such() {
        let want = TallyWant { prefix: "a/".into(), counts: true, members: false };
        let tallies = Tallies::new(vec![want], 7, None, Arc::new(Nobody));
        let [one, other] = [1, 2].map(PeerId::numbered);
        let key = |nth: usize| ChannelName::channel(&format!("a/{nth:04}")).key().to_owned();
        for nth in 0..CHANNELS_MAX + 3 {
            tallies.take(0, (one, 1 + nth as u64), &key(nth), Some(1));
        }
        assert_eq!((tallies.lock().by_key.len(), tallies.uncounted()), (CHANNELS_MAX, 3));
        for nth in [0, 7, 9] {
            tallies.take(0, (other, 1 + nth as u64), &key(nth), Some(2));
        }
        let value = || MemberValue { stamp: 5, object: "{}".into() };
        let members = vec![(key(5).into(), value())];
        let (channel, after, next) = (name(), Some(key(2).into()), Some(key(20).into()));
        let part = MemberPart { channel, after, as_of: 5_000, members, next };
        tallies.take_part(0, (one, 5_000), &part);
        let left: Vec<_> = tallies.lock().by_key.keys().take(7).cloned().collect();
        let expected = [0, 1, 2, 5, 7, 9, 21].map(key);
        assert_eq!(left.iter().map(|key| &**key).collect::<Vec<_>>(), expected);
        tallies.lose(0, one);
        assert_eq!(tallies.lock().by_key.len(), 3);
        tallies.lose(0, other);
        assert!(tallies.lock().by_key.is_empty());
    }
}
