//! The room in memory that each publisher takes with states and creations.
//!
//! Publishers are told apart by few bits of a hash, without a table that they could fill. Two that
//! are the same here share what is one's, which costs them nothing while there is room.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::idempotency::Seed;
use crate::holder::RoomHolder;
use crate::idempotency_key::{IdempotencyKey, Publisher};
use crate::publication::PublishError;
use crate::room::RoomGate;

/// As many as are told apart, in 32 KiB.
const HOLDERS: usize = 1 << 12;

const _: () = assert!(HOLDERS <= 1 << u16::BITS);

#[derive(Debug)]
pub(super) struct Holders {
    /// The bytes of each. [`RoomHolder::NOBODY`] is not counted.
    held: Box<[AtomicUsize]>,
    gate: RoomGate,
}

impl Default for Holders {
    fn default() -> Holders {
        let held = (0..HOLDERS).map(|_| AtomicUsize::new(0)).collect();
        Holders { held, gate: RoomGate::default() }
    }
}

impl Holders {
    /// The same for each process with this seed. Server keys, and requests at the admin listener,
    /// are the application, which may take all of its own room.
    pub(super) fn holder(seed: &Seed, publisher: Publisher<'_>) -> RoomHolder {
        if matches!(publisher, Publisher::ServerKey(_) | Publisher::Operator) {
            return RoomHolder::NOBODY;
        }
        let key = seed.key("", IdempotencyKey::new(publisher, "").scoped());
        let hash = u16::from_le_bytes([key.0[0], key.0[1]]);
        RoomHolder::numbered(1 + hash % (HOLDERS as u16 - 1))
    }

    /// Checks that a publisher may take this number of free bytes.
    pub(super) fn check(
        &self,
        holder: RoomHolder,
        bytes: usize,
        free: usize,
    ) -> Result<(), PublishError> {
        self.gate.admit((holder, self.held(holder) as u64), bytes as u64, free as u64)
    }

    fn held(&self, holder: RoomHolder) -> usize {
        self.of(holder).map_or(0, |held| held.load(Ordering::Relaxed))
    }

    fn of(&self, holder: RoomHolder) -> Option<&AtomicUsize> {
        self.held.get(usize::from(holder.number())).filter(|_| holder != RoomHolder::NOBODY)
    }

    /// Counts bytes that publishers hold more, or less.
    pub(super) fn count(&self, changes: impl Iterator<Item = (RoomHolder, isize)>) {
        for (holder, bytes) in changes {
            if let Some(held) = self.of(holder) {
                held.fetch_add(bytes as usize, Ordering::Relaxed);
            }
        }
    }

    /// As [`RoomGate::refused`].
    pub(super) fn refused(&self) -> [u64; 2] {
        self.gate.refused()
    }

    /// What all publishers hold.
    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.held.iter().map(|held| held.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_gets_half_of_what_others_have_left() {
        let (holders, seed) = (Holders::default(), Seed::numbered(7));
        let [ann, bob] = ["ann", "bob"].map(|it| Holders::holder(&seed, Publisher::User(it)));
        assert_ne!(ann, bob);
        for application in [Publisher::ServerKey("ann"), Publisher::Operator] {
            assert_eq!(Holders::holder(&seed, application), RoomHolder::NOBODY);
        }
        let (room, mut all) = (1_000, 0);
        let mut fill = |holder| {
            let mut taken = 0;
            while holders.check(holder, 10, room - all).is_ok() {
                holders.count([(holder, 10)].into_iter());
                (all, taken) = (all + 10, taken + 10);
            }
            taken
        };
        assert_eq!([fill(ann), fill(bob), fill(ann)], [500, 250, 0]);
        assert_eq!(fill(RoomHolder::NOBODY), 250, "the application gets all that is left");
        assert_eq!(holders.check(bob, 10, 0), Err(PublishError::AllStatesFull));
        assert_eq!(holders.refused(), [3, 2]);
        holders.count([(ann, -500), (bob, -250), (bob, 10)].into_iter());
        assert_eq!(holders.all(), 10);
        assert_eq!(holders.check(ann, 250, 250), Ok(()));
    }
}
