//! The memory of all open parts, and what each client holds of it.

use std::collections::HashMap;

use crate::later::AskerId;

/// A client holds this part of the pot at most.
const SHARE_PART: usize = 4;

/// Beyond this part of the pot, a client that holds something gets nothing more.
const RESERVED_PART: usize = 2;

/// An empty table with room for more than these clients is given back.
const CLIENTS_KEPT: usize = 1_024;

/// The memory of the parts, and counts of refusals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartsMetrics {
    /// Bytes of all open parts.
    pub bytes: u64,
    /// The limit of that.
    pub max_bytes: u64,
    /// Readings that were refused, as others held the memory.
    pub refused: u64,
    /// Readings that were given less than they asked for, as the client held its share.
    pub shortened: u64,
}

/// The answer to a request for bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// This many bytes. None if it holds all that it may.
    Bytes(usize),
    /// Nothing yet: it is not known how much is needed of what is reserved.
    Unknown,
    /// Nothing, until others have given back what they hold.
    Full,
}

#[derive(Debug, Default)]
pub(super) struct Pot {
    max_bytes: usize,
    bytes: usize,
    /// The part of them that is reserved for what is being read.
    reserved: usize,
    /// The bytes of each client that holds any.
    held: HashMap<AskerId, usize>,
    refused: u64,
    shortened: u64,
}

impl Pot {
    pub(super) fn new(max_bytes: usize) -> Pot {
        Pot { max_bytes, ..Pot::default() }
    }

    /// Takes bytes for a client: as many as it wants, or all that it may have.
    pub(super) fn take(&mut self, asker: AskerId, wanted: usize) -> Room {
        let held = self.held.get(&asker).copied().unwrap_or(0);
        let share = self.max_bytes / SHARE_PART;
        let left = self.max_bytes.saturating_sub(self.bytes);
        let is_reserved = self.bytes >= self.max_bytes / RESERVED_PART;
        let of_client = if asker.is_client() { share.saturating_sub(held) } else { left };
        let bytes = wanted.min(of_client).min(left);
        let is_full = of_client > 0 && (left == 0 || (held > 0 && is_reserved));
        if self.reserved > 0 && (is_full || bytes < wanted) {
            return Room::Unknown;
        }
        if is_full {
            self.refused += 1;
            return Room::Full;
        }
        self.shortened += u64::from(bytes < wanted);
        self.reserved += bytes;
        self.charge(asker, bytes);
        Room::Bytes(bytes)
    }

    /// Gives back what was taken.
    pub(super) fn give_back_reserved(&mut self, asker: AskerId, bytes: usize) {
        self.reserved -= bytes;
        self.give_back(asker, bytes);
    }

    /// Counts bytes that a client holds anyway.
    pub(super) fn charge(&mut self, asker: AskerId, bytes: usize) {
        if bytes > 0 {
            self.bytes += bytes;
            *self.held.entry(asker).or_default() += bytes;
        }
    }

    pub(super) fn give_back(&mut self, asker: AskerId, bytes: usize) {
        self.bytes -= bytes;
        if let Some(held) = self.held.get_mut(&asker) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&asker);
            }
        }
        if self.held.is_empty() && self.held.capacity() > CLIENTS_KEPT {
            self.held = HashMap::new();
        }
    }

    /// Counts what is nobody's: it took `before`, and takes `now`.
    pub(super) fn replace(&mut self, before: usize, now: usize) {
        self.bytes = self.bytes - before + now;
    }

    pub(super) fn metrics(&self) -> PartsMetrics {
        let (bytes, max_bytes) = (self.bytes as u64, self.max_bytes as u64);
        PartsMetrics { bytes, max_bytes, refused: self.refused, shortened: self.shortened }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes bytes, and holds as many.
    fn hold(pot: &mut Pot, asker: AskerId, wanted: usize) -> Room {
        let room = pot.take(asker, wanted);
        if let Room::Bytes(bytes) = room {
            pot.give_back_reserved(asker, bytes);
            pot.charge(asker, bytes);
        }
        room
    }

    #[test]
    fn a_client_holds_at_most_a_quarter_of_the_pot() {
        let mut pot = Pot::new(1_000);
        let [a, b, c, d] = std::array::from_fn(|_| AskerId::next());
        assert_eq!(hold(&mut pot, a, 200), Room::Bytes(200));
        assert_eq!(hold(&mut pot, a, 200), Room::Bytes(50), "the rest of its share");
        assert_eq!(hold(&mut pot, a, 200), Room::Bytes(0), "it has its share");
        assert_eq!(hold(&mut pot, b, 200), Room::Bytes(200));
        assert_eq!(hold(&mut pot, c, 100), Room::Bytes(100));
        assert_eq!(hold(&mut pot, c, 1), Room::Full, "the rest is for others");
        assert_eq!(hold(&mut pot, d, 200), Room::Bytes(200));
        assert_eq!(hold(&mut pot, AskerId::SERVER, 900), Room::Bytes(250), "all that is left");
        assert_eq!(hold(&mut pot, AskerId::next(), 1), Room::Full);
        let metrics = pot.metrics();
        assert_eq!((metrics.bytes, metrics.refused, metrics.shortened), (1_000, 2, 3));
        pot.give_back(a, 250);
        assert_eq!(hold(&mut pot, a, 10), Room::Bytes(10), "it holds nothing");
        for (asker, bytes) in [(a, 10), (b, 200), (c, 100), (d, 200), (AskerId::SERVER, 250)] {
            pot.give_back(asker, bytes);
        }
        assert!(pot.held.is_empty() && pot.bytes == 0);
    }

    #[test]
    fn nobody_is_refused_for_what_is_only_reserved() {
        let mut pot = Pot::new(1_000);
        let client = AskerId::next();
        assert_eq!(pot.take(client, 250), Room::Bytes(250));
        assert_eq!(pot.take(client, 250), Room::Unknown);
        pot.give_back_reserved(client, 250);
        pot.charge(client, 1);
        assert_eq!(pot.take(client, 200), Room::Bytes(200));
    }
}
