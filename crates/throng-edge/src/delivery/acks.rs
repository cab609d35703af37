//! Frames that clients acknowledge once they are done with them, and messages that wait for that.
//!
//! A frame with messages of a channel that has a limit of staleness asks its client for it. While
//! the client owes many such frames, or one for long, it is slower than the channel, whether its
//! socket takes more or not: what such channels have for it is held, and conflated, until it
//! acknowledges. Its other channels go on.
//!
//! A connection that gets messages in the order of their stamps asks for nothing: one channel that
//! is held would hold all.
//!
//! # Invariants
//!
//! * What is held is blocked. Only an acknowledgement lets it out, or the end of the connection.
//! * An acknowledgement lets out what was held for want of it, and does nothing else: it is never
//!   access, a receipt or a position.

use throng_core::{SubscriptionId, SubscriptionTable, Waiting};
use throng_dialect::CloseReason;
use throng_dialect::dialect::Shown;

use super::Delivery;
use crate::connection::{Connection, ConnectionId, Flags, State, Unacknowledged};
use crate::net::Net;

/// The part of a message's form that the channel of a subscription decides.
pub(super) fn shown_of(subscriptions: &SubscriptionTable, id: SubscriptionId) -> Shown<'static> {
    Shown { asks: subscriptions.max_staleness_ms(id) > 0, ..Shown::of(subscriptions.number(id)) }
}

/// How much a client owes of what a subscription may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    /// Nothing, or so little that it may have more.
    Little,
    /// As many frames as it may.
    Many,
    /// A frame, since so long ago that the next messages would be too old.
    ForLong,
}

/// How much the client of a connection owes of what one of its subscriptions may ask for.
pub(super) fn owed_to<S>(
    connection: &Connection<S>,
    subscriptions: &SubscriptionTable,
    subscription: SubscriptionId,
    now_ms: u64,
) -> Owed {
    // Few connections owe any.
    let Some(owed) = connection.unacknowledged() else { return Owed::Little };
    let max_ms = subscriptions.max_staleness_ms(subscription);
    let is_in_order = subscriptions.is_kept(subscription) && connection.encoding().shows_position();
    if max_ms == 0 || is_in_order || connection.state() != State::Streaming {
        Owed::Little
    } else if owed.is_older_than(u64::from(max_ms / 2), now_ms) {
        Owed::ForLong
    } else if owed.room() == 0 {
        Owed::Many
    } else {
        Owed::Little
    }
}

impl<N: Net> Delivery<N> {
    /// Notes that a connection has had frames that its client is to acknowledge.
    pub(super) fn note_asked(&mut self, id: ConnectionId, frames: usize) {
        if frames > 0 && self[id].state() == State::Streaming {
            let now_ms = self.clock().unix_ms();
            let owed = self[id].io_mut().unacknowledged.get_or_insert_default();
            owed.note_sent(frames, now_ms);
        }
    }

    /// Frames that a connection may get before it is asked to acknowledge some.
    pub(super) fn ask_room(&self, id: ConnectionId) -> usize {
        self[id].unacknowledged().map_or(Unacknowledged::FRAMES_MAX, Unacknowledged::room)
    }

    /// True if a subscription gets nothing until its client has acknowledged frames.
    pub(super) fn awaits_acks(&self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let now_ms = self.clock().unix_ms();
        owed_to(&self[id], &self.subscriptions, subscription, now_ms) != Owed::Little
    }

    /// Holds what a subscription lacks, if it waits for acknowledgements. Returns whether it does.
    pub(super) fn hold_for_acks(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let now_ms = self.clock().unix_ms();
        match owed_to(&self[id], &self.subscriptions, subscription, now_ms) {
            Owed::Little => return false,
            // It may just be far away, and gets all of the history that it asked for.
            Owed::Many => self.subscriptions.block(subscription),
            Owed::ForLong => self.subscriptions.block_slow(subscription),
        }
        let owed = self[id].io_mut().unacknowledged.get_or_insert_default();
        if !std::mem::replace(&mut owed.holds, true) {
            let tick = self.clock().tick();
            self.connections_mut().fall_behind(id, tick);
        }
        true
    }

    /// The client is done with so many more frames. Those that it was not sent close the
    /// connection.
    pub(crate) fn acknowledged(&mut self, id: ConnectionId, frames: u32) {
        if self[id].holds_for_acks() {
            self.note_late(id);
        }
        let connection = &mut self[id];
        let owed = connection.io.as_mut().map(|io| &mut io.unacknowledged);
        let Some(owed) = owed.filter(|owed| owed.as_ref().is_some_and(|it| it.owes(frames))) else {
            return self.close_for(id, CloseReason::BadAck);
        };
        let mut has_held = false;
        owed.take_if(|owed| {
            has_held = std::mem::take(&mut owed.holds);
            owed.acknowledge(frames);
            owed.is_empty()
        });
        // Otherwise its turn comes, or its socket's.
        let is_next = !connection.has(Flags::BLOCKED) && !connection.has(Flags::DELIVERY_DEFERRED);
        if has_held && is_next {
            self.flush_subscriptions(id);
            self.note_caught_up(id);
        }
        self.connections_mut().trim_buffers(id);
    }

    /// Gives those of a connection's subscriptions that have waited for too long no more of the
    /// history that they asked for: no pass comes to what is blocked already.
    pub(super) fn note_late(&mut self, id: ConnectionId) {
        let now_ms = self.clock().unix_ms();
        let Delivery { sockets, subscriptions, .. } = self;
        let mut next = sockets[id].newest_subscription;
        while let Some(subscription) = next {
            let owed = owed_to(&sockets[id], subscriptions, subscription, now_ms);
            let lacks_some = !matches!(subscriptions.waiting(subscription), Waiting::Nothing);
            if owed == Owed::ForLong && lacks_some {
                subscriptions.block_slow(subscription);
            }
            next = subscriptions.sibling(subscription);
        }
    }
}
