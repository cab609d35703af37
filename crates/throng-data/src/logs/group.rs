//! The content of one commit, while it is put together.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use throng_core::{ChannelName, Charges, IDEMPOTENCY_MS, KnownRecord, RoomHolder, records};

use super::due::Earliest;
use super::format::{self, KnownKey, LogHead, Measure, Scratch};
use super::group_state::GroupState;
use super::state_rows::{AllStates, CreatorRow, StateRow};
use super::unreadable::Unreadable;
use crate::storage::{Bytes, Space, Write};

/// Messages that a commit drops at most, beside what each publication may: some milliseconds of
/// work.
pub(super) const TRIMMED_PER_COMMIT: usize = 2_000;

/// Changes that most publications make, with the head of their channel.
const WRITES_PER_PUBLICATION: usize = 2;

/// A table of channels.
pub(super) type ChannelMap<T> = HashMap<ChannelName, T, RandomState>;

/// Changes, and what else they may be.
#[derive(Default)]
pub(super) struct WriteBatch {
    pub(super) writes: Vec<Write>,
    /// How many more messages may be dropped.
    pub(super) trims_left: usize,
    pub(super) scratch: Scratch,
    pub(super) unreadable: Unreadable,
    pub(super) earliest: Earliest,
    /// Channels in whose states something may be due for another reason than the time.
    pub(super) key_work: Vec<ChannelName>,
    /// What is added to all states, and taken from them.
    added: AllStates,
    taken: AllStates,
    /// What publishers hold more, or less, of states and creations.
    pub(super) charged: HashMap<RoomHolder, isize, RandomState>,
}

impl WriteBatch {
    /// Counts the state of a log, which was this before.
    pub(super) fn count_state(&mut self, before: &StateRow, now: &mut GroupState) {
        for (all, row) in [(&mut self.added, now.row()), (&mut self.taken, before)] {
            all.keys += row.keys;
            all.bytes += row.bytes;
        }
        self.charge(&mut now.charges);
    }

    /// Counts the creation of a channel, or its end.
    pub(super) fn count_creation(&mut self, row: &CreatorRow, is_there: bool) {
        let all = if is_there { &mut self.added } else { &mut self.taken };
        all.creations += row.bytes;
        let (holder, bytes) = row.charge();
        let mut charges = Charges::default();
        charges.add(holder, if is_there { bytes } else { -bytes });
        self.charge(&mut charges);
    }

    /// Counts what publishers hold.
    pub(super) fn charge(&mut self, charges: &mut Charges) {
        for (holder, bytes) in charges.drain() {
            *self.charged.entry(holder).or_default() += bytes;
        }
    }

    /// How much there is of all states after the commit.
    pub(super) fn states_after(&self, before: AllStates) -> AllStates {
        AllStates {
            keys: (before.keys + self.added.keys).saturating_sub(self.taken.keys),
            bytes: (before.bytes + self.added.bytes).saturating_sub(self.taken.bytes),
            creations: (before.creations + self.added.creations)
                .saturating_sub(self.taken.creations),
        }
    }

    pub(super) fn put(&mut self, space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(Write::put(space, key, value));
    }

    fn push(&mut self, write: Write) {
        if write.value.is_some() {
            self.earliest.note(write.space, &write.key);
        }
        self.writes.push(write);
    }

    pub(super) fn remove(&mut self, space: Space, key: impl Into<Bytes>) {
        self.writes.push(Write::remove(space, key));
    }
}

/// Messages by which the head of a busy channel on the disk may lag: as many are read to know it
/// when it is not in memory.
const LAG_MAX: u64 = if cfg!(test) { 3 } else { 64 };

/// A head, and how it is on the disk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownHead {
    pub(super) head: LogHead,
    /// The same as it was stored last.
    pub(super) stored: LogHead,
}

/// A group's state of a channel.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupChannel {
    pub(super) head: LogHead,
    /// The head as it was stored last.
    pub(super) stored: LogHead,
    /// True if it was written lately.
    pub(super) is_busy: bool,
    /// The newest acknowledged offset.
    pub(super) acknowledged: u64,
    /// The messages after it, all of which are the group's: it may drop its own.
    pub(super) new: New,
    /// The messages that the group erases, each with what is left of it.
    pub(super) erased: Vec<(u64, Measure)>,
    /// The log's record, if the group has read it.
    pub(super) record: Option<Box<GroupRecord>>,
    /// The log's state, if the group has read it.
    pub(super) state: Option<Box<GroupState>>,
}

/// A group's state of a record.
#[derive(Debug, Clone)]
pub(super) struct GroupRecord {
    /// The record that readers get until the group is acknowledged.
    pub(super) acknowledged: Option<KnownRecord>,
    pub(super) now: Option<KnownRecord>,
    /// What is known of the room that its creation takes.
    pub(super) creator: Option<Option<CreatorRow>>,
}

/// Messages in the order of their offsets. Most channels have one in a group.
#[derive(Debug, Clone, Default)]
pub(super) struct New {
    first: Option<Measure>,
    others: Vec<Measure>,
}

impl New {
    pub(super) fn push(&mut self, measure: Measure) {
        match self.first {
            None => self.first = Some(measure),
            Some(_) => self.others.push(measure),
        }
    }

    fn get(&self, at: usize) -> Option<Measure> {
        match at.checked_sub(1) {
            None => self.first,
            Some(at) => self.others.get(at).copied(),
        }
    }
}

impl GroupChannel {
    /// One that was written lately.
    pub(super) fn busy(KnownHead { head, stored }: KnownHead) -> GroupChannel {
        let acknowledged = head.offset;
        GroupChannel { head, stored, is_busy: true, acknowledged, ..GroupChannel::default() }
    }

    /// One that was read from the disk.
    pub(super) fn read(head: LogHead) -> GroupChannel {
        GroupChannel { is_busy: false, ..GroupChannel::busy(KnownHead { head, stored: head }) }
    }

    /// Stores the head.
    pub(super) fn store(&mut self, batch: &mut WriteBatch, name: &ChannelName) {
        self.store_state(batch, name);
        let (key, value) = (batch.scratch.name(name), batch.scratch.head(&self.head));
        batch.put(Space::Heads, key, value);
        self.stored = self.head;
    }

    fn store_state(&mut self, batch: &mut WriteBatch, name: &ChannelName) {
        if let Some(state) = &mut self.state {
            let writes = state.store(name, self.head.has_keys);
            writes.into_iter().for_each(|write| batch.push(write));
            batch.charge(&mut state.charges);
        }
    }

    /// Stores the head after the log was changed, unless it is known without.
    pub(super) fn store_if_needed(&mut self, batch: &mut WriteBatch, name: &ChannelName) {
        if self.head.number == 0 {
            // Nothing was changed: the channel is not there.
            return;
        }
        self.store_state(batch, name);
        let LogHead { floor, lost, number, expires_ms, may_lag, .. } = self.stored;
        let is_derivable = may_lag
            && self.stored.has_record == self.head.has_record
            && self.stored.has_keys == self.head.has_keys
            && self.stored.has_ended == self.head.has_ended
            && self.stored.is_erased == self.head.is_erased
            && (floor, lost, number) == (self.head.floor, self.head.lost, self.head.number)
            && expires_ms == self.head.expires_ms
            && self.head.offset - self.stored.offset < LAG_MAX;
        if !self.is_busy || !is_derivable {
            self.head.may_lag = self.is_busy;
            self.store(batch, name);
        }
    }

    pub(super) fn known(&self) -> KnownHead {
        KnownHead { head: self.head, stored: self.stored }
    }

    /// Replaces a message by what is left of it.
    pub(super) fn replace(&mut self, offset: u64, before: Measure, after: Measure) {
        self.head.replace(&before, &after);
        self.erased.push((offset, after));
        // Messages that the head on the disk has counted are others now.
        self.is_busy = false;
    }

    /// True if the group erases a message.
    pub(super) fn is_erased(&self, offset: u64) -> bool {
        self.erased.iter().any(|(erased, _)| *erased == offset)
    }

    /// The facts about a message that the group writes.
    pub(super) fn measure(&self, offset: u64) -> Option<Measure> {
        if let Some((_, left)) = self.erased.iter().find(|(erased, _)| *erased == offset) {
            return Some(*left);
        }
        let at = offset.checked_sub(self.acknowledged + 1)?;
        self.new.get(usize::try_from(at).ok()?)
    }
}

/// A message that a group adds.
pub(super) struct NewMessage {
    /// Its place in the writes.
    pub(super) write: usize,
    /// True if the group erases it, too.
    pub(super) is_erased: bool,
}

#[derive(Default)]
pub(super) struct Group {
    pub(super) batch: WriteBatch,
    /// Channels with their new heads, which have not been committed.
    pub(super) channels: ChannelMap<GroupChannel>,
    pub(super) keys: HashMap<Vec<u8>, KnownKey, RandomState>,
    /// The new messages, in their order.
    pub(super) messages: Vec<NewMessage>,
    /// True if the group erases a history.
    pub(super) has_erased: bool,
    /// True if the group erases anything.
    pub(super) erases: bool,
    /// How many channels are new.
    pub(super) new_channels: u64,
}

/// True if a user is erased with this: what else was removed of the user is before it.
fn ends_user_erasure(write: &Write) -> bool {
    let table = (write.space == Space::Records).then(|| write.key.first()).flatten();
    write.value.is_none() && table == Some(&(records::Table::UserErasures as u8))
}

impl Group {
    /// A commit of this many messages, which may drop `trims_left` others.
    pub(super) fn of(publications: usize, changes: Vec<Write>, trims_left: usize) -> Group {
        let mut group = Group::with_trims(trims_left);
        group.erases = changes.iter().any(ends_user_erasure);
        group.batch.writes = changes;
        group.batch.writes.reserve(publications * WRITES_PER_PUBLICATION);
        group.messages.reserve(publications);
        group.channels.reserve(publications);
        group
    }

    /// Remembers an idempotency key.
    pub(super) fn remember(&mut self, key: &[u8], known: KnownKey) {
        let expires_ms = known.at_ms.saturating_add(IDEMPOTENCY_MS);
        self.batch.put(Space::KeyExpiry, format::at(expires_ms, key), []);
        self.batch.put(Space::Keys, key, known.encode());
        self.keys.insert(key.into(), known);
    }

    /// A commit that may drop this many messages.
    pub(super) fn with_trims(trims_left: usize) -> Group {
        Group { batch: WriteBatch { trims_left, ..WriteBatch::default() }, ..Group::default() }
    }
}
