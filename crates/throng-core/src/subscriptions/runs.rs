//! Messages that many subscriptions of a channel catch up with, in one piece of bytes.
//!
//! A state has thousands of messages. With an encoding for each in a place of its own, writing all
//! of them to thousands of subscribers would wait for the memory more than for the kernel.
//!
//! Invariants: every message of a run that has not been dropped as the oldest is in the replay
//! buffer, and what a subscription in the middle of a run lacks begins with the rest of the run.
//! No two runs of a form have a message in common, so that all of them have no more bytes than the
//! encodings of the buffer. They go when shared encodings do.

use std::sync::Arc;

use crate::message::Message;

/// Bytes of a run, roughly. A write takes one at most.
const RUN_BYTES: usize = 64 << 10;

/// What the bytes of a message depend on: its encoding, and whether they stand in an HTTP chunk.
pub(super) type Form = (u8, bool);

/// Appends the bytes of a message in a form.
pub(super) type Append<'a> = &'a mut dyn FnMut(&Message, &mut Vec<u8>);

/// Consecutive messages of a replay buffer in one form.
#[derive(Debug)]
pub(super) struct Run {
    kind: Kind,
    /// What a cursor at this offset lacks begins with the first message.
    after: u64,
    ends: Vec<End>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) form: Form,
    /// True if messages without keys are left out.
    pub(super) is_state: bool,
}

/// Where a message of a run ends.
#[derive(Debug, Clone, Copy)]
struct End {
    offset: u64,
    /// Its place in the bytes of the run.
    at: u32,
}

/// The messages from one of a run to its last.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    from: u32,
    ends: &'a [End],
    bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// The bytes of the messages.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of bytes of each message, and its offset.
    pub fn messages(&self) -> impl Iterator<Item = (usize, u64)> + use<'a> {
        let mut from = self.from;
        self.ends.iter().map(move |end| {
            let length = end.at - std::mem::replace(&mut from, end.at);
            (length as usize, end.offset)
        })
    }
}

impl Run {
    /// The messages that a cursor lacks: up to the offset `to`, and before one that is not for
    /// everyone. `None` if there are none.
    pub(super) fn new<'m>(
        (kind, after): (Kind, u64),
        lacking: impl Iterator<Item = &'m Arc<Message>>,
        to: u64,
        append: Append<'_>,
    ) -> Option<Run> {
        let mut run = Run { kind, after, ends: Vec::new(), bytes: Vec::new() };
        for message in lacking {
            let (offset, begin) = (message.id.offset, run.bytes.len());
            if offset > to || begin >= RUN_BYTES || !message.is_for_everyone() {
                break;
            }
            append(message, &mut run.bytes);
            // A dialect may have no word for it.
            if run.bytes.len() == begin {
                break;
            }
            run.ends.push(End { offset, at: run.bytes.len() as u32 });
        }
        (!run.ends.is_empty()).then_some(run)
    }

    /// The offset of the last message.
    pub(super) fn last(&self) -> u64 {
        self.ends.last().map_or(self.after, |end| end.offset)
    }

    /// What a cursor within the run lacks of it.
    pub(super) fn rest(&self, cursor: u64) -> Piece<'_> {
        let passed = self.ends.partition_point(|end| end.offset <= cursor);
        let from = passed.checked_sub(1).map_or(0, |last| self.ends[last].at);
        Piece { from, ends: &self.ends[passed..], bytes: &self.bytes[from as usize..] }
    }
}

/// The runs of a replay buffer.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// They are not true any more, or have stayed for long enough.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// The place of the run with the next message that a cursor lacks; or if there is none, the
    /// offset after which the next one begins.
    pub(super) fn find(&self, kind: Kind, cursor: u64) -> Result<usize, u64> {
        let mut next = u64::MAX;
        for (at, run) in self.0.iter().enumerate().filter(|(_, run)| run.kind == kind) {
            if (run.after..run.last()).contains(&cursor) {
                return Ok(at);
            }
            if run.after > cursor {
                next = next.min(run.after);
            }
        }
        Err(next)
    }

    /// Adds a run. Returns its place.
    pub(super) fn add(&mut self, run: Run) -> usize {
        self.0.push(run);
        self.0.len() - 1
    }

    /// The run at a place that was found, or at which it was added.
    pub(super) fn get(&self, at: usize) -> Option<&Run> {
        self.0.get(at)
    }
}
