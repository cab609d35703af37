//! What each publisher holds of the room that states and creations have in memory: they are not
//! dropped for others' messages, so a publisher that fills it must not leave others without any.
//!
//! Publishers are told apart by few bits of a hash, without a table that they could fill. Two that
//! are the same here share what is one's, which costs them nothing while there is room.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::idempotency::Seed;
use crate::holder::RoomHolder;
use crate::idempotency_key::{IdempotencyKey, Publisher};
use crate::publication::PublishError;

/// As many as are told apart, in 32 KiB.
const HOLDERS: usize = 1 << 12;

const _: () = assert!(HOLDERS <= 1 << u16::BITS);

#[derive(Debug)]
pub(super) struct Holders {
    /// The bytes of each. [`RoomHolder::NOBODY`] is not counted.
    held: Box<[AtomicUsize]>,
    /// What was refused because its publisher holds as much as is free.
    over_share: AtomicU64,
    /// What was refused because nothing is free.
    full: AtomicU64,
}

impl Default for Holders {
    fn default() -> Holders {
        let held = (0..HOLDERS).map(|_| AtomicUsize::new(0)).collect();
        Holders { held, over_share: AtomicU64::new(0), full: AtomicU64::new(0) }
    }
}

impl Holders {
    /// The same for each process with this seed.
    pub(super) fn holder(seed: &Seed, publisher: Publisher<'_>) -> RoomHolder {
        let key = seed.key("", IdempotencyKey::new(publisher, "").scoped());
        let hash = u16::from_le_bytes([key.0[0], key.0[1]]);
        RoomHolder::numbered(1 + hash % (HOLDERS as u16 - 1))
    }

    /// Checks that a publisher may take so many bytes of those that are free: it gets no more than
    /// it leaves to others.
    pub(super) fn check(
        &self,
        holder: RoomHolder,
        bytes: usize,
        free: usize,
    ) -> Result<(), PublishError> {
        if bytes > free {
            self.full.fetch_add(1, Ordering::Relaxed);
            return Err(PublishError::AllStatesFull);
        }
        if holder != RoomHolder::NOBODY && self.held(holder).saturating_add(bytes) > free {
            self.over_share.fetch_add(1, Ordering::Relaxed);
            return Err(PublishError::StatesOverShare);
        }
        Ok(())
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

    /// How much was refused: because of a share, and for lack of room.
    pub(super) fn refused(&self) -> [u64; 2] {
        [&self.over_share, &self.full].map(|count| count.load(Ordering::Relaxed))
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
        assert_eq!(fill(RoomHolder::NOBODY), 250, "what the server has to keep");
        assert_eq!(holders.check(bob, 10, 0), Err(PublishError::AllStatesFull));
        assert_eq!(holders.refused(), [3, 2]);
        holders.count([(ann, -500), (bob, -250), (bob, 10)].into_iter());
        assert_eq!(holders.all(), 10);
        assert_eq!(holders.check(ann, 250, 250), Ok(()));
    }
}
