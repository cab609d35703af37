//! Where the tables that are ordered by time begin.
//!
//! Entries removed from the start of a table slow down reads from there, until the library has
//! merged its files: such a read passes over all of them. So the start is remembered.

use super::format::{TIME_BYTES, Table};
use crate::storage::Space;

/// No entry of a table of expiries is earlier, by its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Earliest {
    messages: u64,
    keys: u64,
    states: u64,
}

impl Default for Earliest {
    /// There are none.
    fn default() -> Earliest {
        Earliest { messages: u64::MAX, keys: u64::MAX, states: u64::MAX }
    }
}

impl Earliest {
    /// Nothing is known.
    pub(super) const UNKNOWN: Earliest = Earliest { messages: 0, keys: 0, states: 0 };

    fn of(&mut self, space: Space) -> Option<&mut u64> {
        match space {
            Space::Expiry => Some(&mut self.messages),
            Space::KeyExpiry => Some(&mut self.keys),
            _ => None,
        }
    }

    pub(super) fn get(mut self, space: Space) -> u64 {
        self.of(space).map_or(0, |earliest| *earliest)
    }

    /// The same of the table of states that is ordered by time.
    pub(super) fn states(&self) -> u64 {
        self.states
    }

    pub(super) fn set_states(&mut self, at_ms: u64) {
        self.states = at_ms;
    }

    pub(super) fn set(&mut self, space: Space, at_ms: u64) {
        self.of(space).into_iter().for_each(|earliest| *earliest = at_ms);
    }

    /// An entry is added to a table.
    pub(super) fn note(&mut self, space: Space, key: &[u8]) {
        if let Some(earliest) = self.of(space) {
            *earliest = (*earliest).min(time_of(key));
        }
        if space == Space::Records
            && let Some((table, at)) = key.split_first()
            && *table == Table::KeyExpiry as u8
        {
            self.states = self.states.min(time_of(at));
        }
    }

    /// The earlier of two.
    pub(super) fn with(self, other: Earliest) -> Earliest {
        Earliest {
            messages: self.messages.min(other.messages),
            keys: self.keys.min(other.keys),
            states: self.states.min(other.states),
        }
    }
}

/// The time of an entry; as early as can be if it has none.
pub(super) fn time_of(key: &[u8]) -> u64 {
    key.first_chunk::<TIME_BYTES>().map_or(0, |at_ms| u64::from_be_bytes(*at_ms))
}
