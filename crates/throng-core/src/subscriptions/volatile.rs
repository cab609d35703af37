//! Volatile messages, and their passes around the circular lists.
//!
//! They are in no replay buffer, and no cursor passes them: who cannot take one when its pass comes
//! by does not get it. So each has a pass of its own, one after the other in each channel, from the
//! first subscription of the list to the one that was last when the pass began.

use std::sync::Arc;

use super::SubscriptionTable;
use super::channel::LocalChannel;
use super::subscription::SubscriptionId;
use super::volatile_passes::{Rest, Room};
use crate::id::{ChannelId, ConnectionId, LocalId};
use crate::message::{InFlight, Message};

/// The deliveries of a volatile message that are not made, because there is no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolatileDropped {
    /// The subscriptions that do not get it.
    pub deliveries: u64,
    /// True if its channel has its share of what may wait; false if other channels have the rest.
    pub is_over_share: bool,
}

impl SubscriptionTable {
    /// True if volatile messages wait for their passes, or are in them.
    pub(crate) fn has_volatile(&self) -> bool {
        !self.volatile.turns.is_empty()
    }

    /// Takes a volatile message of a followed channel. A late one for a channel that is not
    /// followed any more is ignored.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    pub fn append_volatile(
        &mut self,
        local: LocalId,
        channel: ChannelId,
        message: &Arc<Message>,
    ) -> Result<(), VolatileDropped> {
        let is_it = |known: &&LocalChannel| known.channel == channel;
        let count = self.channels.get(local.index()).filter(is_it).map_or(0, |known| known.count);
        let room = self.volatile.room(local, message.weight_bytes());
        if count > 0 && room == Room::Free {
            self.volatile.add(local, message);
            return Ok(());
        }
        self.pass_over(message, None);
        let is_over_share = room == Room::OverShare;
        match count {
            0 => Ok(()),
            count => Err(VolatileDropped { deliveries: count.into(), is_over_share }),
        }
    }

    /// Continues the pass whose turn it is. Appends subscriptions to `batch`, with their
    /// connections, and returns the message that is for them; `None` if there is none, or `visits`
    /// is 0. They are of one channel and of different connections, and have to be served before the
    /// next call. `visits` is counted down.
    pub fn next_volatile(
        &mut self,
        visits: &mut u32,
        batch: &mut Vec<(SubscriptionId, ConnectionId)>,
    ) -> Option<Arc<Message>> {
        while *visits > 0 {
            let local = *self.volatile.turns.front()?;
            let pass = self.volatile.by_channel.get_mut(&local);
            let first = pass.and_then(|pass| Some((Arc::clone(pass.messages.front()?), pass)));
            let Some((message, pass)) = first else {
                self.volatile.by_channel.remove(&local);
                self.volatile.turns.pop_front();
                continue;
            };
            let channel = &self.channels[local.index()];
            // The channel of a pass has subscriptions: it ends with the last of them.
            let first = channel.first?;
            let all = || Rest { next: first, last: self.subscriptions[first.index()].before };
            let mut rest = Some(pass.rest.unwrap_or_else(all));
            while let Some(Rest { next, last }) = rest
                && *visits > 0
            {
                *visits -= 1;
                let subscription = &self.subscriptions[next.index()];
                batch.push((next, subscription.connection.id()));
                rest = (next != last).then_some(Rest { next: subscription.next, last });
            }
            pass.rest = rest;
            if rest.is_none() {
                pass.pop();
                self.volatile.subtract(std::iter::once(&message));
                self.completions.extend(message.in_flight().and_then(InFlight::complete));
            }
            // Each channel has its turn.
            self.volatile.turns.rotate_left(1);
            return Some(message);
        }
        None
    }

    /// Panics unless each pass is of a followed channel, and the counts are right.
    #[cfg(test)]
    pub(super) fn check_volatile(&self) {
        let passes = &self.volatile;
        let (by_channel, turns) = (&passes.by_channel, &passes.turns);
        assert_eq!(by_channel.len(), turns.len());
        assert!(turns.iter().all(|local| by_channel.contains_key(local)));
        let all = || by_channel.values().flat_map(|pass| &pass.messages);
        let weight_bytes = all().map(|message| message.weight_bytes()).sum::<usize>();
        assert_eq!((all().count(), weight_bytes), (passes.messages, passes.bytes));
        for (local, pass) in by_channel {
            assert!(self.channels.get(local.index()).is_some());
            let weights = pass.messages.iter().map(|message| message.weight_bytes());
            assert_eq!(pass.bytes, weights.sum::<usize>());
            let Some(Rest { next, last }) = pass.rest else { continue };
            assert!([next, last].iter().all(|&id| self.local(id) == Some(*local)));
        }
    }

    /// The channel has lost its last subscription.
    pub(super) fn end_volatile(&mut self, local: LocalId) {
        if let Some(pass) = self.volatile.by_channel.remove(&local) {
            self.volatile.subtract(pass.messages.iter());
            self.volatile.turns.retain(|other| *other != local);
        }
    }

    /// Drops all volatile messages. Returns the deliveries that are not made.
    pub fn drop_volatile(&mut self) -> u64 {
        let mut deliveries = 0;
        for (local, pass) in std::mem::take(&mut self.volatile).by_channel {
            let waiting = pass.messages.len() - usize::from(pass.rest.is_some());
            deliveries += waiting as u64 * u64::from(self.channels[local.index()].count);
            let mut rest = pass.rest;
            while let Some(Rest { next, last }) = rest {
                deliveries += 1;
                let after = self.subscriptions[next.index()].next;
                rest = (next != last).then_some(Rest { next: after, last });
            }
        }
        deliveries
    }
}
