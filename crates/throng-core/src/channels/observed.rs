//! Calls that an [`Observer`] sees, in tests of those who make them.

use std::sync::Arc;

use super::Channels;
use crate::connection_name::ConnectionName;
use crate::connection_scan::WantedTags;
use crate::engine::{Follow, Followed, History};
use crate::id::{ChannelId, Epoch, WorkerId};
use crate::later::{Answer, Later};
use crate::memory::MemoryEngine;
use crate::name::ChannelName;
use crate::publication::{Outcome, Publication, VolatilePublication};
use crate::read_marker::{Mark, Marked, MarkerKey, ReadMarker};
use crate::reading::{Fetched, HistoryQuery, Reading};
use crate::worker_queue::Notification;

/// A call that posts something to workers, and is about to be made.
#[derive(Debug, Clone, Copy)]
pub enum Coming<'a> {
    Publication(&'a Publication),
    Volatile(&'a VolatilePublication),
    /// A look at the read marker of an inbox, which may move.
    Marker(&'a ChannelName),
    /// Something outside any channel's order.
    Other,
}

/// A call that was made, and its result.
#[derive(Debug)]
pub enum Made<'a> {
    /// The publication that was [coming](Coming::Publication).
    Published(u64, &'a Answer<Outcome>),
    /// The number of subscriptions that the volatile message was posted for.
    PostedVolatile(u64),
    /// The marker of an inbox; and if there is a notice of it, the number of subscriptions that it
    /// was posted for, and its weight in bytes.
    Marked(&'a ReadMarker, Option<(u64, usize)>),
    Followed(u64, &'a Follow<'a>, &'a Followed),
    /// The channel, unless it was forgotten.
    Unfollowed(Option<ChannelName>),
    Paged(u64, &'a ChannelName, (HistoryQuery, usize), &'a History),
}

/// Sees the calls of channels.
pub trait Observer: Send + Sync {
    /// A call is about to be made at this time, to channels of which this is in memory. Returns the
    /// time at which it is made instead.
    fn before(&self, now_ms: u64, memory: &MemoryEngine, call: Coming<'_>) -> u64;

    /// A call was made.
    fn after(&self, call: Made<'_>);

    /// Stands for [`Channels::fetch`].
    fn fetch(
        &self,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched>;
}

impl Channels {
    /// The same channels, whose calls an observer sees.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Channels {
        self.observer = Some(observer);
        self
    }

    pub(super) fn before(&self, now_ms: u64, call: Coming<'_>) -> u64 {
        let Some(observer) = &self.observer else { return now_ms };
        observer.before(now_ms, &self.memory, call)
    }

    pub(super) fn after(&self, call: Made<'_>) {
        if let Some(observer) = &self.observer {
            observer.after(call);
        }
    }

    /// As [`MemoryEngine::read_marker`](crate::MemoryEngine::read_marker).
    pub(super) fn move_marker(&self, now_ms: u64, of: &MarkerKey, mark: Option<Mark>) -> Marked {
        if of.reader().is_some() {
            self.before(now_ms, Coming::Other);
            return self.memory.read_marker(now_ms, of, mark);
        }
        self.before(now_ms, Coming::Marker(of.log()));
        let (marker, subscribers) = self.memory.move_in_inbox(now_ms, of, mark);
        let notice = VolatilePublication::unread(of, &marker, None);
        let bytes = notice.content(Epoch::numbered(1), now_ms).weight_bytes();
        self.after(Made::Marked(&marker, subscribers.map(|subscribers| (subscribers, bytes))));
        Ok(marker)
    }

    /// As [`MemoryEngine::unfollow`](crate::MemoryEngine::unfollow).
    pub fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.after(Made::Unfollowed(self.memory.name(channel)));
        self.memory.unfollow(now_ms, channel, worker);
    }

    /// As [`MemoryEngine::unfollow_all`](crate::MemoryEngine::unfollow_all).
    pub fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        if self.observer.is_some() {
            return channels.iter().for_each(|&channel| self.unfollow(now_ms, channel, worker));
        }
        self.memory.unfollow_all(now_ms, channels, worker);
    }

    /// As [`MemoryEngine::post`](crate::MemoryEngine::post).
    pub fn post(&self, worker: WorkerId, notification: Notification) {
        self.before(0, Coming::Other);
        self.memory.post(worker, notification);
    }

    /// As [`MemoryEngine::follows`](crate::MemoryEngine::follows).
    pub fn follows(
        &self,
        channel: &ChannelName,
        asked: (ConnectionName, WantedTags),
        later: Later<'_, bool>,
    ) -> Answer<bool> {
        self.before(0, Coming::Other);
        self.memory.follows(channel, asked, later)
    }
}
