//! A step of a list through a shard's slots.

use std::ops::Range;

use super::Shard;
use crate::listing::{ListPlace, ListStep, ListedChannel, STEP_CHANNELS_MAX, Selection};
use crate::memory::shared::Shared;
use crate::name::{ChannelName, Kind, kind_of_key};

/// Vacant slots that take no longer to look at than one channel. A shard that had many channels
/// keeps their slots.
const SLOTS_PER_CHANNEL: usize = 32;

/// The rest of a step's budget, in vacant slots.
#[derive(Debug)]
pub(in crate::memory) struct StepBudget(usize);

impl Default for StepBudget {
    fn default() -> StepBudget {
        StepBudget(STEP_CHANNELS_MAX * SLOTS_PER_CHANNEL)
    }
}

impl StepBudget {
    /// Takes what a slot costs; false if nothing is left.
    fn take(&mut self, slots: usize) -> bool {
        let is_left = self.0 > 0;
        self.0 = self.0.saturating_sub(slots);
        is_left
    }
}

/// The shard and the slot after a place.
pub(in crate::memory) fn after(place: Option<ListPlace>) -> (usize, u32) {
    let next = place.map_or(0, |place| place.0.saturating_add(1));
    ((next >> u32::BITS) as usize, next as u32)
}

impl Shard {
    /// Adds the channels of `kind` to `step`, from a slot on, until the budget is used up. Returns
    /// whether it is; then the step knows where the next one begins.
    pub(in crate::memory) fn list(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        (kind, from): (Kind, u32),
        budget: &mut StepBudget,
        step: &mut ListStep,
    ) -> bool {
        let place = |slot| ListPlace(u64::from(self.number) << u32::BITS | u64::from(slot));
        for slot in from..self.channels.extent() {
            let is_left = self.is_left(shared, slot);
            let channel = self.channels.get_mut(slot);
            if !budget.take(channel.as_ref().map_or(1, |_| SLOTS_PER_CHANNEL)) {
                // The first slot of a step is always looked at, so there is one before this.
                step.next = Some(ListPlace(place(slot).0 - 1));
                return true;
            }
            let Some(channel) = channel else { continue };
            let key = self.names.get(channel.name);
            if kind_of_key(key) != kind || is_left {
                continue;
            }
            channel.expire(shared, now_ms);
            // A journal lists its channels that have had messages.
            let journal = shared.rules.get(channel.rule).journal;
            let is_listed_elsewhere =
                channel.head > 0 && journal.is_some() && journal != shared.listed_here;
            if channel.is_forgettable() || is_listed_elsewhere {
                continue;
            }
            step.channels.push(ListedChannel {
                place: place(slot),
                name: ChannelName::from_key(key),
                subscribers: channel.followers.subscribers(),
                head: shared.message_id(channel.head),
                messages: channel.log.as_ref().map_or(0, |log| log.readable()),
            });
        }
        false
    }

    /// How many slots a pass over all channels looks at.
    pub(in crate::memory) fn extent(&self) -> u32 {
        self.channels.extent()
    }

    /// Adds the channels in `slots` to a selection.
    pub(in crate::memory) fn select(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slots: Range<u32>,
        selection: &mut Selection<'_>,
    ) {
        for slot in slots {
            let is_left = self.is_left(shared, slot);
            let Some(channel) = self.channels.get_mut(slot) else { continue };
            if !selection.may_have(channel.order) {
                continue;
            }
            let key = self.names.get(channel.name);
            if kind_of_key(key) != selection.kind() || is_left {
                continue;
            }
            // Behind the byte of the kind.
            let Some(position) = selection.position(&key[1..]) else { continue };
            channel.expire(shared, now_ms);
            if channel.is_forgettable() {
                continue;
            }
            let listed = ListedChannel {
                place: ListPlace(0),
                name: ChannelName::from_key(key),
                subscribers: channel.followers.subscribers(),
                head: shared.message_id(channel.head),
                messages: channel.log.as_ref().map_or(0, |log| log.readable()),
            };
            selection.add(position, listed);
        }
    }
}
