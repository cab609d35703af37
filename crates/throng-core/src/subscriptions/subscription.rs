//! A worker's state of each subscription.

use std::num::NonZeroU32;

use crate::id::{ConnectionId, LocalId};
use crate::slab::Slab;

/// Identifies a subscription within its table, which reuses the id once the subscription has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(NonZeroU32);

impl SubscriptionId {
    /// No id comes before.
    pub(super) const FIRST: SubscriptionId = SubscriptionId(NonZeroU32::MIN);
    /// No id comes behind.
    pub(super) const LAST: SubscriptionId = SubscriptionId(NonZeroU32::MAX);

    /// The subscription at this index of the table.
    pub(super) fn from_index(index: u32) -> SubscriptionId {
        SubscriptionId(NonZeroU32::MIN.saturating_add(index))
    }

    /// The index in the table.
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Marks a blocked subscription.
pub(super) const BLOCKED: u32 = 1 << 31;

/// Marks a subscription that was not written all of its backlog.
pub(super) const CATCHING_UP: u32 = 1 << 30;

/// Marks a subscription whose connection follows what the server keeps for its user.
pub(super) const KEPT: u32 = 1 << 29;

/// Marks a subscription that the server keeps for its connection's user, and that the client has
/// not asked for itself.
pub(super) const UNASKED: u32 = 1 << 28;

/// Marks a subscription that is held back for a moment.
pub(super) const HELD: u32 = 1 << 27;

/// The bits of the connection's index.
const INDEX: u32 = HELD - 1;

/// The connection of a subscription, and the subscription's marks in the five bits that the index
/// of a connection does not need.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarkedConnection(u32);

impl MarkedConnection {
    pub(super) fn new(connection: ConnectionId, marks: u32) -> MarkedConnection {
        debug_assert!(connection.index() <= INDEX, "a worker has fewer connections");
        MarkedConnection(connection.index() | marks)
    }

    pub(super) fn id(self) -> ConnectionId {
        ConnectionId::new(self.0 & INDEX)
    }

    pub(super) fn has(self, mark: u32) -> bool {
        self.0 & mark != 0
    }

    /// Sets a mark. Returns whether that changed it.
    pub(super) fn set(&mut self, mark: u32) -> bool {
        let is_change = !self.has(mark);
        self.0 |= mark;
        is_change
    }

    /// Clears a mark. Returns whether that changed it.
    pub(super) fn clear(&mut self, mark: u32) -> bool {
        let is_change = self.has(mark);
        self.0 &= !mark;
        is_change
    }
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) connection: MarkedConnection,
    pub(super) local: LocalId,
    /// The low half of the offset of the last message written.
    pub(super) cursor: u32,
    /// The neighbours in the channel's circular list.
    pub(super) before: SubscriptionId,
    pub(super) next: SubscriptionId,
    /// The connection's next subscription.
    pub(super) sibling: Option<SubscriptionId>,
}

const _: () = assert!(Slab::<Subscription>::ENTRY_BYTES == 24, "the budget of a subscription");
