//! The parts of members that other processes have to be asked for.

use std::collections::{HashSet, VecDeque};

use crate::name::ChannelName;

/// So many wait at most, of a process. Beyond it the oldest is dropped: parts that stay unknown are
/// asked for again.
const WAITING_MAX: usize = 100_000;

/// What a part that has come in several pieces is as of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Base {
    /// That of its process when it was asked.
    pub(crate) generation: u32,
    pub(crate) as_of: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub(crate) channel: ChannelName,
    pub(crate) after: Option<Box<str>>,
    /// Of the first piece.
    pub(crate) base: Option<Base>,
}

impl Want {
    pub(crate) fn all(channel: ChannelName) -> Want {
        Want { channel, after: None, base: None }
    }

    fn is_whole(&self) -> bool {
        self.after.is_none() && self.base.is_none()
    }
}

/// Those that wait, each channel as a whole once: a process that never answers collects no more
/// than there are channels.
#[derive(Debug, Default)]
pub(super) struct Wants {
    queue: VecDeque<Want>,
    whole: HashSet<ChannelName>,
}

impl Wants {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn add(&mut self, want: Want) {
        if want.is_whole() && !self.whole.insert(want.channel.clone()) {
            return;
        }
        if self.queue.len() >= WAITING_MAX {
            self.take(1);
        }
        self.queue.push_back(want);
    }

    /// Takes the oldest ones out, at most `count`.
    pub(super) fn take(&mut self, count: usize) -> Vec<Want> {
        let taken: Vec<_> = self.queue.drain(..count.min(self.queue.len())).collect();
        for want in taken.iter().filter(|want| want.is_whole()) {
            self.whole.remove(&want.channel);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_never_answers_collects_a_bounded_number() {
        let mut wants = Wants::default();
        let channel = |nth: usize| ChannelName::channel(&nth.to_string());
        for nth in (0..WAITING_MAX + 500).chain(400..500) {
            wants.add(Want::all(channel(nth)));
        }
        assert_eq!((wants.queue.len(), wants.whole.len()), (WAITING_MAX, WAITING_MAX));
        let taken = wants.take(2);
        // 100 of those that were dropped have come anew, and have pushed out as many.
        assert_eq!(taken[0].channel, channel(600));
        wants.add(Want::all(taken[0].channel.clone()));
        assert_eq!(wants.queue.len(), WAITING_MAX - 1, "it may wait again");
    }
}
