//! Counts the state of a channel, and drops tombstones.

use throng_core::{StateLimits, TOMBSTONE_MS, TOMBSTONES_MIN};

use super::request::Counted;
use super::scan::ScanRead;
use crate::api::state::{KnownState, StateCopy};

/// Tombstones that a state has, at most; then the oldest are dropped.
pub(super) fn tombstones_max(limits: StateLimits) -> u64 {
    limits.max_keys.max(TOMBSTONES_MIN) as u64
}

/// Counts a state that was read; `None` without one.
pub(super) fn count(read: ScanRead, limits: StateLimits, server_ms: u64) -> Option<Counted> {
    let ScanRead { known, copies, .. } = read;
    let KnownState { sequence, record } = known?;
    let values = copies.values().filter(|copy| !copy.is_tombstone());
    let bytes = values.clone().map(|copy| copy.bytes).sum();
    let expires = |copy: &&StateCopy| copy.message.expires_in_ms.is_some();
    let expiring = values.clone().filter(expires).count() as u64;
    let keys = values.count() as u64;
    let mut removed: Vec<_> = copies.values().filter(|copy| copy.is_tombstone()).collect();
    removed.sort_by_key(|copy| copy.message.sequence);
    // A quarter more than needed, so that the next count is some time away.
    let surplus = (removed.len() as u64).saturating_sub(tombstones_max(limits) * 3 / 4);
    let is_over = |(at, copy): &(usize, &StateCopy)| {
        (*at as u64) < surplus
            || copy.message.wall_ms.saturating_add(TOMBSTONE_MS) <= server_ms
            || copy.message.sequence <= record.floor
    };
    let dropped: Vec<_> = removed.iter().copied().enumerate().take_while(is_over).collect();
    let floor = dropped.last().map_or(0, |(_, copy)| copy.message.sequence);
    Some(Counted {
        sequence,
        keys,
        bytes,
        expiring,
        removed: (removed.len() - dropped.len()) as u64,
        floor: record.floor.max(floor),
        dropped: dropped.into_iter().map(|(_, copy)| Box::from(copy.key())).collect(),
    })
}
