//! Cursors of 32 bits.
//!
//! A subscription keeps only the low half of its cursor; the channel's head gives the other half.
//! That works as long as no cursor is 2^31 behind the head. So each time the head passes a multiple
//! of [`REACH`], the table's `pull_up` moves the cursors that are left behind, and those
//! subscriptions get a gap.
//!
//! A subscription may start ahead of the head, while notifications of messages before its cursor
//! are on their way. If that is [`REACH`] ahead or more, the table's `bring_into_reach` moves the
//! head to within reach of it, and those that are left behind get a gap.

pub(super) const REACH_BITS: u32 = 30;

/// A replay buffer spans fewer offsets than this. A subscription whose cursor is further behind has
/// a gap.
pub(crate) const REACH: u64 = 1 << REACH_BITS;

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
