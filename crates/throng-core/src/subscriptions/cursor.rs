//! Cursors of 32 bits.
//!
//! A subscription keeps only the low half of its cursor; the channel's head gives the other half.
//! That works as long as no cursor is 2^31 behind the head. So each time the head passes a multiple
//! of [`REACH`], [`SubscriptionTable::pull_up`] moves the cursors that are left behind, and those
//! subscriptions get a gap.

use super::SubscriptionTable;
use crate::id::LocalId;
use crate::message::Message;

pub(super) const REACH_BITS: u32 = 30;

/// A replay buffer spans fewer offsets than this. A subscription whose cursor is further behind has
/// a gap.
pub(super) const REACH: u64 = 1 << REACH_BITS;

/// How far `cursor`, the low half of an offset, is behind `offset`; negative if it is ahead.
pub(super) fn distance(offset: u64, cursor: u32) -> i32 {
    (offset as u32).wrapping_sub(cursor).cast_signed()
}

/// The offset whose low half is `cursor`, in a channel whose newest message is `head`.
pub(super) fn full_cursor(head: u64, cursor: u32) -> u64 {
    head.wrapping_add_signed(-i64::from(distance(head, cursor)))
}

/// The lowest floor that a replay buffer may have while `head` is the channel's head. It never
/// falls, so that a cursor below it has a gap for good.
pub(super) fn oldest_floor(head: u64) -> u64 {
    head.saturating_sub(REACH - 1)
}

impl SubscriptionTable {
    /// Brings replay buffer and cursors within [`REACH`] of the offset of `news`, which is about to
    /// become the channel's head. Visits all subscriptions, but only once in 2^30 offsets.
    pub(super) fn pull_up(&mut self, local: LocalId, news: &Message) {
        let head = news.id.offset;
        let oldest = oldest_floor(head);
        let channel = &mut self.channels[local.index()];
        let known = channel.head;
        if let Some(buffer) = &mut channel.buffer
            && buffer.floor() < oldest
        {
            // Drops all of it, although the newer part could stay: such a buffer spans hours.
            self.buffer_bytes -= buffer.bytes();
            self.pending_bytes -= buffer.pending_bytes();
            buffer.restart_after(head - 1);
        }
        let mut next = channel.first;
        for _ in 0..channel.count {
            let Some(id) = next else { unreachable!("the list is circular") };
            let subscription = &mut self.subscriptions[id.index()];
            let cursor = full_cursor(known, subscription.cursor);
            if cursor < oldest {
                // A subscription that lacks more than the news has a gap. A backlog may lower the
                // floor later, so its cursor goes below every floor to come.
                let lacks_only_news = news.previous <= cursor;
                subscription.cursor = (if lacks_only_news { head - 1 } else { oldest - 1 }) as u32;
            }
            next = Some(subscription.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_found_from_its_low_half() {
        for head in [0, 5, u64::from(u32::MAX), 1 << 32, (7 << 32) + 3, u64::MAX] {
            for behind in [0, 1, 1000, REACH, 2 * REACH - 1] {
                let Some(cursor) = head.checked_sub(behind) else { continue };
                assert_eq!(full_cursor(head, cursor as u32), cursor, "{behind} behind {head}");
            }
        }
    }
}
