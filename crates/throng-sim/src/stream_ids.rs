//! Ids like those of NATS streams, whose offsets skip and whose channels have different epochs; and
//! like those on a disk, which count up.
//!
//! Each channel belongs to a stream. All channels of a stream share its epoch and its sequence
//! numbers, which are their offsets. The logs, whose offsets are consecutive, are in the memory of
//! a [`TestJournal`](throng_core::conformance::TestJournal), which has ids translated in both
//! directions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::conformance::JournalNumbers;
use throng_core::{ChannelName, Epoch, MessageId};

use crate::random::Random;

const STREAMS: u64 = 3;

/// Steps of a sequence number around the limits of cursors of 32 bits.
const LEAPS: [u64; 6] = [1 << 29, (1 << 30) - 1, 1 << 30, 1 << 31, (1 << 32) - 1, 5 << 30];

/// The epoch of the memory with the logs, which no client sees.
pub(crate) const HIDDEN_EPOCH: Epoch = Epoch::numbered(0);

/// An offset beyond all heads of that memory.
const BEYOND: u64 = u64::MAX / 2;

/// The epoch of the stream that a channel belongs to.
pub(crate) fn epoch_of(channel: &ChannelName, first_epoch: u64) -> Epoch {
    Epoch::numbered(first_epoch + stream_of(channel))
}

fn stream_of(channel: &ChannelName) -> u64 {
    channel.name().len() as u64 % STREAMS
}

pub(crate) struct StreamIds {
    first_epoch: u64,
    /// True if there is one epoch, and each channel counts up by one, as on a disk.
    counts_up: bool,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// True if sequence numbers grow by more than cursors of 32 bits tell.
    leaps: bool,
    /// The last sequence number of each stream.
    sequences: [u64; STREAMS as usize],
    /// The messages of each channel since the beginning.
    channels: HashMap<ChannelName, Vec<Entry>>,
}

/// Both offsets of a message.
struct Entry {
    inner: u64,
    outer: u64,
}

impl StreamIds {
    /// The streams have the epochs from `first_epoch` on; `random` determines their sequence
    /// numbers.
    pub(crate) fn new(first_epoch: u64, mut random: Random) -> StreamIds {
        let leaps = random.percent(40);
        let sequences = [0; STREAMS as usize];
        let state = Mutex::new(State { random, leaps, sequences, channels: HashMap::new() });
        StreamIds { first_epoch, counts_up: false, state }
    }

    /// The ids of a disk with this epoch, which remembers the offsets of all channels.
    pub(crate) fn of_disk(epoch: u64) -> StreamIds {
        StreamIds { counts_up: true, ..StreamIds::new(epoch, Random::new(0)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalNumbers for StreamIds {
    fn epoch(&self, channel: &ChannelName) -> Epoch {
        if self.counts_up {
            return Epoch::numbered(self.first_epoch);
        }
        epoch_of(channel, self.first_epoch)
    }

    fn are_consecutive(&self) -> bool {
        self.counts_up
    }

    fn accept(&self, channel: &ChannelName, inner: u64) {
        let mut state = self.lock();
        let State { random, leaps, sequences, channels } = &mut *state;
        if self.counts_up {
            let entries = channels.entry(channel.clone()).or_default();
            let outer = entries.len() as u64 + 1;
            return entries.push(Entry { inner, outer });
        }
        let sequence = &mut sequences[stream_of(channel) as usize];
        *sequence += match random.below(100) {
            0..3 if *leaps => random.pick(&LEAPS),
            0..30 => random.between(2, 50) as u64,
            _ => 1,
        };
        let entry = Entry { inner, outer: *sequence };
        channels.entry(channel.clone()).or_default().push(entry);
    }

    fn outer(&self, channel: &ChannelName, inner: u64) -> MessageId {
        let state = self.lock();
        let entries = state.channels.get(channel).map_or(&[][..], Vec::as_slice);
        let at = entries.partition_point(|entry| entry.inner <= inner);
        let offset = at.checked_sub(1).map_or(0, |at| entries[at].outer);
        MessageId { epoch: self.epoch(channel), offset }
    }

    fn inner(&self, channel: &ChannelName, id: MessageId) -> MessageId {
        if id.epoch != self.epoch(channel) {
            return MessageId { epoch: Epoch::numbered(1), ..id };
        }
        let state = self.lock();
        let entries = state.channels.get(channel).map_or(&[][..], Vec::as_slice);
        let at = entries.partition_point(|entry| entry.outer <= id.offset);
        let offset = match at.checked_sub(1) {
            _ if at == entries.len() && id.offset > entries.last().map_or(0, |last| last.outer) => {
                BEYOND
            }
            Some(at) => entries[at].inner,
            // A log that was forgotten while it was empty does not begin with the first offset.
            None => entries.first().map_or(0, |first| first.inner - 1),
        };
        MessageId { epoch: HIDDEN_EPOCH, offset }
    }
}
