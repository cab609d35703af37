//! Where users go on after their connections have died, whichever process serves them next.
//!
//! A bookmark stays where its connection was. The other processes that serve the channel are told
//! that there is one, by keys, and ask for it when somebody comes who may take it.

use super::Channels;
use crate::bookmarks::BookmarkKeys;
use crate::id::MessageId;
use crate::journal::Cluster;
use crate::later::{Answer, Later};
use crate::name::ChannelName;

/// Bookmarks in one message: some 20 KB, which any server of a journal carries.
const TOLD_MAX: usize = 256;

impl Channels {
    /// A connection of users has died, who need not be sent again what these channels had up to
    /// these messages. Nothing happens where the rules do not say that users go on.
    pub fn leave_bookmarks(&self, now_ms: u64, left: &[(&str, ChannelName, MessageId)]) {
        for (user, channel, place) in left {
            self.memory.leave_bookmark(now_ms, user, channel, *place);
        }
        let told = |(user, channel, _): &(&str, ChannelName, MessageId)| {
            self.cluster_of(channel)?;
            let rule = self.memory.rules().resume(channel)?;
            // A user who has too many has lost the first ones.
            self.memory.bookmark(now_ms, user, channel)?;
            Some((BookmarkKeys::of(user, channel), rule.for_ms))
        };
        let told: Vec<_> = left.iter().filter_map(told).collect();
        if let Some(cluster) = self.cluster() {
            told.chunks(TOLD_MAX).for_each(|told| cluster.tell_bookmarks(told));
        }
    }

    /// Brings here what other processes have of a user's place in a channel, for a subscription
    /// that is about to begin. Answers at once unless one of them has said that it has any.
    pub fn await_bookmark(
        &self,
        now_ms: u64,
        (user, channel): (&str, &ChannelName),
        later: Later<'_, ()>,
    ) -> Answer<()> {
        let resumes = self.memory.rules().resume(channel).is_some();
        match self.cluster_of(channel).filter(|_| resumes) {
            None => ().into(),
            Some(cluster) => cluster.bookmark_elsewhere(now_ms, (user, channel), later),
        }
    }

    /// [Parts](crate::MemoryEngine::part_with_user) with a user, also on other nodes. Returns how
    /// many events of this one are forgotten.
    pub fn part_with_user(&self, now_ms: u64, user: &str, before_ms: u64) -> u64 {
        if let Some(cluster) = self.cluster() {
            cluster.part_with_user(user, before_ms);
        }
        self.memory.part_with_user(now_ms, user, before_ms)
    }

    /// True if some user may go on in a channel.
    pub fn has_bookmarks_in(&self, now_ms: u64, channel: &ChannelName) -> bool {
        let elsewhere = |cluster: &dyn Cluster| {
            cluster.has_bookmarks_in(now_ms, BookmarkKeys::of("", channel).channel)
        };
        self.memory.has_bookmarks_in(channel) || self.cluster_of(channel).is_some_and(elsewhere)
    }
}
