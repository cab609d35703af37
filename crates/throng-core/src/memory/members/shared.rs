//! Channels whose members are those of several processes: since when, and for how long.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LIST_KEY, value};
use crate::change::Erase;
use crate::clock;
use crate::later::{Answer, Later};
use crate::members::State;
use crate::members::exchange::{Exchange, MemberLink};
use crate::members::tallies::Tallies;
use crate::memory::{MemoryEngine, SHARDS};
use crate::name::{ChannelName, Kind};
use crate::rules::JournalId;

/// For how long the members of other processes are kept of a channel that nobody here follows, in
/// milliseconds: the next query has them at once.
const KEPT_MS: u64 = 60_000;

/// Channels of a shard whose members elsewhere are kept, beyond which none are for queries alone:
/// whoever may ask could name any number.
const SHARED_MAX: usize = 2_048;

/// The numbers of changes begin at the time of start with this many bits below it: more changes
/// than a process makes in a millisecond.
const NUMBER_BITS: u32 = 20;

impl MemoryEngine {
    /// The same engine, with numbers of subscribers that several processes tell each other.
    #[must_use]
    pub fn with_tallies(mut self, tallies: Option<Arc<Tallies>>) -> MemoryEngine {
        self.members.tallies = tallies;
        self
    }

    /// Has this process exchange members with others that serve the channels of the journal which
    /// has [no list](MemoryEngine::with_all_listed), if any of these has members or presence events
    /// or numbers of subscribers are wanted. Called once, before any subscription begins or goes
    /// on.
    pub fn share_members(&self, link: Box<dyn MemberLink>) {
        if let Some(journal) = self.shared.listed_here
            && (self.rules().have_members_in(journal)
                || self.rules().have_presence_events_in(journal)
                || self.members.tallies.is_some())
        {
            self.share_members_from(clock::now_ms(), journal, link);
        }
    }

    pub(crate) fn share_members_from(
        &self,
        now_ms: u64,
        journal: JournalId,
        link: Box<dyn MemberLink>,
    ) {
        let number = clock::wall_ms(now_ms) << NUMBER_BITS;
        let exchange = Arc::new(Exchange::new(journal, number, link));
        let is_first = self.members.exchange.set(Arc::clone(&exchange)).is_ok();
        debug_assert!(is_first);
        if self.rules().have_presence_events_in(journal) {
            self.presence_cache().watched.begin_telling();
        }
        let followed = self.all_followed();
        for (channel, _) in &followed {
            self.share(&mut self.members_with(channel), now_ms, channel);
        }
        if let Some(tallies) = &self.members.tallies {
            let has_taken_over = !followed.is_empty() || self.member_metrics().members > 0;
            tallies.begin(now_ms, exchange, (followed, has_taken_over));
        }
        // Of another process, which was this one before.
        for shard in 0..SHARDS {
            let mut state = self.members.lock(shard);
            let channels: Vec<_> = state.channels.keys().cloned().collect();
            for channel in channels {
                self.share(&mut state, now_ms, &channel);
            }
        }
    }

    /// Keeps the list of a channel's members complete while it has followers here, if other
    /// processes may have some.
    pub fn follow_members(&self, now_ms: u64, channel: &ChannelName) {
        if self.members.exchange.get().is_some() {
            self.share(&mut self.members_with(channel), now_ms, channel);
        }
    }

    /// Waits until other processes have said which members of a channel they have, if this one does
    /// not know. Answers whether some are missing.
    pub fn members_ready(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        later: Later<'_, bool>,
    ) -> Answer<bool> {
        let Some(exchange) = self.members.exchange.get() else { return false.into() };
        let mut state = self.members_with(channel);
        let has_room = state.shared.len() < SHARED_MAX || self.is_followed(channel);
        if !has_room && !state.shared.contains_key(channel) {
            return self.is_of_several(exchange, channel).into();
        }
        if !self.share(&mut state, now_ms, channel) {
            return false.into();
        }
        let Some(shared) = state.shared.get_mut(channel) else { return false.into() };
        shared.until_ms = now_ms + KEPT_MS;
        let mut others = exchange.lock();
        if shared.is_asked || !others.is_connected() {
            return (shared.lacks || !others.is_whole(now_ms, &shared.parts)).into();
        }
        let (ticket, answer) = later.ticket();
        others.wait(now_ms, channel.clone(), ticket);
        drop(others);
        drop(state);
        exchange.ask(now_ms);
        answer
    }

    /// True if other processes may have members of a channel that are not known here.
    pub(crate) fn are_members_partial(&self, now_ms: u64, channel: &ChannelName) -> bool {
        self.is_partial(&self.members_with(channel), now_ms, channel)
    }

    /// Begins to keep the members of other processes, if they serve the channel, too. Returns
    /// whether they do.
    pub(super) fn share(&self, state: &mut State, now_ms: u64, channel: &ChannelName) -> bool {
        let Some(exchange) = self.members.exchange.get() else { return false };
        if state.shared.contains_key(channel) {
            return true;
        }
        if !self.is_of_several(exchange, channel) {
            return false;
        }
        let shared = state.shared.entry(channel.clone()).or_default();
        shared.until_ms = now_ms + KEPT_MS;
        // By the process before.
        shared.is_told_partial = self.told(now_ms, channel, LIST_KEY).is_some();
        exchange.lock().want(channel.clone());
        true
    }

    /// The channels that somebody here follows, with the numbers of subscriptions.
    pub(in crate::memory) fn all_followed(&self) -> Vec<(ChannelName, u64)> {
        let mut followed = Vec::new();
        for kind in [Kind::Channel, Kind::User] {
            let mut next = Some(None);
            while let Some(after) = next {
                let step = self.list(clock::now_ms(), kind, after);
                let listed = step.channels.into_iter().filter(|listed| listed.subscribers > 0);
                followed.extend(listed.map(|listed| (listed.name, listed.subscribers)));
                next = step.next.map(Some);
            }
        }
        followed
    }

    pub(super) fn is_of_several(&self, exchange: &Exchange, channel: &ChannelName) -> bool {
        self.rules().members(channel).is_some()
            && self.rule(channel).journal == Some(exchange.journal)
    }

    /// True if other processes may have members of a channel, too.
    pub fn shares_members(&self, channel: &ChannelName) -> bool {
        let exchange = self.members.exchange.get();
        exchange.is_some_and(|exchange| self.is_of_several(exchange, channel))
    }

    pub(super) fn is_followed(&self, channel: &ChannelName) -> bool {
        let log = ChannelName::members(channel.name());
        [channel, &log].iter().any(|name| self.audience(name).subscribers > 0)
    }

    /// Keeps the members of other processes no more. Those that have known the list get it anew.
    pub(super) fn unshare(&self, state: &mut State, now_ms: u64, channel: &ChannelName) {
        let keys: Vec<_> =
            state.channels.get(channel).into_iter().flat_map(|all| all.keys().cloned()).collect();
        let log = ChannelName::members(channel.name());
        let list = state.shared.remove(channel).filter(|shared| shared.is_told_partial);
        if let Some(key) = keys.first().map(|key| &**key).or(list.map(|_| LIST_KEY)) {
            // What is erased then is more than anybody has, so nobody goes on from there.
            let _ = self.publish_internal(
                now_ms,
                value(log.clone(), "leave", Some((key, true)), "{}".into()),
            );
        }
        let _ = self.erase(now_ms, &log, Erase::Log);
        for key in keys {
            self.forget(state, channel, &key);
            state.owed.remove(&(channel.clone(), key));
        }
    }

    /// The shard that is looked at in this tick.
    pub(super) fn next_shard(&self) -> usize {
        self.next_tick.load(Ordering::Relaxed) % SHARDS
    }
}
