//! The room for values of keys and creations: who may take more of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::holder::RoomHolder;
use crate::publication::PublishError;

/// Decides what has room, and counts what has none.
#[derive(Debug, Default)]
pub struct RoomGate {
    /// What was refused because its publisher holds as much as is free.
    over_share: AtomicU64,
    /// What was refused because nothing is free.
    full: AtomicU64,
}

impl RoomGate {
    /// Lets a publisher that holds so many bytes take more of those that are free, but no more than
    /// it leaves to others.
    ///
    /// # Errors
    ///
    /// There is no room, or the publisher has its share.
    pub fn admit(
        &self,
        (holder, held): (RoomHolder, u64),
        bytes: u64,
        free: u64,
    ) -> Result<(), PublishError> {
        if bytes > free {
            self.full.fetch_add(1, Ordering::Relaxed);
            return Err(PublishError::AllStatesFull);
        }
        if holder != RoomHolder::NOBODY && held.saturating_add(bytes) > free {
            self.over_share.fetch_add(1, Ordering::Relaxed);
            return Err(PublishError::StatesOverShare);
        }
        Ok(())
    }

    /// How much was refused since the start: because of a share, and for lack of room.
    pub fn refused(&self) -> [u64; 2] {
        [&self.over_share, &self.full].map(|count| count.load(Ordering::Relaxed))
    }
}
