//! An engine in front of another one, which does whatever the first one does not do differently.

use std::sync::Arc;

use crate::engine::{Audience, Engine, EngineMetrics, Follow, Followed, History};
use crate::id::{ChannelId, LocalId, WorkerId};
use crate::later::{Answer, Later};
use crate::listing::{ListPlace, ListStep};
use crate::name::{ChannelName, Kind};
use crate::presence::PresenceCache;
use crate::publication::{Outcome, Publication, PublishError, VolatilePublication};
use crate::read_marker::{Mark, Marked};
use crate::reading::{Fetched, HistoryQuery, Reading};
use crate::stamp::Watermark;
use crate::worker_queue::Notification;

/// An engine in front of another one, for the methods of [`Engine`] that it may do differently.
pub trait Delegate: Send + Sync {
    fn behind(&self) -> &dyn Engine;

    /// Like [`Engine::publish`], which it stands for.
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        self.behind().publish(now_ms, publication, later)
    }

    /// Like [`Engine::publish_volatile`], which it stands for.
    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        self.behind().publish_volatile(now_ms, publication)
    }

    /// Like [`Engine::fetches`], which it stands for.
    fn fetches(&self) -> bool {
        self.behind().fetches()
    }

    /// Like [`Engine::fetch`], which it stands for.
    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        self.behind().fetch(now_ms, channel, reading, later)
    }

    /// Like [`Engine::follow`], which it stands for.
    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        self.behind().follow(now_ms, follow)
    }

    /// Like [`Engine::history`], which it stands for.
    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        self.behind().history(now_ms, channel, query, limit)
    }

    /// Like [`Engine::read_marker`], which it stands for.
    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        self.behind().read_marker(now_ms, inbox, mark, later)
    }

    /// Like [`Engine::list`], which it stands for.
    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        self.behind().list(now_ms, kind, after)
    }
}

impl<D: Delegate> Engine for D {
    fn publish(
        &self,
        now_ms: u64,
        publication: Publication,
        later: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        Delegate::publish(self, now_ms, publication, later)
    }

    fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        Delegate::publish_volatile(self, now_ms, publication)
    }

    fn watermark(&self) -> Watermark {
        self.behind().watermark()
    }

    fn fetches(&self) -> bool {
        Delegate::fetches(self)
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        Delegate::fetch(self, now_ms, channel, reading, later)
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        Delegate::follow(self, now_ms, follow)
    }

    fn look_ahead(
        &self,
        channels: &[ChannelName],
        worker: WorkerId,
        each: &mut dyn FnMut(LocalId),
    ) {
        self.behind().look_ahead(channels, worker, each);
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        self.behind().unfollow(now_ms, channel, worker);
    }

    fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        self.behind().unfollow_all(now_ms, channels, worker);
    }

    fn set_subscribers(&self, now_ms: u64, channel: ChannelId, worker: WorkerId, subscribers: u32) {
        self.behind().set_subscribers(now_ms, channel, worker, subscribers);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        Delegate::history(self, now_ms, channel, query, limit)
    }

    fn read_marker(
        &self,
        now_ms: u64,
        inbox: &ChannelName,
        mark: Option<Mark>,
        later: Later<'_, Marked>,
    ) -> Answer<Marked> {
        Delegate::read_marker(self, now_ms, inbox, mark, later)
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        self.behind().audience(channel)
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        self.behind().name(channel)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        self.behind().names(channels, each);
    }

    fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        Delegate::list(self, now_ms, kind, after)
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        self.behind().post(worker, notification);
    }

    fn tick(&self, now_ms: u64) {
        self.behind().tick(now_ms);
    }

    fn set_memory_short(&self, is_short: bool) {
        self.behind().set_memory_short(is_short);
    }

    fn log_bytes(&self) -> u64 {
        self.behind().log_bytes()
    }

    fn metrics(&self) -> EngineMetrics {
        self.behind().metrics()
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        self.behind().presence_cache()
    }
}
