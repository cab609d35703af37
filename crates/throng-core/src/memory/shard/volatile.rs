//! Volatile messages: they go to the followers of a channel, and nothing of the channel changes.

use std::sync::Arc;

use super::{Follower, Hashed, Shard, Wake};
use crate::memory::shared::Shared;
use crate::message::{InFlight, Message};
use crate::publication::VolatilePublication;
use crate::read_marker::{MarkerKey, Mover, ReadMarker};
use crate::worker_queue::Notification;

impl Shard {
    /// Tells the followers of a user's inbox, which is here, that a marker has moved, if it has.
    /// Returns what [`Shard::post_volatile`] does; `None` if nobody but the mover follows it.
    pub(in crate::memory) fn tell_unread(
        &self,
        shared: &Shared,
        (now_ms, inbox): (u64, Hashed<'_>),
        of: &MarkerKey,
        marker: &ReadMarker,
        mover: Option<Mover>,
    ) -> Option<(u64, Wake)> {
        let slot = self.find(inbox).filter(|_| marker.has_moved)?;
        let own = mover.is_some_and(|mover| mover.is_follower);
        if self.channels[slot].followers.subscribers() <= u64::from(own) {
            return None;
        }
        let notice = VolatilePublication::unread(of, marker, mover);
        Some(self.post_volatile(shared, now_ms, inbox.hash, notice))
    }

    /// Posts a message to the workers that follow its channel and have room. Returns the number of
    /// their subscriptions, and the workers to wake once the lock is released. The channel need not
    /// exist, and does not begin to.
    pub(in crate::memory) fn post_volatile(
        &self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        publication: VolatilePublication,
    ) -> (u64, Wake) {
        let name = Hashed { name: &publication.channel, hash };
        let Some(slot) = self.find(name) else { return (0, Wake::new()) };
        let followers = self.channels[slot].followers.as_slice();
        let has_room = |worker| shared.queue(worker).has_room_for_volatile();
        let (taking, full): (Vec<&Follower>, Vec<&Follower>) =
            followers.iter().partition(|follower| has_room(follower.worker));
        for follower in full {
            shared.queue(follower.worker).lose_volatile(follower.subscribers.into());
        }
        let content = Arc::new(publication.content(shared.epoch, now_ms));
        let message = Arc::new(Message::tracked(content, InFlight::to(taking.len())));
        let mut subscribers = 0;
        for follower in &taking {
            subscribers += u64::from(follower.subscribers);
            shared.queue(follower.worker).post(Notification::Message {
                local: follower.local,
                channel: self.id(slot),
                message: Arc::clone(&message),
                receipt: None,
            });
        }
        (subscribers, taking.iter().map(|follower| follower.worker).collect())
    }
}
