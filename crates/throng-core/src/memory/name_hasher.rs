//! Hashes the names of channels, for shards and tables alike.
//!
//! A process that takes over hashes with the same seed, so that it knows the channels of which the
//! other one had only hashes. A build with another version of the hash does not know them.

use std::hash::{Hash as _, Hasher as _};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use super::idempotency::{KEY_BYTES, Seed};

#[derive(Debug)]
pub(super) struct NameHasher {
    seed: Seed,
    of_hasher: u64,
    shared: SharedSeed,
}

impl NameHasher {
    pub(super) fn new(seed: Seed) -> NameHasher {
        let half = |from| {
            let bytes = std::array::from_fn(|at| seed.0[from + at]);
            u64::from_le_bytes(bytes)
        };
        let shared = SharedSeed::from_u64(half(KEY_BYTES / 2));
        NameHasher { seed, of_hasher: half(0), shared }
    }

    pub(super) fn seed(&self) -> Seed {
        self.seed
    }

    /// The hash of a channel's key.
    pub(super) fn hash(&self, key: &str) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.of_hasher, &self.shared);
        key.hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_the_seed_matters() {
        let hash = |at: usize| {
            let mut seed = [0; KEY_BYTES];
            seed[at] = 1;
            NameHasher::new(Seed(seed)).hash("news")
        };
        assert_eq!(hash(0), hash(0));
        let all: std::collections::HashSet<u64> = (0..KEY_BYTES).map(hash).collect();
        assert_eq!(all.len(), KEY_BYTES);
    }
}
