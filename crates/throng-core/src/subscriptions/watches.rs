//! The messages of a worker that are watched for receipts.
//!
//! No subscription has state of its own for this. A watched message is settled for a subscription
//! when the cursor moves over its offset, or when the subscription ends before that; both happen at
//! few places. Two kinds of subscriptions of the channel are not counted: the one of the excluded
//! connection, and those that began after the publication. A late subscription can be told by the
//! channel's head in the engine when it began, which is kept in `joined` while it may matter:
//! while watched messages wait in the worker's queue, or the subscription is behind one.

use std::collections::HashMap;
use std::num::NonZeroU64;

use super::subscription::SubscriptionId;
use crate::id::LocalId;
use crate::receipt::{Fate, ReceiptPart};

/// Subscriptions of a worker that are kept in [`Watches::joined`]. With more the worker cannot tell
/// whom a watched message is for, and the receipts end as unknown.
const JOINED_MAX: usize = 4096;

/// Identifies a watch. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchId(u64);

#[derive(Debug)]
struct Watch {
    local: LocalId,
    offset: u64,
    /// The subscription of the excluded connection. Another one that gets its id is too late to be
    /// counted, too.
    excluded: Option<SubscriptionId>,
    /// When the message expires, if it does.
    expires_ms: Option<NonZeroU64>,
    part: ReceiptPart,
    is_reported: bool,
}

/// A message that is to be watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    pub(super) local: LocalId,
    pub(super) offset: u64,
    pub(super) expires_ms: Option<NonZeroU64>,
}

/// A subscription that began while a receipt was under way.
#[derive(Debug, Clone, Copy)]
struct Joined {
    local: LocalId,
    /// The channel's head when it began: messages up to here were published before.
    head: u64,
}

/// The watched messages of a worker. Empty unless receipts are under way.
#[derive(Debug, Default)]
pub(super) struct Watches {
    newest: u64,
    watches: HashMap<WatchId, Watch>,
    /// The watches of each followed channel, by offset.
    channels: HashMap<LocalId, Vec<(u64, WatchId)>>,
    joined: HashMap<SubscriptionId, Joined>,
    /// True if notifications are being acted upon among which are watched messages.
    are_taken: bool,
    /// True if `joined` was full since the queue was last empty.
    is_blind: bool,
    /// Watches that have something to report.
    unreported: Vec<WatchId>,
}

impl Watches {
    /// True if no cursor has to be looked at.
    pub(super) fn is_idle(&self) -> bool {
        self.channels.is_empty()
    }

    /// True if it neither watches nor remembers anything.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.joined.is_empty()
    }

    /// True if a subscription began after the message with this offset was published.
    pub(super) fn is_late(&self, id: SubscriptionId, offset: u64) -> bool {
        self.joined.get(&id).is_some_and(|joined| joined.head >= offset)
    }

    /// The watched offsets of a channel after `from` up to `to` that count for a subscription.
    pub(super) fn between(
        &self,
        local: LocalId,
        id: SubscriptionId,
        from: u64,
        to: u64,
    ) -> Vec<(u64, WatchId)> {
        let Some(of_channel) = self.channels.get(&local) else { return Vec::new() };
        let first = of_channel.partition_point(|(offset, _)| *offset <= from);
        let passed = of_channel[first..].iter().take_while(|(offset, _)| *offset <= to);
        let is_counted = |&&(offset, watch): &&(u64, WatchId)| {
            !self.is_late(id, offset)
                && self.watches.get(&watch).is_some_and(|watch| watch.excluded != Some(id))
        };
        passed.filter(is_counted).copied().collect()
    }

    /// Settles a message for one subscription.
    pub(super) fn settle(&mut self, id: WatchId, fate: Fate) {
        // The receipt has ended meanwhile.
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.part.settle(fate, 1);
        if watch.is_reported {
            watch.is_reported = false;
            self.unreported.push(id);
        }
    }

    pub(super) fn settle_all(&mut self, passed: Vec<(u64, WatchId)>, fate: Fate) {
        passed.into_iter().for_each(|(_, watch)| self.settle(watch, fate));
    }

    pub(super) fn is_expired(&self, id: WatchId, now_ms: u64) -> bool {
        let expires_ms = self.watches.get(&id).and_then(|watch| watch.expires_ms);
        expires_ms.is_some_and(|expires_ms| expires_ms.get() <= now_ms)
    }

    fn remove(&mut self, id: WatchId) {
        let Some(Watch { local, offset, .. }) = self.watches.remove(&id) else { return };
        // The channel is followed no more.
        let Some(of_channel) = self.channels.get_mut(&local) else { return };
        of_channel.retain(|watch| *watch != (offset, id));
        if of_channel.is_empty() {
            self.channels.remove(&local);
        }
    }

    /// Ends all receipts as unknown, and those whose messages still wait in the queue.
    fn lose_all(&mut self) {
        self.watches.clear();
        self.channels.clear();
        self.joined.clear();
        self.unreported.clear();
        self.is_blind = true;
    }

    /// True if messages of the queue cannot be watched, because it is not known who is late.
    pub(super) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// The number of subscriptions of a channel that began after a message was published.
    pub(super) fn late(&self, local: LocalId, offset: u64) -> u32 {
        let is_late = |joined: &&Joined| joined.local == local && joined.head >= offset;
        self.joined.values().filter(is_late).count() as u32
    }

    /// The newest watched offset of a channel.
    pub(super) fn newest_offset(&self, local: LocalId) -> Option<u64> {
        Some(self.channels.get(&local)?.last()?.0)
    }

    /// Watches a message, which is the newest of its channel.
    pub(super) fn add(
        &mut self,
        Watched { local, offset, expires_ms }: Watched,
        excluded: Option<SubscriptionId>,
        part: ReceiptPart,
    ) {
        self.newest += 1;
        let id = WatchId(self.newest);
        let watch = Watch { local, offset, excluded, expires_ms, part, is_reported: true };
        self.watches.insert(id, watch);
        self.channels.entry(local).or_default().push((offset, id));
    }

    /// True if watched messages are among the notifications that are being acted upon.
    pub(super) fn are_taken(&self) -> bool {
        self.are_taken
    }

    /// Says whether watched messages are among the notifications that are acted upon from now on.
    pub(super) fn begin_notifications(&mut self, are_watched: bool) {
        self.are_taken = are_watched;
    }

    /// All notifications have been acted upon. Keeps only those late subscriptions that are still
    /// behind a watched message.
    pub(super) fn end_notifications(&mut self, is_behind: impl Fn(SubscriptionId, u64) -> bool) {
        (self.are_taken, self.is_blind) = (false, false);
        let channels = &self.channels;
        self.joined.retain(|&id, joined| {
            let newest = channels.get(&joined.local).and_then(|all| all.last());
            newest.is_some_and(|&(offset, _)| is_behind(id, offset))
        });
    }

    /// Remembers a subscription that may be late, and the engine's head of its channel.
    pub(super) fn note_joined(&mut self, id: SubscriptionId, local: LocalId, head: u64) {
        if self.is_blind {
            return;
        }
        if self.joined.len() >= JOINED_MAX {
            return self.lose_all();
        }
        self.joined.insert(id, Joined { local, head });
    }

    /// Forgets a subscription that ends. Another one may get its id.
    pub(super) fn forget_joined(&mut self, id: SubscriptionId) {
        self.joined.remove(&id);
    }

    /// Forgets a channel that has no subscription left. Held state stays.
    pub(super) fn forget_channel(&mut self, local: LocalId) {
        self.channels.remove(&local);
    }

    /// Adds to the receipts what was settled since the last call.
    pub(super) fn report(&mut self) {
        while let Some(id) = self.unreported.pop() {
            // Its receipt has ended meanwhile.
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            watch.part.report();
            watch.is_reported = true;
            if watch.part.left() == 0 {
                self.remove(id);
            }
        }
    }

    /// Stops watching for receipts that have ended.
    pub(super) fn remove_ended(&mut self) {
        let ended = self.watches.iter().filter(|(_, watch)| !watch.part.is_open());
        for id in ended.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }
}
