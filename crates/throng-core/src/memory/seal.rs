//! Messages of logs in memory that another process shares.
//!
//! Before another process takes over, most messages are copied into segments while the server goes
//! on, and the logs refer to them instead of having them. So the other process gets them before the
//! pause, and they take memory once. Once it serves, or has not taken over, they go back to the
//! heap, some with each tick.
//!
//! The oldest messages of all channels are sealed first. Those were allocated at about the same
//! time, so that each segment frees whole pages of the heap.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::sealing::SampleStamps;
use super::shard::seal::{LogPlace, SealRun};
use super::{MemoryEngine, SHARDS};
use crate::log::segment::{Segment, SegmentWriter, SharedBytes};
use crate::stamp::Stamp;

/// All messages go into so many segments, unless those would be shorter than [`PART_BYTES_MIN`] or
/// longer than [`PART_BYTES_MAX`]. While a segment is made, its messages are there twice.
const PARTS: usize = 32;

const PART_BYTES_MIN: usize = 1 << 20;
const PART_BYTES_MAX: usize = 64 << 20;

/// Where segments are written.
pub trait SegmentSink {
    /// Why it cannot be written.
    type Error;

    fn append(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Ends the segment, and begins the next one. Returns what was appended, in memory that nobody
    /// can write to any more.
    fn seal(&mut self) -> Result<SharedBytes, Self::Error>;

    /// Messages with so many bytes have left the heap.
    fn freed(&mut self, bytes: usize);
}

impl MemoryEngine {
    /// Writes most messages to segments, and refers to them there. May leave out messages that are
    /// published meanwhile or on their way to subscribers. Messages stay in segments until
    /// [`MemoryEngine::end_sealing`], or until they are read.
    ///
    /// # Errors
    ///
    /// The first one of the sink. Messages of earlier segments stay there.
    pub fn seal<S: SegmentSink>(&self, sink: &mut S) -> Result<(), S::Error> {
        let mut earlier = self.sealing.hold();
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        let mut samples = SampleStamps::new(part_bytes(bytes));
        (0..SHARDS).for_each(|at| self.lock(at).sample(&mut samples));
        for last in samples.borders() {
            // Messages of an earlier takeover move from segment to segment: the other process has
            // not got the old segments, and not all at once, so that no message is there twice.
            let of_those = earlier.extract_if(.., |(_, first)| *first <= last);
            if let Some(number) = of_those.map(|(number, _)| number).max() {
                (0..SHARDS).for_each(|at| self.lock(at).unseal(number));
            }
            while self.seal_up_to(last, sink)? {}
        }
        Ok(())
    }

    /// Writes a segment of messages up to `last`. Returns whether there may be more.
    fn seal_up_to<S: SegmentSink>(&self, last: Stamp, sink: &mut S) -> Result<bool, S::Error> {
        let mut writer = SegmentWriter::new(self.shared.epoch);
        let mut runs = Vec::new();
        for at in 0..SHARDS {
            let mut next = Some(LogPlace::default());
            while let Some(from) = next.filter(|_| !writer.is_full()) {
                next = self.lock(at).copy((at, from, last), &mut writer, &mut runs);
                if writer.len() > 0 {
                    sink.append(&writer.take())?;
                }
            }
        }
        let is_full = writer.is_full();
        if writer.len() == 0 {
            return Ok(false);
        }
        let segment = self.sealing.add(writer, sink.seal()?);
        sink.freed(self.replace(runs, &segment));
        Ok(is_full)
    }

    /// Lets the logs refer to a segment. Returns the bytes of the messages.
    fn replace(&self, runs: Vec<SealRun>, segment: &Arc<Segment>) -> usize {
        let mut bytes = 0;
        for run in runs {
            let mut rest = Some(run);
            while let Some(run) = rest {
                let replaced = self.lock(run.shard).replace(run, segment);
                bytes += replaced.0;
                rest = replaced.1;
            }
        }
        bytes
    }

    /// Lets messages go back to the heap, some with each tick: no other process takes over.
    pub fn end_sealing(&self) {
        self.sealing.release();
    }

    /// Takes some messages out of segments, the oldest first, so that one segment after the other
    /// is given back.
    pub(super) fn unseal_some(&self) {
        self.sealing.unseal_next(SHARDS, |last, at| self.lock(at).unseal(last));
    }
}

/// The bytes of a segment if all messages have so many.
fn part_bytes(bytes: usize) -> usize {
    (bytes / PARTS).clamp(PART_BYTES_MIN, PART_BYTES_MAX)
}
