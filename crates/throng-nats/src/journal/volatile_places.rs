//! A limit for the volatile messages that wait to be sent to other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages that may wait to be sent. More would be late in any case.
const WAITING_MAX: usize = 4_096;

/// Bytes of their bodies.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// How many messages wait to be sent, and their bytes.
#[derive(Debug, Default)]
pub struct VolatilePlaces {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

/// The place of a message that waits to be sent.
#[derive(Debug)]
pub struct VolatilePlace {
    places: Arc<VolatilePlaces>,
    bytes: usize,
}

impl VolatilePlaces {
    /// A place for a message; `None` if too many wait. Several threads at once may exceed the limit
    /// by a message each.
    pub fn take(self: &Arc<VolatilePlaces>, bytes: usize) -> Option<VolatilePlace> {
        let is_full = self.messages.load(Ordering::Relaxed) >= WAITING_MAX
            || self.bytes.load(Ordering::Relaxed) + bytes > WAITING_BYTES_MAX;
        if is_full {
            return None;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(VolatilePlace { places: Arc::clone(self), bytes })
    }
}

impl Drop for VolatilePlace {
    fn drop(&mut self) {
        self.places.messages.fetch_sub(1, Ordering::Relaxed);
        self.places.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_when_messages_are_sent() {
        let places = Arc::<VolatilePlaces>::default();
        let taken: Vec<_> = std::iter::from_fn(|| places.take(1)).collect();
        assert_eq!(taken.len(), WAITING_MAX);
        drop(taken);
        assert!(places.take(WAITING_BYTES_MAX).is_some());
        let large = places.take(WAITING_BYTES_MAX);
        assert!(large.is_some() && places.take(1).is_none());
    }
}
