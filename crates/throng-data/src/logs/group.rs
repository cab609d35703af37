//! What one commit is made of, while it is put together.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use throng_core::ChannelName;

use super::format::{Head, KnownKey, Measure};
use crate::storage::{Space, Write};

/// Messages that a commit drops at most, beside what each publication may: some milliseconds of
/// work.
pub(super) const TRIMMED_PER_COMMIT: usize = 2_000;

/// A table of channels.
pub(super) type Channels<T> = HashMap<ChannelName, T, RandomState>;

/// Changes, and what else they may be.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<Write>,
    /// How many more messages may be dropped.
    pub(super) trims_left: usize,
}

impl Batch {
    pub(super) fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.writes.push(Write { space, key, value: Some(value) });
    }

    pub(super) fn remove(&mut self, space: Space, key: Vec<u8>) {
        self.writes.push(Write { space, key, value: None });
    }
}

/// What a group knows of a channel.
#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    /// The new head.
    pub(super) head: Head,
    /// The newest acknowledged offset.
    pub(super) acknowledged: u64,
    /// The messages after it, all of which are the group's: it may drop its own.
    pub(super) new: Vec<Measure>,
}

impl Channel {
    pub(super) fn new(head: Head) -> Channel {
        Channel { head, acknowledged: head.offset, new: Vec::new() }
    }

    /// What is known of a message, if it is the group's.
    pub(super) fn measure(&self, offset: u64) -> Option<Measure> {
        let at = offset.checked_sub(self.acknowledged + 1)?;
        self.new.get(usize::try_from(at).ok()?).copied()
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Group {
    pub(super) batch: Batch,
    /// Channels with their new heads, which have not been committed.
    pub(super) channels: Channels<Channel>,
    /// New idempotency keys.
    pub(super) keys: HashMap<Vec<u8>, KnownKey, RandomState>,
    /// Where the new messages are, in the writes and among what became of the publications.
    pub(super) messages: Vec<(usize, usize)>,
    /// How many channels are new.
    pub(super) new_channels: u64,
}

impl Group {
    /// A commit that may drop this many messages.
    pub(super) fn with_trims(trims_left: usize) -> Group {
        Group { batch: Batch { trims_left, ..Batch::default() }, ..Group::default() }
    }
}
