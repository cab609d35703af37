//! The volatile messages of all channels, and how far the pass of each has come.
//!
//! A channel may have no more of them than there are free places. So a stream to one channel fills
//! half of what there is, and each further one leaves room for the next: no publisher displaces the
//! messages of others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::subscription::SubscriptionId;
use crate::id::LocalId;
use crate::message::Message;

/// Volatile messages of all channels that may wait for their passes, or are in them. Behind
/// more, a message would be worthless before its turn. A channel alone has half of it.
pub(super) const VOLATILE_MESSAGES_MAX: usize = 8_192;

/// Bytes of these messages.
pub(super) const VOLATILE_BYTES_MAX: usize = 8 << 20;

/// The part of a list that a pass has yet to visit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest {
    pub(super) next: SubscriptionId,
    pub(super) last: SubscriptionId,
}

/// The volatile messages of a channel: at least one.
#[derive(Debug, Default)]
pub(super) struct VolatilePass {
    /// The first one's pass is under way if there is a `rest`, or begins.
    pub(super) messages: VecDeque<Arc<Message>>,
    pub(super) bytes: usize,
    pub(super) rest: Option<Rest>,
}

impl VolatilePass {
    /// Takes the first message out, whose pass is over.
    pub(super) fn pop(&mut self) -> Option<Arc<Message>> {
        let over = self.messages.pop_front()?;
        self.bytes -= over.weight_bytes();
        Some(over)
    }
}

/// Whether another volatile message may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// Its channel has its share.
    OverShare,
    /// The other channels have everything.
    Full,
}

/// The volatile messages of all channels.
#[derive(Debug, Default)]
pub(super) struct VolatilePasses {
    pub(super) by_channel: HashMap<LocalId, VolatilePass>,
    /// The channels in the order of their turns, and some that have ended.
    pub(super) turns: VecDeque<LocalId>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl VolatilePasses {
    /// Whether another message of this weight may wait for its channel's pass.
    pub(super) fn room(&self, local: LocalId, bytes: usize) -> Room {
        let own = self.by_channel.get(&local);
        let (own_messages, own_bytes) = own.map_or((0, 0), |own| (own.messages.len(), own.bytes));
        let is_free = own_messages < VOLATILE_MESSAGES_MAX - self.messages
            && own_bytes + bytes <= VOLATILE_BYTES_MAX - self.bytes;
        match own_messages {
            _ if is_free => Room::Free,
            0 => Room::Full,
            _ => Room::OverShare,
        }
    }

    pub(super) fn add(&mut self, local: LocalId, message: &Arc<Message>) {
        let bytes = message.weight_bytes();
        self.messages += 1;
        self.bytes += bytes;
        let pass = self.by_channel.entry(local).or_insert_with(|| {
            self.turns.push_back(local);
            VolatilePass::default()
        });
        pass.messages.push_back(Arc::clone(message));
        pass.bytes += bytes;
    }

    /// Counts messages that are over.
    pub(super) fn subtract<'m>(&mut self, messages: impl Iterator<Item = &'m Arc<Message>>) {
        for message in messages {
            self.messages -= 1;
            self.bytes -= message.weight_bytes();
        }
    }

    /// A subscription leaves its list, in which it has these neighbours: its place in a pass is its
    /// successor's.
    pub(super) fn pass_on(
        &mut self,
        local: LocalId,
        id: SubscriptionId,
        (before, next): (SubscriptionId, SubscriptionId),
    ) {
        // Mostly there are no volatile messages.
        if self.by_channel.is_empty() {
            return;
        }
        let Some(pass) = self.by_channel.get_mut(&local) else { return };
        let Some(rest) = &mut pass.rest else { return };
        if rest.next == id && rest.last == id {
            pass.rest = None;
            let over = pass.pop();
            self.subtract(over.iter());
        } else if rest.next == id {
            rest.next = next;
        } else if rest.last == id {
            rest.last = before;
        }
    }
}
