//! The members of channels: a state of each channel by key, written by the server.
//!
//! A channel whose rule has [`members`](crate::Rule::members) has a second, internal log
//! ([`ChannelName::members`]) with a key for each member. Its value is the member as everybody sees
//! it, so that the list is a page of that state, and subscribers of the log get the list and then
//! what changes, as of any state. What the log does not tell is in the [`Members`]: how many
//! connections a member has here, and since when it has none.
//!
//! * A worker reports each subscription that begins and ends. A member joins with its first
//!   connection and leaves with the last one, after the grace of the rule.
//! * What the log does not take is refused: there is no member that it does not have.
//! * A channel without the rule has nothing here, and costs nothing.
//!
//! * Where other processes serve the same channels, each tells the others of its own members
//!   ([`exchange`]). They hold a member here, too, so it leaves with the last connection anywhere.
//!
//! Invariant: a member that is here has a value in the log, or its value is owed to the log, which
//! did not take it from another process. A change of both is made under the lock
//! of the channel's [`State`], which is taken before any lock of the memory. So the events of a
//! channel are in the order of the changes, and channels seldom wait for each other.

pub(crate) mod exchange;
pub(crate) mod parts;
pub(crate) mod tallies;
mod tally;
pub(crate) mod wants;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use throng_wire::v1::Present;

use crate::id::MessageId;
use crate::name::ChannelName;
use exchange::{Exchange, MemberValue, PeerId};
use parts::SharedChannel;
use tallies::Tallies;

/// A member, by the key that the log has for it.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Subscriptions of this process.
    pub(crate) connections: u32,
    /// True if it is one by connections of this process, which it has, or has had until just now.
    pub(crate) is_own: bool,
    /// Since when it has none, and when it is due to leave.
    pub(crate) away: Option<Away>,
    /// In a channel that other processes serve, too.
    pub(crate) shared: Option<Box<SharedMember>>,
}

/// A member of a channel that several processes serve.
#[derive(Debug, Default)]
pub(crate) struct SharedMember {
    /// When this process has said what it shows.
    pub(crate) stamp: u64,
    pub(crate) holders: Vec<Holder>,
}

/// Another process of which somebody is a member.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) peer: PeerId,
    /// The number of the change that says so.
    pub(crate) number: u64,
    pub(crate) value: MemberValue,
}

impl Member {
    pub(crate) fn stamp(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.stamp)
    }

    pub(crate) fn holders(&self) -> &[Holder] {
        self.shared.as_ref().map_or(&[], |shared| &shared.holders)
    }

    /// The newest word of other processes.
    pub(crate) fn newest_elsewhere(&self) -> Option<&MemberValue> {
        self.holders().iter().map(|holder| &holder.value).max()
    }

    /// True if it is a member of any process.
    pub(crate) fn is_held(&self) -> bool {
        self.is_own || !self.holders().is_empty()
    }
}

/// The members of a channel by key.
pub(crate) type ByKey = BTreeMap<Box<str>, Member>;

/// The members of a channel behind a key.
pub(crate) fn behind<'a>(
    all: Option<&'a ByKey>,
    after: Option<&str>,
) -> impl Iterator<Item = (&'a Box<str>, &'a Member)> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    all.into_iter().flat_map(move |all| all.range::<str, _>((from, Bound::Unbounded)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) since_ms: u64,
    pub(crate) due_ms: u64,
}

/// Tables with a smaller capacity are not worth shrinking.
const TABLE_MIN: usize = 64;

/// The members of some channels, as far as their logs do not tell.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) channels: HashMap<ChannelName, ByKey>,
    /// Members without connections, in the order in which they leave.
    pub(crate) due: BTreeSet<(u64, ChannelName, Box<str>)>,
    /// Channels that other processes serve, too.
    pub(crate) shared: HashMap<ChannelName, SharedChannel>,
    /// Members whose values the log has to take yet.
    pub(crate) owed: BTreeSet<(ChannelName, Box<str>)>,
}

impl State {
    pub(crate) fn has(&self, channel: &ChannelName, key: &str) -> bool {
        self.member(channel, key).is_some()
    }

    pub(crate) fn member(&self, channel: &ChannelName, key: &str) -> Option<&Member> {
        self.channels.get(channel)?.get(key)
    }

    pub(crate) fn member_mut(&mut self, channel: &ChannelName, key: &str) -> Option<&mut Member> {
        self.channels.get_mut(channel)?.get_mut(key)
    }

    /// The member is not to leave any more.
    pub(crate) fn stay(&mut self, channel: &ChannelName, key: &str) {
        let member = self.member_mut(channel, key);
        if let Some(away) = member.and_then(|member| member.away.take()) {
            self.due.remove(&(away.due_ms, channel.clone(), key.into()));
        }
    }

    /// A subscription of the member is gone. Returns whether that was its last one.
    pub(crate) fn leave(&mut self, channel: &ChannelName, key: &str, away: Away) -> bool {
        let member = self.member_mut(channel, key);
        debug_assert!(member.is_some(), "a member with a subscription is here");
        let Some(member) = member else { return false };
        member.connections = member.connections.saturating_sub(1);
        let is_gone = member.connections == 0;
        if is_gone {
            self.part(channel, key, away);
        }
        is_gone
    }

    /// The member leaves when it is due, unless it comes back.
    pub(crate) fn part(&mut self, channel: &ChannelName, key: &str, away: Away) {
        let Some(member) = self.member_mut(channel, key) else { return };
        member.away = Some(away);
        self.due.insert((away.due_ms, channel.clone(), key.into()));
    }

    pub(crate) fn remove(&mut self, channel: &ChannelName, key: &str) {
        let Some(all) = self.channels.get_mut(channel) else { return };
        all.remove(key);
        if all.is_empty() {
            self.channels.remove(channel);
            let table = &mut self.channels;
            // One that has become mostly empty is smaller from now on.
            if table.capacity() > TABLE_MIN && table.len() * 4 < table.capacity() {
                table.shrink_to(table.len() * 2);
            }
        }
    }
}

/// The members of all channels.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Each has the members of the channels of one shard.
    shards: Box<[Mutex<State>]>,
    pub(crate) count: AtomicU64,
    pub(crate) joined: AtomicU64,
    pub(crate) updated: AtomicU64,
    pub(crate) left: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Unset if this process serves all channels alone.
    pub(crate) exchange: OnceLock<Arc<Exchange>>,
    /// Numbers of subscribers that several processes tell each other.
    pub(crate) tallies: Option<Arc<Tallies>>,
}

/// Counters of members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemberMetrics {
    /// The members of all channels.
    pub members: u64,
    pub joined: u64,
    pub updated: u64,
    pub left: u64,
    /// Subscriptions that were refused because the list was full.
    pub refused: u64,
    /// Times at which news of other processes was lost, so that they were asked again.
    pub news_lost: u64,
    /// Channels of other processes whose subscribers were not counted, because there were too many.
    pub uncounted: u64,
}

/// A page of a channel's members.
#[derive(Debug)]
pub struct MemberPage {
    /// The newest message of their log, as of which this is.
    pub head: MessageId,
    /// The members as JSON objects, in the order of their keys.
    pub members: Vec<Arc<str>>,
    /// The users among them, each once.
    pub users: Vec<Arc<str>>,
    /// The key after which the next page goes on, if there may be one.
    pub next: Option<Box<str>>,
}

impl MemberPage {
    /// The answer to a client about a channel with so many subscribers. `is_partial` and `is_local`
    /// as in [`Present`].
    pub fn answer(
        &self,
        subscribers: u64,
        (is_partial, is_local): (bool, bool),
    ) -> Present<'_, Arc<str>> {
        Present {
            connections: usize::try_from(subscribers).unwrap_or(usize::MAX),
            users: &self.users,
            members: Some(&self.members),
            next: self.next.as_deref(),
            more: self.next.is_some(),
            is_partial,
            is_local,
        }
    }
}

impl Members {
    /// No members, in so many shards.
    pub(crate) fn new(shards: usize) -> Members {
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Members { shards, ..Members::default() }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, State> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What another process goes on counting.
    pub(crate) fn counters(&self) -> [&AtomicU64; 4] {
        [&self.joined, &self.updated, &self.left, &self.refused]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_members_that_have_left_is_freed() {
        let mut state = State::default();
        let names: Vec<_> = (0..1_000).map(|n| ChannelName::channel(&n.to_string())).collect();
        let add = |state: &mut State, channel: &ChannelName, key: &str| {
            let all = state.channels.entry(channel.clone()).or_default();
            all.insert(key.into(), Member { connections: 1, ..Member::default() });
        };
        for name in &names {
            add(&mut state, name, "ann");
            add(&mut state, &names[0], name.name());
        }
        let kept = &names[0];
        for name in &names {
            state.remove(name, "ann");
            if name != kept {
                state.remove(kept, name.name());
            }
        }
        assert_eq!((state.channels.len(), state.channels[kept].len()), (1, 1));
        assert!(state.channels.capacity() <= TABLE_MIN);
    }
}
