//! The number of a subscription: where its channel is kept.

/// Sids have the slot, and below it a number that tells subscriptions of one slot apart.
const GENERATION_BITS: u32 = 16;

/// Slots begin above the sids of the journal itself.
const SLOT_FIRST: u64 = 1;

/// A slot and the generation that it had: names a subscription even after its slot was reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subscription {
    pub(super) slot: u32,
    pub(super) generation: u16,
}

impl Subscription {
    /// The number by which the server knows the subscription.
    pub(super) fn sid(self) -> u64 {
        (u64::from(self.slot) + SLOT_FIRST) << GENERATION_BITS | u64::from(self.generation)
    }

    /// The subscription with this number.
    pub(super) fn of_sid(sid: u64) -> Option<Subscription> {
        let slot = (sid >> GENERATION_BITS).checked_sub(SLOT_FIRST)?;
        Some(Subscription { slot: u32::try_from(slot).ok()?, generation: sid as u16 })
    }
}
