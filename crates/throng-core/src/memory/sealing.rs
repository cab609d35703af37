//! The segments of an engine, and the assignment of messages to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::clock;
use crate::frozen::{Encoder, RecordKind};
use crate::log::segment::{Segment, SegmentWriter, SharedBytes};
use crate::stamp::Stamp;

/// So many stamps are noted of the messages of a segment.
const SAMPLES_OF_PART: usize = 16;

/// The segments of an engine.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    /// True if there is something to take out of segments: [`State::unseal`] without the lock,
    /// under which alone it changes.
    is_unsealing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that another process has, in the order in which it got them.
    shared: Vec<Arc<Segment>>,
    /// All that messages may be in.
    all: Vec<Weak<Segment>>,
    /// The number of the next segment.
    next: u32,
    /// The next messages to take out of segments: up to which segment, in which shard. `None` while
    /// messages stay sealed, and when none is.
    unseal: Option<(u32, usize)>,
}

impl State {
    /// Forgets the segments that nobody refers to.
    fn forget_unused(&mut self) {
        self.all.retain(|segment| segment.strong_count() > 0);
    }

    /// The first place in segments from a number on.
    fn place_from(&mut self, number: u32) -> Option<(u32, usize)> {
        self.forget_unused();
        let left = self.all.iter().filter_map(Weak::upgrade);
        let numbers = left.map(|segment| segment.number()).filter(|left| *left >= number);
        numbers.min().map(|number| (number, 0))
    }
}

/// Some stamps of all messages, from which the borders between segments follow.
#[derive(Debug)]
pub(super) struct SampleStamps {
    stamps: Vec<Stamp>,
    every_bytes: usize,
    bytes: usize,
}

impl SampleStamps {
    /// Of messages that go into segments of so many bytes.
    pub(super) fn new(part_bytes: usize) -> SampleStamps {
        let every_bytes = (part_bytes / SAMPLES_OF_PART).max(1);
        SampleStamps { stamps: Vec::new(), every_bytes, bytes: 0 }
    }

    pub(super) fn add(&mut self, stamp: Stamp, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= self.every_bytes {
            self.bytes %= self.every_bytes;
            self.stamps.push(stamp);
        }
    }

    /// The last stamp of each segment.
    pub(super) fn borders(mut self) -> Vec<Stamp> {
        self.stamps.sort_unstable();
        let mut borders: Vec<Stamp> =
            self.stamps.chunks_exact(SAMPLES_OF_PART).map(|part| part[part.len() - 1]).collect();
        borders.dedup();
        borders.push(Stamp(u64::MAX));
        borders
    }
}

impl Sealing {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is taken out next.
    fn set_unseal(&self, state: &mut State, unseal: Option<(u32, usize)>) {
        state.unseal = unseal;
        self.is_unsealing.store(unseal.is_some(), Ordering::Relaxed);
    }

    /// The engine refers to these segments of another process, which have the numbers from 0 on.
    pub(super) fn begin_with(&mut self, segments: &[Arc<Segment>]) {
        let mut state = self.lock();
        state.next = segments.len() as u32;
        state.all = segments.iter().map(Arc::downgrade).collect();
        let first = state.place_from(0);
        self.set_unseal(&mut state, first);
    }

    /// Messages stay sealed, and no segment is shared yet. Returns those that some are in: the
    /// number and the lowest stamp of each.
    pub(super) fn hold(&self) -> Vec<(u32, Stamp)> {
        let mut state = self.lock();
        self.set_unseal(&mut state, None);
        state.shared.clear();
        state.forget_unused();
        let left = state.all.iter().filter_map(Weak::upgrade);
        left.map(|segment| (segment.number(), segment.first())).collect()
    }

    /// Messages go back to the heap.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        state.shared.clear();
        // Numbers go on over all attempts: most of them are of segments that are gone.
        let first = state.place_from(0);
        self.set_unseal(&mut state, first);
    }

    /// Adds a segment that another process has.
    pub(super) fn add(&self, writer: SegmentWriter, bytes: SharedBytes) -> Arc<Segment> {
        let mut state = self.lock();
        let segment = writer.finish(bytes, state.next);
        state.next += 1;
        state.shared.push(Arc::clone(&segment));
        state.all.push(Arc::downgrade(&segment));
        segment
    }

    /// Calls `unseal` for the next messages to take out, of segments up to a number in one of the
    /// shards, unless messages stay sealed.
    pub(super) fn unseal_next(&self, shards: usize, unseal: impl FnOnce(u32, usize)) {
        if !self.is_unsealing.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        let Some((last, at)) = state.unseal else { return };
        unseal(last, at);
        let has_more_shards = at + 1 < shards;
        let next = if has_more_shards { Some((last, at + 1)) } else { state.place_from(last + 1) };
        self.set_unseal(&mut state, next);
    }

    /// Records of the segments that the engine refers to.
    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        let ahead_ms = clock::ahead_ms();
        let shared = &self.lock().shared;
        let record = |(place, segment): (usize, &Arc<Segment>)| {
            let mut record = Encoder::new(RecordKind::SegmentInUse);
            record.u32(place as u32);
            // The times in it are by the machine's clock as it was then.
            record.u64(ahead_ms.wrapping_sub(segment.ahead_ms()).cast_unsigned());
            record.finish()
        };
        shared.iter().enumerate().map(record).collect()
    }

    /// The place of a segment among those that another process has.
    pub(super) fn places(&self) -> SharedPlaces {
        let shared = &self.lock().shared;
        SharedPlaces(shared.first().map(|first| first.number()), shared.len() as u32)
    }
}

/// Which segments another process has.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedPlaces(Option<u32>, u32);

impl SharedPlaces {
    /// The place of the segment with this number.
    pub(super) fn of(self, number: u32) -> Option<u32> {
        let SharedPlaces(first, count) = self;
        number.checked_sub(first?).filter(|place| *place < count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::id::Epoch;

    #[test]
    fn a_release_while_the_last_segment_empties_gives_all_back() {
        let mut writer = SegmentWriter::new(Epoch::numbered(1));
        let bytes = writer.take();
        let sealing = Sealing::default();
        sealing.hold();
        let _in_use = sealing.add(writer, Box::new(bytes));
        sealing.release();
        let (begins, mut has_more) = (Barrier::new(2), false);
        thread::scope(|scope| {
            sealing.unseal_next(1, |_, _| {
                scope.spawn(|| {
                    begins.wait();
                    sealing.hold();
                    sealing.release();
                });
                begins.wait();
                // The other thread gets as far as it can without the lock.
                (0..1000).for_each(|_| thread::yield_now());
            });
        });
        sealing.unseal_next(1, |_, _| has_more = true);
        assert!(has_more, "the segment is in use");
    }
}
