//! Shares of the publications that wait for a journal of several nodes: a publisher that has many
//! under way, in however many channels, leaves places to others.
//!
//! Clients without a token and key are not told apart here: their channels have shares.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::{PublishError, Publisher};

/// Publications of all publishers that may wait: as many as the engine has places.
const PLACES: usize = 8_192;

/// The publications under way over HTTP, by publisher.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    taken: Mutex<Taken>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By the hash of the publisher.
    owned: HashMap<u64, usize>,
}

/// A place of a publication, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shares: Arc<Shares>,
    owner: u64,
}

impl Shares {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, if more are free than the publisher has; `None` for clients that are not told
    /// apart.
    ///
    /// # Errors
    ///
    /// The publisher has used up its share.
    pub(crate) fn take(
        self: &Arc<Shares>,
        publisher: Publisher<'_>,
    ) -> Result<Option<Place>, PublishError> {
        if matches!(publisher, Publisher::Anonymous | Publisher::Operator) {
            return Ok(None);
        }
        let owner = self.hasher.hash_one(publisher);
        let mut taken = self.lock();
        let own = taken.owned.get(&owner).copied().unwrap_or(0);
        if own >= PLACES.saturating_sub(taken.all) {
            return Err(PublishError::Busy);
        }
        taken.all += 1;
        taken.owned.insert(owner, own + 1);
        Ok(Some(Place { shares: Arc::clone(self), owner }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        taken.all -= 1;
        if let Some(own) = taken.owned.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                taken.owned.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_gets_half_of_the_places_that_others_have_left() {
        let shares = Arc::<Shares>::default();
        let fill = |name: &str| {
            let take = || shares.take(Publisher::User(name)).ok().flatten();
            std::iter::from_fn(take).collect::<Vec<_>>()
        };
        let first = fill("ann");
        assert_eq!(first.len(), PLACES / 2);
        assert_eq!(fill("bob").len(), PLACES / 4);
        assert!(fill("ann").is_empty() && shares.take(Publisher::ServerKey("app")).is_ok());
        drop(first);
        assert_eq!(fill("ann").len(), PLACES / 2);
        assert!(shares.lock().owned.is_empty());
    }

    #[test]
    fn clients_that_are_not_told_apart_take_no_place() {
        let shares = Arc::<Shares>::default();
        assert!(matches!(shares.take(Publisher::Anonymous), Ok(None)));
    }
}
