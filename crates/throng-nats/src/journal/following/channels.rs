//! The table of followed channels: by slot, and by name.

use std::hash::BuildHasher as _;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;
use throng_core::names::NameRef;
use throng_core::{ChannelId, ChannelName};

use crate::journal::subscription::Subscription;
use crate::names::NamesByNumber;
use crate::subject;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    /// The head is not known yet.
    Joining,
    /// All up to the head is reported, and nothing more is known to be there.
    Live,
    /// Something after the head may be missing: it is compared with the stream, or filled.
    Behind,
}

pub(super) struct JournalChannel {
    /// While it joins, a sequence that the stream had reached before.
    pub(super) head: u64,
    pub(super) target: u64,
    /// Since when the target could be reached, in milliseconds, cut to 32 bits.
    pub(super) target_since_ms: u32,
    /// Since when it is behind, if it is, in the same way.
    pub(super) behind_since_ms: u32,
    pub(super) key: ChannelId,
    /// Of no meaning while the slot is free.
    name: NameRef,
    generation: u16,
    pub(super) state: SlotState,
    /// True if it waits to be filled, or is.
    pub(super) is_filling: bool,
    /// True if the server allows no subscription for it.
    pub(super) is_polled: bool,
}

// Beside it a channel has its name, and a place in the index.
const _: () = assert!(size_of::<JournalChannel>() <= 40);

impl JournalChannel {
    /// Changes the state. `behind` counts the channels that are behind.
    pub(super) fn turn(&mut self, state: SlotState, behind: &mut usize) {
        *behind -= usize::from(self.state == SlotState::Behind);
        *behind += usize::from(state == SlotState::Behind);
        self.state = state;
    }
}

#[derive(Default)]
pub(super) struct JournalChannels {
    slots: Vec<JournalChannel>,
    free: Vec<u32>,
    names: NamesByNumber,
    /// Slots by the hash of the names of their channels.
    index: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
}

impl Index<u32> for JournalChannels {
    type Output = JournalChannel;

    fn index(&self, slot: u32) -> &JournalChannel {
        &self.slots[slot as usize]
    }
}

impl IndexMut<u32> for JournalChannels {
    fn index_mut(&mut self, slot: u32) -> &mut JournalChannel {
        &mut self.slots[slot as usize]
    }
}

impl JournalChannels {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Slots are below this number.
    pub(super) fn extent(&self) -> u32 {
        self.slots.len() as u32
    }

    /// All slots, also those without a channel.
    pub(super) fn iter(&self) -> impl Iterator<Item = &JournalChannel> {
        self.slots.iter()
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut JournalChannel> {
        self.slots.iter_mut()
    }

    pub(super) fn find(&self, name: &ChannelName) -> Option<u32> {
        let key = name.key();
        let is_it = |slot: &u32| self.names.is((*slot, self[*slot].name), key);
        self.index.find(self.hasher.hash_one(key), is_it).copied()
    }

    /// The channel of a subscription, if it has one still.
    pub(super) fn get(&mut self, subscription: Subscription) -> Option<&mut JournalChannel> {
        let channel = self.slots.get_mut(subscription.slot as usize)?;
        let is_it =
            channel.generation == subscription.generation && channel.state != SlotState::Free;
        is_it.then_some(channel)
    }

    /// The subscription of the channel in a slot.
    pub(super) fn subscription(&self, slot: u32) -> Subscription {
        Subscription { slot, generation: self[slot].generation }
    }

    /// The name of the channel in a slot.
    pub(super) fn name(&self, slot: u32) -> ChannelName {
        self.names.name((slot, self[slot].name))
    }

    /// How the subjects of the channel in a slot end.
    pub(super) fn suffix(&self, slot: u32) -> Box<str> {
        // Only channels that have one are here.
        subject::suffix(&self.name(slot)).unwrap_or_default()
    }

    /// Adds a channel that joins, and has a suffix. The stream has reached `head` before.
    pub(super) fn insert(&mut self, name: &ChannelName, key: ChannelId, head: u64) -> u32 {
        debug_assert!(subject::has_suffix(name) && self.find(name).is_none());
        let slot = self.free.pop().unwrap_or(self.extent());
        let channel = JournalChannel {
            head,
            target: 0,
            target_since_ms: 0,
            behind_since_ms: 0,
            key,
            name: self.names.add(slot, name),
            generation: 0,
            state: SlotState::Joining,
            is_filling: false,
            is_polled: false,
        };
        match self.slots.get_mut(slot as usize) {
            Some(place) => {
                let generation = place.generation.wrapping_add(1);
                *place = JournalChannel { generation, ..channel };
            }
            None => self.slots.push(channel),
        }
        let (slots, names, hasher) = (&self.slots, &self.names, &self.hasher);
        self.index.insert_unique(hasher.hash_one(name.key()), slot, |slot| {
            hasher.hash_one(names.key((*slot, slots[*slot as usize].name)))
        });
        slot
    }

    /// Removes a channel. Returns its subscription.
    pub(super) fn remove(
        &mut self,
        name: &ChannelName,
        behind: &mut usize,
    ) -> Option<Subscription> {
        let slot = self.find(name)?;
        let hash = self.hasher.hash_one(name.key());
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        let subscription = self.subscription(slot);
        let channel = &mut self[slot];
        channel.turn(SlotState::Free, behind);
        let at = channel.name;
        let numbered = (0..).zip(&mut self.slots);
        let others = numbered.filter(|(_, channel)| channel.state != SlotState::Free);
        self.names.forget((slot, at), others.map(|(slot, channel)| (slot, &mut channel.name)));
        self.free.push(slot);
        Some(subscription)
    }
}
