//! What a shard remembers of the channels that it has forgotten.
//!
//! Of all of them: their highest offset. A channel that is new to the shard starts there, so no
//! offset names two messages of one channel.
//!
//! Of those that were forgotten last: since which offset they had no message. So a client that
//! resumes a quiet channel, which was forgotten between its two polls, is not told of a gap because
//! another channel had advanced further. The table has a set size; once another channel has taken
//! its place, a client may be told of a gap where none is, and never the reverse.

use crate::id::MessageId;

/// Places of the table. With 64 shards, 384 KiB when all are used.
const PLACES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// No channel that is new here gets an offset up to this one.
    head: u64,
    /// By the hash of a channel's name; empty until a channel is forgotten.
    quiet: Box<[Quiet]>,
}

/// A channel without a message beyond `from` and up to `to`.
///
/// Two channels whose names have the same 64 bits of a seeded hash are taken for one.
#[derive(Debug, Default, Clone, Copy)]
struct Quiet {
    hash: u64,
    from: u64,
    to: u64,
}

impl Forgotten {
    /// The offset that a channel which is new here starts after.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn raise(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    /// Forgets a channel whose last offset is `head`.
    pub(super) fn forget(&mut self, hash: u64, head: u64) {
        self.raise(head);
        if self.quiet.is_empty() {
            self.quiet = vec![Quiet::default(); PLACES].into();
        }
        let place = &mut self.quiet[place_of(hash)];
        if place.hash != hash || place.to != head {
            *place = Quiet { hash, from: head, to: head };
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

    /// Gives `offset`, which is beyond all others, to a message of a channel that is not there.
    pub(super) fn pass(&mut self, hash: u64, offset: u64) {
        self.raise(offset);
        if let Some(quiet) = self.quiet_mut(hash) {
            *quiet = Quiet::default();
        }
    }

    /// The latest position in a channel that is known to lack no more messages than `id`.
    pub(super) fn advance(&self, hash: u64, id: MessageId) -> MessageId {
        let quiet = self.quiet.get(place_of(hash)).filter(|quiet| quiet.hash == hash);
        let quiet = quiet.filter(|quiet| (quiet.from..=quiet.to).contains(&id.offset));
        quiet.map_or(id, |quiet| MessageId { offset: quiet.to, ..id })
    }

    fn quiet_mut(&mut self, hash: u64) -> Option<&mut Quiet> {
        self.quiet.get_mut(place_of(hash)).filter(|quiet| quiet.hash == hash)
    }
}

fn place_of(hash: u64) -> usize {
    // The highest bits choose the shard, the lowest the place in its hash table.
    (hash >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    const A: u64 = 1 << 32;
    const B: u64 = 2 << 32;
    /// Has the place of `A`.
    const LIKE_A: u64 = A + 1;

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
        assert_eq!(forgotten.head(), 11);
        assert_eq!(advanced(&forgotten, A, 10), 10, "also if nobody was there");
    }

    #[test]
    fn a_later_channel_takes_the_place() {
        let mut forgotten = Forgotten::default();
        forgotten.forget(A, 3);
        forgotten.forget(LIKE_A, 5);
        forgotten.begin(A);
        assert_eq!(advanced(&forgotten, A, 3), 3);
        assert_eq!(advanced(&forgotten, LIKE_A, 5), 5);
    }
}
