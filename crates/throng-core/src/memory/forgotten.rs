//! A shard's memory of the channels that it has forgotten.
//!
//! Of all of them: their highest offset. A channel that is new to the shard starts there, so no
//! offset names two messages of one channel.
//!
//! Of those that were forgotten last: since which offset they had no message. So a client that
//! resumes a quiet channel, which was forgotten between its two polls, is not told of a gap because
//! another channel had advanced further. The table has a set size; once other channels have taken
//! its place, a client may be told of a gap where none is. The reverse takes two names with the
//! same 64 bits of a seeded hash. The process that takes over gets the table.

use crate::id::MessageId;

/// Sets of the table. A channel is in the set of its hash.
const SETS: usize = 64;

/// Channels of a set. With 64 shards, the tables take 384 KiB when all are used.
const SET_CHANNELS: usize = 4;

type Set = [Quiet; SET_CHANNELS];

#[derive(Debug, Clone, Default)]
pub(super) struct Forgotten {
    /// The highest offset that was given out in a channel which is not there now. A channel that is
    /// new here starts after it.
    head: u64,
    /// Empty until something is noted.
    sets: Box<[Set]>,
}

/// A channel that has no message with an offset above `from` and up to `to`. While the channel is
/// there, `to` stays the offset that it began after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quiet {
    pub(super) hash: u64,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Quiet {
    /// A place without a channel: no offset is in its range.
    const VACANT: Quiet = Quiet { hash: 0, from: u64::MAX, to: 0 };
}

impl Forgotten {
    /// The offset that a channel which is new here starts after.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn raise(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    /// Forgets which channels have been quiet: some had their messages elsewhere. New channels
    /// start after `head`, where no client of those is.
    pub(super) fn begin_anew(&mut self, head: u64) {
        self.raise(head);
        self.sets = Box::default();
    }

    /// Forgets a channel whose last offset is `head`.
    pub(super) fn forget(&mut self, hash: u64, head: u64) {
        self.raise(head);
        if self.quiet_mut(hash).is_none_or(|quiet| quiet.to != head) {
            self.note(hash, head);
        }
    }

    /// Begins a channel that is not there. Returns the offset that it starts after.
    pub(super) fn begin(&mut self, hash: u64) -> u64 {
        let head = self.head;
        if let Some(quiet) = self.quiet_mut(hash) {
            quiet.to = head;
        }
        head
    }

    /// The offset that a channel which is not there would start after. A client may resume from it
    /// later, so it is noted.
    pub(super) fn look(&mut self, hash: u64) -> u64 {
        if self.quiet_mut(hash).is_none() {
            self.note(hash, self.head);
        }
        self.begin(hash)
    }

    /// Gives `offset`, which is beyond the head, to a message of a channel that is not there.
    pub(super) fn pass(&mut self, hash: u64, offset: u64) {
        self.raise(offset);
        if let Some(quiet) = self.quiet_mut(hash) {
            *quiet = Quiet { hash, from: offset, to: offset };
        }
    }

    /// The latest position in a channel that is known to lack no more messages than `id`.
    pub(super) fn advance(&self, hash: u64, id: MessageId) -> MessageId {
        let set = self.sets.get(set_of(hash)).into_iter().flatten();
        let mut found = set.filter(|quiet| quiet.hash == hash);
        let found = found.find(|quiet| (quiet.from..=quiet.to).contains(&id.offset));
        found.map_or(id, |quiet| MessageId { offset: quiet.to, ..id })
    }

    /// All channels of the table.
    pub(super) fn quiet(&self) -> impl Iterator<Item = Quiet> {
        let all = self.sets.iter().flatten().copied();
        all.filter(|quiet| quiet.from <= quiet.to)
    }

    /// Notes that a channel has no message beyond `offset`.
    fn note(&mut self, hash: u64, offset: u64) {
        self.add(Quiet { hash, from: offset, to: offset });
    }

    /// Adds a channel to the table, in the place of what was known of it.
    pub(super) fn add(&mut self, quiet: Quiet) {
        let hash = quiet.hash;
        if self.sets.is_empty() {
            self.sets = vec![[Quiet::VACANT; SET_CHANNELS]; SETS].into();
        }
        let set = &mut self.sets[set_of(hash)];
        // Its own place, or else the oldest one: the head only grows.
        let place = set.iter_mut().min_by_key(|other| (other.hash != hash, other.to));
        if let Some(place) = place {
            *place = quiet;
        }
    }

    fn quiet_mut(&mut self, hash: u64) -> Option<&mut Quiet> {
        let set = self.sets.get_mut(set_of(hash))?;
        set.iter_mut().find(|quiet| quiet.hash == hash && quiet.from <= quiet.to)
    }
}

fn set_of(hash: u64) -> usize {
    // The highest bits choose the shard, the lowest the place in its hash table.
    (hash >> 32) as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    const A: u64 = 1 << 32;
    const B: u64 = 2 << 32;

    fn advanced(forgotten: &Forgotten, hash: u64, offset: u64) -> u64 {
        forgotten.advance(hash, MessageId { epoch: Epoch::numbered(1), offset }).offset
    }

    #[test]
    fn new_channels_start_after_all_that_were_forgotten() {
        let mut forgotten = Forgotten::default();
        assert_eq!(forgotten.begin(A), 0);
        forgotten.forget(A, 7);
        forgotten.forget(B, 3);
        assert_eq!((forgotten.begin(A), forgotten.begin(B)), (7, 7));
    }

    #[test]
    fn a_quiet_channel_is_known_however_often_it_was_forgotten() {
        let mut forgotten = Forgotten::default();
        forgotten.forget(A, 3);
        assert_eq!(advanced(&forgotten, A, 3), 3);
        for head in [9, 9, 20] {
            forgotten.forget(B, head);
            assert_eq!(forgotten.begin(A), head);
            assert_eq!(advanced(&forgotten, A, 3), head);
            forgotten.forget(A, head);
        }
        assert_eq!(advanced(&forgotten, A, 2), 2, "it had a message after that");
        assert_eq!(advanced(&forgotten, A, 21), 21, "it never had that offset");
    }

    #[test]
    fn a_message_ends_the_silence() {
        let mut forgotten = Forgotten::default();
        forgotten.forget(A, 3);
        forgotten.forget(B, 9);
        let head = forgotten.begin(A);
        forgotten.forget(A, head + 1);
        assert_eq!(advanced(&forgotten, A, 3), 3);
        forgotten.pass(A, 11);
        assert_eq!(forgotten.begin(A), 11);
        assert_eq!(advanced(&forgotten, A, 10), 10, "also if nobody was there");
        forgotten.forget(B, 20);
        assert_eq!(forgotten.begin(A), 20);
        assert_eq!(advanced(&forgotten, A, 11), 20, "nothing came after that");
    }

    #[test]
    fn as_many_are_remembered_as_a_set_has_places() {
        let mut forgotten = Forgotten::default();
        let alike: Vec<u64> = (0..=SET_CHANNELS as u64).map(|number| A + number).collect();
        for (head, &hash) in (3..).zip(&alike) {
            forgotten.forget(hash, head);
        }
        let head = forgotten.head();
        for (offset, &hash) in (3..).zip(&alike) {
            forgotten.begin(hash);
            let is_remembered = hash != A;
            let expected = if is_remembered { head } else { offset };
            assert_eq!(advanced(&forgotten, hash, offset), expected, "{hash}");
        }
    }

    #[test]
    fn a_place_of_no_channel_is_not_taken_for_that_of_one() {
        let mut forgotten = Forgotten::default();
        forgotten.forget(A, 3);
        // The hash of a vacant place.
        forgotten.begin(0);
        assert_eq!(advanced(&forgotten, 0, 0), 0);
        forgotten.forget(0, 3);
        forgotten.pass(0, 5);
        forgotten.begin(0);
        assert_eq!(advanced(&forgotten, 0, 3), 3);
    }

    #[test]
    fn who_looks_at_a_channel_that_was_never_there_may_come_back() {
        let mut forgotten = Forgotten::default();
        forgotten.forget(B, 5);
        assert_eq!(forgotten.look(A), 5);
        forgotten.forget(B, 9);
        assert_eq!((forgotten.look(A), advanced(&forgotten, A, 5)), (9, 9));
        forgotten.pass(A, 10);
        assert_eq!((forgotten.look(A), advanced(&forgotten, A, 9)), (10, 9));
    }
}
