//! What is known of the parts that other processes have of a channel.

use std::collections::HashMap;

use super::exchange::{ExchangeState, PeerId};
use super::wants::Base;

/// For how long a departure is remembered at least, and at most for a little more than twice as
/// long, however often others leave: longer than a part is under way.
const REMOVED_MS: u64 = 10_000;

/// A channel whose members are those of several processes.
#[derive(Debug, Default)]
pub(crate) struct SharedChannel {
    /// Until when others are listened to without followers and members here.
    pub(crate) until_ms: u64,
    /// True once all others were asked.
    pub(crate) is_asked: bool,
    /// True if a member of another process is left out, because the list was full.
    pub(crate) lacks: bool,
    /// Whether members may be missing, and since when that is so.
    partial: (bool, u64),
    /// True if those who follow the members are told so, by the log.
    pub(crate) is_told_partial: bool,
    /// True if a list that has come has said so.
    pub(crate) is_said_partial: bool,
    /// The others' parts that are complete.
    pub(crate) parts: Vec<(PeerId, Base)>,
    /// What the newest first piece of each part is as of: pieces of older ones say nothing.
    begun: Vec<(PeerId, u64)>,
    /// The numbers of departures that a part which is under way may not know of: the latest, and
    /// those of a time before them.
    removed: [HashMap<(PeerId, Box<str>), u64>; 2],
    /// Since when the latest are gathered.
    removed_ms: u64,
}

impl SharedChannel {
    /// True if all members of the other processes are known, and have room.
    pub(crate) fn is_complete(&self, now_ms: u64, others: &ExchangeState) -> bool {
        self.is_asked && !self.lacks && others.is_whole(now_ms, &self.parts)
    }

    /// Whether members may be missing, and for how long that has been so, in milliseconds.
    pub(crate) fn look(&mut self, now_ms: u64, others: &ExchangeState) -> (bool, u64) {
        let is_partial = !self.is_complete(now_ms, others);
        if self.partial.0 != is_partial {
            self.partial = (is_partial, now_ms);
        }
        (is_partial, now_ms.saturating_sub(self.partial.1))
    }

    /// True if a part that is complete has the change with this number.
    pub(crate) fn has(&self, (peer, number): (PeerId, u64)) -> bool {
        self.parts.iter().any(|(known, base)| *known == peer && number <= base.as_of)
    }

    /// A piece of a part has come whose first piece is as of `begun`. Returns false if a newer part
    /// has begun.
    pub(crate) fn begins(&mut self, (peer, begun): (PeerId, u64)) -> bool {
        match self.begun.iter_mut().find(|(known, _)| *known == peer) {
            Some((_, newest)) if *newest > begun => return false,
            Some((_, newest)) => *newest = begun,
            None => self.begun.push((peer, begun)),
        }
        true
    }

    /// A part is complete.
    pub(crate) fn completes(&mut self, (peer, base): (PeerId, Base)) {
        match self.parts.iter_mut().find(|(known, _)| *known == peer) {
            Some((_, known)) if known.generation > base.generation => {}
            Some((_, known)) => *known = base,
            None => self.parts.push((peer, base)),
        }
    }

    /// Another process has said that it has a key no more.
    pub(crate) fn removes(&mut self, (peer, number): (PeerId, u64), key: &str) {
        let last = self.removed[0].entry((peer, key.into())).or_default();
        *last = number.max(*last);
    }

    /// True if a process has said so since a number.
    pub(crate) fn is_removed(&self, (peer, as_of): (PeerId, u64), key: &str) -> bool {
        let departure = (peer, key.into());
        let numbers = self.removed.iter().filter_map(|removed| removed.get(&departure));
        numbers.max().is_some_and(|number| *number > as_of)
    }

    /// Forgets departures that every part knows of by now.
    pub(crate) fn forget_removed(&mut self, now_ms: u64) {
        if now_ms >= self.removed_ms + REMOVED_MS {
            let latest = std::mem::take(&mut self.removed[0]);
            (self.removed[1], self.removed_ms) = (latest, now_ms);
        }
    }

    /// How many departures are remembered.
    #[cfg(test)]
    pub(crate) fn removed_count(&self) -> usize {
        self.removed.iter().map(HashMap::len).sum()
    }

    /// Another process is gone.
    pub(crate) fn loses(&mut self, peer: PeerId) {
        self.parts.retain(|(id, _)| *id != peer);
        self.begun.retain(|(id, _)| *id != peer);
    }
}
