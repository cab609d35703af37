//! A channel that this worker follows.

use super::epochs::EpochRef;
use super::replay_buffer::ReplayBuffer;
use super::subscription::SubscriptionId;
use crate::engine::Followed;
use crate::id::ChannelId;
use crate::rules::RuleId;
use crate::slab::Slab;

/// A worker's state of each channel that it follows. There may be a million, as a user's inbox is
/// one; hence the narrow fields.
#[derive(Debug)]
pub(super) struct LocalChannel {
    /// The offset of the newest message that this worker knows of.
    pub(super) head: u64,
    /// The messages that some subscription still lacks; `None` while all have all.
    pub(super) buffer: Option<Box<ReplayBuffer>>,
    /// The engine's id. It tells a notification for this channel from a late one for the channel
    /// that had its place before.
    pub(super) channel: ChannelId,
    /// The start of the circular list of subscriptions; `None` only until the first one is linked.
    pub(super) first: Option<SubscriptionId>,
    /// The length of the circular list.
    pub(super) count: u32,
    /// Subscriptions whose connection takes no more for now.
    pub(super) blocked: u32,
    /// Subscriptions that have not been written all of their backlog.
    pub(super) catching_up: u32,
    /// The epoch of the channel's log: with an offset it makes an id.
    pub(super) epoch: EpochRef,
    /// The rule with the channel's lag limit and policy.
    pub(super) rule: RuleId,
    /// True if the channel is a user's inbox.
    pub(super) is_user: bool,
}

const _: () = assert!(Slab::<LocalChannel>::ENTRY_BYTES <= 40);

impl LocalChannel {
    pub(super) fn new(followed: &Followed, epoch: EpochRef, is_user: bool) -> LocalChannel {
        LocalChannel {
            head: followed.head.offset,
            buffer: None,
            channel: followed.channel,
            first: None,
            count: 0,
            blocked: 0,
            catching_up: 0,
            epoch,
            rule: followed.rule,
            is_user,
        }
    }

    /// The replay buffer, which is created if there is none.
    pub(super) fn buffer_mut(&mut self) -> &mut ReplayBuffer {
        let head = self.head;
        self.buffer.get_or_insert_with(|| Box::new(ReplayBuffer::new(head)))
    }
}
