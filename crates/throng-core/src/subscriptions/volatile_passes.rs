//! The volatile messages of all channels, and how far the pass of each has come.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::subscription::SubscriptionId;
use crate::id::LocalId;
use crate::message::Message;

/// Volatile messages of all channels that may wait for their passes, or are in them. Behind
/// more, a message would be worthless before its turn.
pub(super) const VOLATILE_MESSAGES_MAX: usize = 4_096;

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
    pub(super) rest: Option<Rest>,
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
    /// True if another message of this weight may wait.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.messages < VOLATILE_MESSAGES_MAX && self.bytes + bytes <= VOLATILE_BYTES_MAX
    }

    pub(super) fn add(&mut self, local: LocalId, message: &Arc<Message>) {
        self.messages += 1;
        self.bytes += message.weight_bytes();
        let pass = self.by_channel.entry(local).or_insert_with(|| {
            self.turns.push_back(local);
            VolatilePass::default()
        });
        pass.messages.push_back(Arc::clone(message));
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
            let over = pass.messages.pop_front();
            self.subtract(over.iter());
        } else if rest.next == id {
            rest.next = next;
        } else if rest.last == id {
            rest.last = before;
        }
    }
}
