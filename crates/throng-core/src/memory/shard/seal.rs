//! A shard's messages on their way into segments and back, some at a time under its lock.

use std::sync::Arc;

use super::Shard;
use crate::log::segment::{SealedName, Segment, SegmentWriter};
use crate::memory::sealing::SampleStamps;
use crate::name::ChannelName;
use crate::stamp::Stamp;

/// Messages of this many bytes are copied under a lock at a time.
const COPY_BYTES: usize = 256 << 10;

/// Messages that are replaced under a lock at a time.
const REPLACE_MESSAGES: u32 = 1024;

/// Channels that are looked at under a lock at a time.
const LOOK_CHANNELS: u32 = 4096;

/// A place in the logs of a shard: a slot, and an offset in its log.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::memory) struct LogPlace {
    slot: u32,
    /// The messages up to this offset have been dealt with.
    offset: u64,
}

/// Consecutive messages of a segment that are from one log.
#[derive(Debug)]
pub(in crate::memory) struct SealRun {
    pub(in crate::memory) shard: usize,
    slot: u32,
    first: u32,
    end: u32,
}

impl Shard {
    /// Notes the stamps of some messages.
    pub(in crate::memory) fn sample(&self, samples: &mut SampleStamps) {
        for (_, channel) in self.channels.iter() {
            let Some(log) = &channel.log else { continue };
            log.views().for_each(|view| samples.add(view.stamp(), view.weight_bytes()));
        }
    }

    /// Writes messages up to `last` that come after a place. Returns where to go on, unless all
    /// have been written.
    pub(in crate::memory) fn copy(
        &self,
        (number, from, last): (usize, LogPlace, Stamp),
        writer: &mut SegmentWriter,
        runs: &mut Vec<SealRun>,
    ) -> Option<LogPlace> {
        let (mut offset, mut left) = (from.offset, COPY_BYTES);
        let end = from.slot.saturating_add(LOOK_CHANNELS).min(self.channels.extent());
        for slot in from.slot..end {
            let Some(log) = self.channels.get(slot).and_then(|channel| channel.log.as_ref()) else {
                offset = 0;
                continue;
            };
            let first = writer.len();
            let is_done = log.each_sealable(offset, last, |content| {
                if left == 0 || writer.is_full() {
                    return false;
                }
                writer.push(content);
                offset = content.id.offset;
                left = left.saturating_sub(content.weight_bytes());
                true
            });
            if writer.len() > first {
                runs.push(SealRun { shard: number, slot, first, end: writer.len() });
            }
            if !is_done {
                return Some(LogPlace { slot, offset });
            }
            offset = 0;
        }
        (end < self.channels.extent()).then_some(LogPlace { slot: end, offset: 0 })
    }

    /// Lets a log refer to the first messages of a run instead of having them. Returns their bytes,
    /// and the rest of the run if there is one.
    pub(in crate::memory) fn replace(
        &mut self,
        run: SealRun,
        segment: &Arc<Segment>,
    ) -> (usize, Option<SealRun>) {
        let SealRun { slot, first, end, .. } = run;
        let to = end.min(first + REPLACE_MESSAGES);
        let mut bytes = 0;
        // The channel may have been forgotten meanwhile, and another one may be in its slot.
        let Shard { channels, names, .. } = self;
        let is_it = |name| {
            let name = ChannelName::from_key(names.get(name));
            segment.get(first).is_of(&SealedName::new(&name))
        };
        let channel = channels.get_mut(slot).filter(|channel| is_it(channel.name));
        if let Some(log) = channel.and_then(|channel| channel.log.as_mut()) {
            for at in first..to {
                if log.seal(segment, at) {
                    bytes += segment.get(at).weight_bytes;
                }
            }
        }
        (bytes, (to < end).then_some(SealRun { first: to, ..run }))
    }

    /// Takes the messages out of all segments up to the one with this number.
    pub(in crate::memory) fn unseal(&mut self, last: u32) {
        for channel in self.channels.iter_mut() {
            if let Some(log) = &mut channel.log {
                log.unseal(last);
            }
        }
    }
}
