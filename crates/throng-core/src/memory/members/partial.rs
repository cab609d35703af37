//! Lists that lack members of other processes: those who follow them are told when that begins and
//! when it is over.
//!
//! That is a value in the log of the members, with a key that no member has. So it comes in the
//! order of the changes to those who follow them, also to those who come back, and in the next
//! process it is known what they were told. It is in no list: that says itself how it is.

use super::held::ELSEWHERE_MS;
use super::{LIST_KEY, value};
use crate::attributes::Attribute;
use crate::members::State;
use crate::memory::{MemoryEngine, SHARDS};
use crate::message::Message;
use crate::name::ChannelName;
use crate::publication::PublishError;

/// The event that a list is partial from now on.
const PARTIAL: &str = "partial";

/// The event that nobody is missing any more.
const WHOLE: &str = "whole";

/// A list that is partial for a shorter time is not told, in milliseconds: another process has
/// begun or goes on, or a piece of news was lost.
const TOLD_AFTER_MS: u64 = 1_000;

/// Channels that are looked at in one step, or all of one shard. The others wait for the next.
const LOOKED_AT_MAX: usize = 4_096;

impl Message {
    /// Whether a list of members is partial from now on, if it tells that.
    pub fn is_list_partial(&self) -> Option<bool> {
        // Mostly it is none of members.
        let attributes = self.extras.attributes().filter(|_| self.channel.is_members())?;
        let event = attributes.get(Attribute::Event)?;
        let is_partial = event == PARTIAL.as_bytes();
        (is_partial || event == WHOLE.as_bytes()).then_some(is_partial)
    }
}

impl MemoryEngine {
    /// The number of a channel's members, and whether other processes may have some that are not
    /// known here: for a client that has just got the list. If so, all are told now, and later that
    /// it is over.
    pub fn members_listed(&self, now_ms: u64, channel: &ChannelName) -> (u64, bool) {
        let mut state = self.members_with(channel);
        let is_partial = self.is_partial(&state, now_ms, channel);
        if is_partial && let Some(shared) = state.shared.get_mut(channel) {
            shared.is_said_partial = true;
            if !shared.is_told_partial {
                self.tell_list(&mut state, now_ms, channel, true);
            }
        }
        let count = state.channels.get(channel).map_or(0, |all| all.len() as u64);
        (count, is_partial)
    }

    /// Tells those who follow members what has changed about their lists. That nobody is missing
    /// any more comes behind all joins and departures that have been found out with it.
    pub(super) fn tell_partial_lists(&self, now_ms: u64) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let first_shard = self.next_shard();
        let mut left = LOOKED_AT_MAX;
        for shard in (0..SHARDS).map(|nth| (first_shard + nth) % SHARDS) {
            let mut state = self.members.lock(shard);
            let State { shared, owed, due: departures, .. } = &mut *state;
            let are_gone = departures.first().is_none_or(|(due_ms, ..)| *due_ms > now_ms);
            left = left.saturating_sub(shared.len());
            let others = exchange.lock();
            let mut due = Vec::new();
            for (channel, of_channel) in shared.iter_mut() {
                let (is_partial, for_ms) = of_channel.look(now_ms, &others);
                let is_owed = || {
                    let first = (channel.clone(), Box::default());
                    owed.range(first..).next().is_some_and(|(next, _)| next == channel)
                };
                let is_due = if is_partial {
                    !of_channel.is_told_partial && for_ms >= TOLD_AFTER_MS
                } else {
                    (of_channel.is_told_partial || of_channel.is_said_partial)
                        && for_ms >= ELSEWHERE_MS
                        && are_gone
                        && !is_owed()
                };
                if is_due {
                    due.push((channel.clone(), is_partial));
                }
            }
            drop(others);
            for (channel, is_partial) in due {
                self.tell_list(&mut state, now_ms, &channel, is_partial);
            }
            if left == 0 {
                break;
            }
        }
    }

    /// Tells it. What delivery does not take is due again.
    fn tell_list(&self, state: &mut State, now_ms: u64, channel: &ChannelName, is_partial: bool) {
        let log = ChannelName::members(channel.name());
        let event = if is_partial { PARTIAL } else { WHOLE };
        let tell = |key| self.publish_internal(now_ms, value(log.clone(), event, key, "{}".into()));
        let told = match tell(Some((LIST_KEY, !is_partial))) {
            // There is no room for a key, or was none. Whoever comes back gets the list.
            Err(PublishError::StateFull | PublishError::AllStatesFull | PublishError::NoKey) => {
                tell(None)
            }
            told => told,
        };
        if told.is_ok()
            && let Some(shared) = state.shared.get_mut(channel)
        {
            (shared.is_told_partial, shared.is_said_partial) = (is_partial, is_partial);
        }
    }

    /// True if other processes may have members of a channel that are not known here.
    pub(super) fn is_partial(&self, state: &State, now_ms: u64, channel: &ChannelName) -> bool {
        let Some(exchange) = self.members.exchange.get() else { return false };
        match state.shared.get(channel) {
            Some(shared) => !shared.is_complete(now_ms, &exchange.lock()),
            None => self.is_of_several(exchange, channel),
        }
    }
}
