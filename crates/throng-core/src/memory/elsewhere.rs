//! Channels whose logs a journal keeps, on a disk or elsewhere.
//!
//! The memory keeps their followers and, while they are followed, their heads. It delivers what the
//! journal has, and answers for everything else that is not a log.
//!
//! # Contract
//!
//! * The journal hands over the messages of a channel in the order of their offsets.
//! * A backlog is read under the lock of the channel's shard ([`MemoryEngine::follow_elsewhere`]).
//!   It has all messages that were handed over before, or that are before its cursor; those that
//!   are handed over later are posted, too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::idempotency::{KEY_BYTES, Seed};
use super::{MemoryEngine, SHARDS};
use crate::engine::{Follow, Followed};
use crate::id::{Epoch, MessageId, WorkerId};
use crate::message::{Content, Message};
use crate::name::ChannelName;
use crate::publication::PublishError;
use crate::receipt::Receipt;
use crate::rules::{JournalId, Rule, Rules};
use crate::stamp::{Stamp, Watermark};

/// The place of the journal that takes its stamps from here among those that give out stamps.
const JOURNAL: u32 = SHARDS as u32;

/// The start of a subscription to a log that is elsewhere.
#[derive(Debug)]
pub struct Backlog {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset after which the subscription starts.
    pub cursor: u64,
    /// As in [`Followed::are_offsets_consecutive`].
    pub are_offsets_consecutive: bool,
    /// As in [`Followed::is_recovered`].
    pub is_recovered: Option<bool>,
    /// As in [`Followed::is_sparse`].
    pub is_sparse: bool,
    /// As in [`Followed::is_ended`].
    pub is_ended: bool,
    /// The messages after the cursor up to the head, oldest first.
    pub messages: Vec<Arc<Message>>,
}

impl MemoryEngine {
    /// The same engine with positions that continue after earlier processes: they have this epoch,
    /// and a stamp beyond `newest`. Messages up to it that only the memory had are lost.
    #[must_use]
    pub fn with_positions(mut self, epoch: Epoch, newest: Stamp) -> MemoryEngine {
        self.shared.positions = epoch;
        self.shared.stamps.resume_after(newest);
        self.shared.lose_all(newest);
        self
    }

    /// The same engine, without channels so far, which tells publishers apart as the process did
    /// that had this seed: a journal has kept who holds what of its room.
    #[must_use]
    pub fn with_holder_seed(mut self, seed: [u8; KEY_BYTES]) -> MemoryEngine {
        self.shared.idempotency_seed = Seed(seed);
        self
    }

    /// The seed of the hashes of publishers. It is secret: a client that knew it could choose a
    /// name that shares the room of another user.
    pub fn holder_seed(&self) -> [u8; KEY_BYTES] {
        self.shared.idempotency_seed.0
    }

    /// The rules of all channels.
    pub fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    /// The same engine, whose lists have all channels of a journal that have subscribers: it has
    /// no list.
    #[must_use]
    pub fn with_all_listed(mut self, journal: JournalId) -> MemoryEngine {
        self.shared.listed_here = Some(journal);
        self
    }

    /// True if a channel's log is in the journal that has no list of its own.
    pub fn is_in_listed(&self, name: &ChannelName) -> bool {
        let journal = self.rule(name).journal;
        journal.is_some() && journal == self.shared.listed_here
    }

    /// The same engine, thawed from one whose positions have this epoch.
    #[must_use]
    pub fn with_epoch_of_positions(mut self, epoch: Epoch) -> MemoryEngine {
        self.shared.positions = epoch;
        self
    }

    /// The rule of a channel.
    pub fn rule(&self, name: &ChannelName) -> &Rule {
        self.shared.rules.get(self.shared.rules.find(name))
    }

    /// True if this position was given out, in this process or an earlier one.
    pub fn is_known(&self, position: Watermark) -> bool {
        self.shared.is_known(position)
    }

    /// Begins a group of messages that the journal writes: the stamps that it gets from now on are
    /// not settled before [`MemoryEngine::end_group`]. Others before it may be under way.
    pub fn begin_group(&self) {
        self.shared.stamps.begin_group(JOURNAL);
    }

    /// The stamp of the next message of the group.
    pub fn next_stamp(&self) -> Stamp {
        self.shared.stamps.next()
    }

    /// Ends the oldest group: each of its messages was delivered, or gets another stamp.
    pub fn end_group(&self) {
        self.shared.stamps.end_group(JOURNAL);
    }

    /// The highest stamp that was given out.
    pub fn newest_stamp(&self) -> Stamp {
        self.shared.stamps.newest()
    }

    /// Refuses a publication for which the followers of the channel have no room.
    ///
    /// # Errors
    ///
    /// [`PublishError::Busy`], and counts it.
    pub fn check_room(&self, name: &ChannelName) -> Result<(), PublishError> {
        if self.has_room(name) {
            return Ok(());
        }
        self.shared.busy.fetch_add(1, Ordering::Relaxed);
        Err(PublishError::Busy)
    }

    /// True if the followers of a channel have room for another message.
    pub fn has_room(&self, name: &ChannelName) -> bool {
        let (at, hashed) = self.find(name);
        self.lock(at).has_room(&self.shared, hashed)
    }

    /// Delivers a message that the journal has. Returns how many subscriptions it is for. `begin`
    /// is called first, under the lock of the channel's shard.
    pub fn deliver(
        &self,
        content: &Arc<Content>,
        receipt: Option<&Arc<Receipt>>,
        begin: impl FnOnce(),
    ) -> u64 {
        let (subscribers, workers) = self.deliver_asleep(content, receipt, begin);
        self.wake(workers);
        self.shared.published.fetch_add(1, Ordering::Relaxed);
        subscribers
    }

    /// The same, for a journal that has more to deliver, also of other processes: it counts its own
    /// publications, and wakes these workers later ([`MemoryEngine::wake`]). So none of them gets
    /// the processor for each single message.
    pub fn deliver_asleep(
        &self,
        content: &Arc<Content>,
        receipt: Option<&Arc<Receipt>>,
        begin: impl FnOnce(),
    ) -> (u64, Vec<WorkerId>) {
        let (at, hashed) = self.find(&content.channel);
        let mut shard = self.lock(at);
        begin();
        shard.deliver(&self.shared, hashed.hash, content, receipt)
    }

    /// Wakes workers, for which something was delivered.
    pub fn wake(&self, workers: impl IntoIterator<Item = WorkerId>) {
        workers.into_iter().for_each(|worker| self.shared.queue(worker).wake());
    }

    /// Counts a publication whose idempotency key the journal knew.
    pub fn count_duplicate(&self) {
        self.shared.duplicates.fetch_add(1, Ordering::Relaxed);
    }

    /// The offset of the newest message that was delivered, if the channel is followed and has not
    /// ended.
    pub fn followed_head(&self, name: &ChannelName) -> Option<u64> {
        let (at, hashed) = self.find(name);
        self.lock(at).followed_head(hashed)
    }

    /// As [`MemoryEngine::follow`], of a channel whose backlog `read` returns.
    /// `read` is called under the lock of the channel's shard, and must not call the engine.
    pub(crate) fn follow_elsewhere(
        &self,
        now_ms: u64,
        follow: &Follow<'_>,
        read: impl FnOnce() -> Backlog,
    ) -> Followed {
        let (at, hashed) = self.find(follow.channel);
        self.lock(at).follow_elsewhere(&self.shared, now_ms, hashed.hash, follow, read)
    }
}
