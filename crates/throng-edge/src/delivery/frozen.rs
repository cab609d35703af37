//! Channels and subscriptions as bytes, and back.

use std::collections::HashSet;
use std::sync::Arc;

use throng_core::frozen::{Decoder, RecordKind, ThawError};
use throng_core::subscriptions::{FrozenSubscription, OpenChannel};
use throng_core::{ChannelId, ChannelName, ConnectionName, LocalId};

use super::Delivery;
use crate::connection::{ConnectionId, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Writes the channels that are followed. Returns their number.
    pub(crate) fn freeze_channels(&mut self, write: &mut dyn FnMut(Vec<u8>)) -> u32 {
        let mut channels = 0;
        let name_of = |channel| self.engine.name(channel);
        self.subscriptions.freeze_channels(name_of, &mut |record| {
            // The messages of a channel come in records of their own, which its own record counts.
            channels += u32::from(record[0] == RecordKind::FollowedChannel as u8);
            write(record);
        });
        channels
    }

    /// Takes the connection's subscriptions, in the order of its request.
    pub(crate) fn take_frozen(&mut self, id: ConnectionId) -> Vec<FrozenSubscription> {
        self.rest_members(id);
        let ended = self.subscriptions_in_order(id).into_iter();
        ended.filter_map(|it| self.subscriptions.take_frozen(it)).collect()
    }

    /// Goes on counting what another process has dropped.
    pub(crate) fn resume_dropped(&mut self) {
        let dropped = self.sockets.metrics().get(Counter::ReplayMessagesEvicted);
        self.subscriptions.resume_dropped(dropped);
    }

    /// Reads a message of a channel.
    pub(crate) fn thaw_message(
        &mut self,
        open: &mut OpenChannel,
        decoder: Decoder<'_>,
    ) -> Result<(), ThawError> {
        self.subscriptions.thaw_message(open, decoder)
    }

    /// True if all of these subscriptions can be thawed.
    pub(crate) fn can_thaw(&self, frozen: &[FrozenSubscription]) -> bool {
        frozen.iter().all(|frozen| self.subscriptions.can_thaw(frozen))
    }

    /// Adds the subscriptions of a connection. If it `takes_more`, passes visit them.
    pub(crate) fn thaw_subscriptions(
        &mut self,
        id: ConnectionId,
        frozen: &[FrozenSubscription],
        takes_more: bool,
    ) {
        let mut newest = None;
        for frozen in frozen {
            newest = Some(self.subscriptions.thaw_subscription(id, frozen, newest, takes_more));
        }
        self.sockets[id].newest_subscription = newest;
        if let Some(expires) = frozen.iter().filter_map(FrozenSubscription::expires).min() {
            self.sockets.connections_mut().limit_subscription(id, expires);
        }
        self.resume_members(id);
        self.go_on_asking(id);
        self.moved.note(self.sockets.connections().name(id), frozen);
    }

    /// Takes the names of the connections that follow a channel which has another journal now.
    pub(crate) fn take_moved(&mut self) -> Vec<ConnectionName> {
        std::mem::take(&mut self.moved).into_connections()
    }

    /// Ends the thaw, once all connections are there: corrects what the engine counts.
    pub(crate) fn finish_channels(&mut self) {
        // Some of its connections may follow kept channels.
        self.has_kept = true;
        let (engine, now_ms) = (Arc::clone(&self.engine), self.clock().unix_ms());
        let worker = self.metrics().worker();
        // The engine still counts for the frozen worker, of which connections may have been lost.
        self.subscriptions.finish_thaw(&mut |channel, subscribers| {
            engine.set_subscribers(now_ms, channel, worker, subscribers);
        });
    }

    /// Reads a channel of this version, and looks for it.
    pub(crate) fn open_channel(
        &self,
        decoder: Decoder<'_>,
        version: u16,
    ) -> Result<OpenChannel, ThawError> {
        let (engine, worker) = (&self.engine, self.metrics().worker());
        OpenChannel::decode(
            decoder,
            version,
            |name: &ChannelName| -> Option<(ChannelId, LocalId)> {
                let followers = engine.audience(name).workers;
                let follower = followers.into_iter().find(|(follower, ..)| *follower == worker);
                let known = follower.map(|(_, local, channel)| (channel, local));
                known.or_else(|| engine.left_by(name, worker))
            },
        )
    }

    pub(crate) fn thaw_channel(&mut self, open: &OpenChannel) -> Result<(), ThawError> {
        let name = open.name();
        if name.is_presence_events() {
            // Its former watchers are gone: subscribers are told the presence again.
            let channel = ChannelName::channel(name.name());
            self.engine.presence_cache().watched.watch(&channel);
        }
        self.renumbered.extend(open.renumbered());
        // Mostly none has.
        if self.engine.moved_channels() > 0
            && self.engine.left_by(name, self.metrics().worker()).is_some()
        {
            self.moved.insert(open.local());
        }
        self.subscriptions.thaw_channel(open)
    }

    /// Tells the connection the numbers of its channels that have other ones than in the process
    /// before.
    pub(crate) fn tell_new_numbers(&mut self, id: ConnectionId) {
        if self.renumbered.is_empty() || self[id].state() != State::Streaming {
            return;
        }
        let renumbered = std::mem::take(&mut self.renumbered);
        let numbers: Vec<_> = self
            .subscriptions(id)
            .filter(|&own| renumbered.contains(&self.subscriptions.number(own)))
            .collect();
        if !numbers.is_empty() {
            self.tell_numbers(id, |own| numbers.contains(&own));
        }
        self.renumbered = renumbered;
    }

    /// All connections know the numbers of their channels.
    pub(crate) fn end_renumbering(&mut self) {
        self.renumbered = HashSet::new();
    }
}
