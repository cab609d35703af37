//! The channels that are followed, and how far each is.
//!
//! A channel has a head, up to which all messages were reported, and a target, up to which there
//! are messages for certain. Where the target is beyond the head, the channel is filled: what lies
//! between is read from the stream. Nothing that was republished is kept for later, since the
//! stream has it.

mod channels;
mod held;
mod polled;
mod polling;

use std::collections::{BTreeMap, VecDeque};

use throng_core::{ChannelId, ChannelName};

use super::outbox::{JournalAction, Outbox, Question};
use super::queue::shrink;
use super::report::{JournalReport, Reading};
use super::subscription::Subscription;
use crate::api::get::{self, Chain, Part};
use crate::api::message;
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};
use channels::{JournalChannel, JournalChannels, SlotState};
use polled::Polled;

/// Requests for heads that are under way at a time.
const HEADS_IN_FLIGHT_MAX: usize = 4;

/// A request for heads has at most this many bytes, or half of the largest message that the server
/// accepts.
const HEADS_BYTES_MAX: usize = 256 << 10;

/// After this time without an end, a request for heads is made again.
const HEADS_MS: u64 = 2_000;

/// How much later new subscriptions are compared with the stream once more, if it has several
/// servers: the interest in a channel reaches the leader some time after the server of this node.
const CONFIRM_MS: u64 = 250;

/// The same after a new leader: replicas may lag.
const CONFIRM_LEADER_MS: u64 = 1_000;

/// After this time a filling that did not reach its target is tried again.
const REFILL_MS: u64 = 50;

/// After this time a target that is not reached counts as lost. All servers would have to lag so
/// far, or the message be dropped within that time.
const LOST_MS: u64 = 5_000;

/// A request for the heads of channels.
struct Heads {
    /// Those that have no answer yet.
    slots: BTreeMap<u32, u16>,
    /// A sequence that the stream had reached before the first of them was subscribed to.
    floor: u64,
    chain: Chain,
    /// True if a part of the answer is missing, so that no channel is known to be empty.
    is_torn: bool,
    asked_ms: u64,
}

pub(super) struct Following {
    channels: JournalChannels,
    /// Slots whose heads are to be asked for, and what was known when they were queued.
    unasked: VecDeque<(u32, u64)>,
    heads: BTreeMap<u64, Heads>,
    fills: VecDeque<Subscription>,
    /// Fills to be tried again, oldest first.
    refills: VecDeque<(u64, Subscription)>,
    /// Comparisons to be made again, by time.
    confirms: VecDeque<(u64, Subscription)>,
    confirm_all_ms: Option<u64>,
    has_replicas: bool,
    /// True if no message is reported for now.
    is_held: bool,
    /// How many channels are behind.
    behind: usize,
    polled: Polled,
}

impl Following {
    pub(super) fn new(has_replicas: bool) -> Following {
        Following {
            channels: JournalChannels::default(),
            unasked: VecDeque::new(),
            heads: BTreeMap::new(),
            fills: VecDeque::new(),
            refills: VecDeque::new(),
            confirms: VecDeque::new(),
            confirm_all_ms: None,
            has_replicas,
            behind: 0,
            is_held: false,
            polled: Polled::default(),
        }
    }

    /// True if no channel is known to lack messages, or suspected to.
    pub(super) fn is_whole(&self) -> bool {
        self.behind == 0 && self.polled.count() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }

    fn find(&self, suffix: &str) -> Option<u32> {
        self.channels.find(&subject::channel(suffix)?)
    }

    /// Follows channels. `last` is a sequence that the stream has reached.
    pub(super) fn follow(
        &mut self,
        subjects: &Subjects,
        channels: Vec<(ChannelId, ChannelName)>,
        last: u64,
        outbox: &mut Outbox,
    ) {
        for (key, name) in channels {
            if !subject::has_suffix(&name) {
                continue;
            }
            if let Some(slot) = self.channels.find(&name) {
                let channel = &mut self.channels[slot];
                channel.key = key;
                if channel.state != SlotState::Joining {
                    outbox.report(JournalReport::Followed { channel: key, head: channel.head });
                }
                continue;
            }
            let slot = self.channels.insert(&name, key, last);
            self.unasked.push_back((slot, last));
            if outbox.is_connected() {
                self.join(slot, subjects, outbox);
            }
        }
    }

    pub(super) fn unfollow(&mut self, name: &ChannelName, outbox: &mut Outbox) {
        let slot = self.channels.find(name);
        let is_polled = slot.is_some_and(|slot| self.channels[slot].is_polled);
        let subscription = self.channels.remove(name, &mut self.behind);
        if is_polled {
            self.polled.forget();
        } else if let Some(subscription) = subscription.filter(|_| outbox.is_connected()) {
            outbox.actions.push(JournalAction::Unsubscribe { sid: subscription.sid() });
            self.polled.has_room();
        }
    }

    /// Forgets what was asked: it is asked again for all channels once the stream is open.
    pub(super) fn disconnected(&mut self) {
        self.heads.clear();
        self.fills.clear();
        self.refills.clear();
        self.confirms.clear();
        self.unasked.clear();
        self.confirm_all_ms = None;
        for channel in self.channels.iter_mut() {
            channel.is_filling = false;
        }
    }

    /// Compares all channels with the stream.
    fn suspect(&mut self, now_ms: u64) {
        self.unasked.clear();
        for (slot, channel) in (0..).zip(self.channels.iter_mut()) {
            if channel.state == SlotState::Live {
                channel.turn(SlotState::Behind, &mut self.behind);
                channel.behind_since_ms = now_ms as u32;
            }
            // Messages that could not be read meanwhile are not lost yet.
            channel.target_since_ms = now_ms as u32;
            if channel.state != SlotState::Free {
                self.unasked.push_back((slot, channel.head));
            }
        }
    }

    /// Messages of any channel may have come and expired while nothing was heard: a channel that is
    /// empty now does not show it. Those before `first` are gone.
    pub(super) fn has_missed(&self, first: u64, outbox: &mut Outbox) {
        let may_miss = |channel: &&JournalChannel| {
            !matches!(channel.state, SlotState::Free | SlotState::Joining)
                && channel.head + 1 < first
        };
        for channel in self.channels.iter().filter(may_miss) {
            outbox.report(JournalReport::Gap { channel: channel.key });
        }
    }

    /// Compares all channels with the stream, and again when replicas have caught up.
    pub(super) fn suspect_twice(&mut self, now_ms: u64) {
        self.suspect(now_ms);
        self.confirm_all_ms = self.has_replicas.then_some(now_ms + CONFIRM_LEADER_MS);
    }

    /// Begins anew with all channels: their sequences mean nothing any more. `last` is a sequence
    /// that the stream has reached under the new epoch.
    pub(super) fn rejoin(&mut self, now_ms: u64, last: u64, outbox: &mut Outbox) {
        for token in std::mem::take(&mut self.heads).into_keys() {
            outbox.answered(token);
        }
        self.disconnected();
        for channel in self.channels.iter_mut().filter(|channel| channel.state != SlotState::Free) {
            channel.turn(SlotState::Joining, &mut self.behind);
            (channel.head, channel.target) = (last, 0);
        }
        self.suspect_twice(now_ms);
    }

    /// Asks for the heads of channels that wait for it.
    pub(super) fn ask_heads(&mut self, now_ms: u64, subjects: &Subjects, outbox: &mut Outbox) {
        // Beside the subjects a request has quotes and commas.
        let bytes_max = HEADS_BYTES_MAX.min(outbox.payload_bytes_max / 2);
        while self.heads.len() < HEADS_IN_FLIGHT_MAX && !self.unasked.is_empty() {
            let (mut wanted, mut bytes, mut floor) = (Vec::new(), 0, u64::MAX);
            let mut slots = BTreeMap::new();
            while wanted.len() < get::HEADS_MAX
                && bytes < bytes_max
                && let Some((slot, reached)) = self.unasked.pop_front()
            {
                let is_asked = slots.contains_key(&slot);
                if self.channels[slot].state == SlotState::Free || is_asked {
                    continue;
                }
                slots.insert(slot, self.channels.subscription(slot).generation);
                let subject = subjects.ingest(&self.channels.suffix(slot));
                bytes += subject.len();
                floor = floor.min(reached);
                wanted.push(subject);
            }
            if wanted.is_empty() {
                continue;
            }
            let token = outbox.read(Question::Heads, get::heads(&wanted));
            self.heads.insert(
                token,
                Heads { slots, floor, chain: Chain::default(), is_torn: false, asked_ms: now_ms },
            );
        }
        shrink(&mut self.unasked);
    }

    /// Takes one answer about heads. Returns whether it was the last one.
    pub(super) fn heads_answered(
        &mut self,
        now_ms: u64,
        (token, headers): (u64, Headers<'_>),
        suffix: Option<&str>,
        outbox: &mut Outbox,
    ) -> bool {
        match get::part(headers) {
            Part::Message { sequence, previous } => {
                let Some(heads) = self.heads.get_mut(&token) else { return true };
                heads.is_torn |= heads.chain.continues(sequence, previous).is_none();
                let Some(slot) = suffix.and_then(|suffix| self.find(suffix)) else { return false };
                let heads = self.heads.get_mut(&token);
                let generation = heads.and_then(|heads| heads.slots.remove(&slot));
                if let Some(generation) = generation {
                    let subscription = Subscription { slot, generation };
                    self.head_is(now_ms, subscription, sequence, outbox);
                }
                false
            }
            Part::End { last, left, up_to } => {
                let Some(heads) = self.heads.remove(&token) else { return true };
                let is_torn = heads.is_torn || !heads.chain.ends(last);
                // A replica that lags may lack messages up to what others have reached.
                let floor = if self.has_replicas { 0 } else { heads.floor };
                for (slot, generation) in heads.slots {
                    if left > 0 || is_torn {
                        self.unasked.push_back((slot, heads.floor));
                    } else {
                        let subscription = Subscription { slot, generation };
                        self.is_empty(now_ms, subscription, floor.max(up_to), outbox);
                    }
                }
                true
            }
            Part::Failed => {
                if let Some(heads) = self.heads.get_mut(&token) {
                    // The next tick asks again.
                    heads.asked_ms = 0;
                }
                false
            }
        }
    }

    /// A channel has no message, as a server has it, and the stream has reached a sequence.
    fn is_empty(
        &mut self,
        now_ms: u64,
        subscription: Subscription,
        reached: u64,
        outbox: &mut Outbox,
    ) {
        let Some(channel) = self.channels.get(subscription) else { return };
        // All that comes later has a higher sequence than what the stream has reached. But that is
        // no message of this channel, so a channel that has a head has nothing to read up to there.
        let sequence = if channel.state == SlotState::Joining { reached } else { channel.head };
        self.head_is(now_ms, subscription, sequence, outbox);
    }

    /// A channel's last sequence, as a server has it; of an empty channel that joins, a sequence
    /// that the stream has reached.
    fn head_is(
        &mut self,
        now_ms: u64,
        subscription: Subscription,
        sequence: u64,
        outbox: &mut Outbox,
    ) {
        let Some(channel) = self.channels.get(subscription) else { return };
        let (target, slot) = (channel.target, subscription.slot);
        if channel.state == SlotState::Joining {
            let channel = &mut self.channels[slot];
            channel.turn(SlotState::Behind, &mut self.behind);
            channel.behind_since_ms = now_ms as u32;
            channel.head = sequence;
            outbox.report(JournalReport::Followed { channel: channel.key, head: sequence });
            if self.has_replicas {
                self.confirms.push_back((now_ms + CONFIRM_MS, subscription));
            }
            self.reach(now_ms, slot, target);
        } else {
            self.reach(now_ms, slot, sequence);
        }
        let channel = &mut self.channels[slot];
        if channel.target <= channel.head && !channel.is_filling {
            channel.turn(SlotState::Live, &mut self.behind);
        }
    }

    /// There is a message with this sequence, or was.
    fn reach(&mut self, now_ms: u64, slot: u32, sequence: u64) {
        let subscription = self.channels.subscription(slot);
        let channel = &mut self.channels[slot];
        if sequence > channel.target {
            channel.target = sequence;
            channel.target_since_ms = now_ms as u32;
        }
        if channel.state == SlotState::Joining || channel.target <= channel.head {
            return;
        }
        if channel.state != SlotState::Behind {
            channel.turn(SlotState::Behind, &mut self.behind);
            channel.behind_since_ms = now_ms as u32;
        }
        if !channel.is_filling {
            channel.is_filling = true;
            self.fills.push_back(subscription);
        }
    }

    /// Another node knows of a message that may not have been republished.
    pub(super) fn hint(&mut self, now_ms: u64, suffix: &str, sequence: u64) {
        if let Some(slot) = self.find(suffix) {
            self.reach(now_ms, slot, sequence);
        }
    }

    /// Messages of a channel were erased: they are not waited for. The channel is compared with the
    /// stream, since others may be missing.
    pub(super) fn erased(&mut self, now_ms: u64, suffix: &str, (first, last): (u64, u64)) {
        let Some(slot) = self.find(suffix) else { return };
        let channel = &mut self.channels[slot];
        if channel.target > channel.head && (first..=last).contains(&channel.target) {
            (channel.target, channel.target_since_ms) = (channel.head, now_ms as u32);
            self.unasked.push_back((slot, channel.head));
        }
    }

    /// Takes a republished message. Returns its sequence.
    pub(super) fn live(
        &mut self,
        now_ms: u64,
        delivery: ServerMessage<'_>,
        is_open: bool,
        outbox: &mut Outbox,
    ) -> Option<u64> {
        let subscription = Subscription::of_sid(delivery.sid)?;
        let is_held = self.is_held;
        let channel = self.channels.get(subscription)?;
        let sequence = delivery.headers.number("Nats-Sequence")?;
        let previous = delivery.headers.number("Nats-Last-Sequence").unwrap_or(0);
        if channel.state != SlotState::Joining && sequence <= channel.head {
            return None;
        }
        // With 0, those before have expired: whether all of them were reported only a channel that
        // was not behind knows.
        let continues = match channel.state {
            SlotState::Live => previous <= channel.head,
            SlotState::Behind => previous != 0 && previous <= channel.head,
            SlotState::Joining | SlotState::Free => false,
        };
        // Before the stream is known to be the same, a sequence says nothing.
        if is_open
            && continues
            && !is_held
            && let Some(message) = message::parse(delivery.headers, delivery.payload)
        {
            channel.head = sequence;
            outbox.report(JournalReport::Message { channel: channel.key, message });
        } else {
            self.reach(now_ms, subscription.slot, sequence);
        }
        is_open.then_some(sequence)
    }

    /// The channel of the subscription that a volatile message has come to; `None` if it is not
    /// followed any more, or is held.
    pub(super) fn receiver(&mut self, sid: u64) -> Option<ChannelName> {
        let subscription = Subscription::of_sid(sid)?;
        self.channels.get(subscription).filter(|_| !self.is_held)?;
        Some(self.channels.name(subscription.slot))
    }

    /// How many channels lack messages or may lack some, and for how long the first of them has, in
    /// milliseconds. Passes all channels while there is one.
    pub(super) fn behind(&self, now_ms: u64) -> (usize, u64) {
        let is_behind = |channel: &&JournalChannel| channel.state == SlotState::Behind;
        let since =
            |channel: &JournalChannel| (now_ms as u32).wrapping_sub(channel.behind_since_ms);
        let behind = self.channels.iter().filter(is_behind).map(since);
        let (count, most_ms) = behind.fold((0, 0), |(count, most), ms| (count + 1, ms.max(most)));
        (count, most_ms.into())
    }

    /// The next channel to be filled: from its head, at least to its target.
    pub(super) fn next_fill(&mut self) -> Option<(Subscription, Box<str>, u64, u64)> {
        while let Some(subscription) = self.fills.pop_front() {
            if self.channels.get(subscription).is_some() {
                let channel = &self.channels[subscription.slot];
                let suffix = self.channels.suffix(subscription.slot);
                return Some((subscription, suffix, channel.head, channel.target));
            }
        }
        shrink(&mut self.fills);
        None
    }

    /// Takes what was read to fill a channel.
    pub(super) fn filled(
        &mut self,
        now_ms: u64,
        subscription: Subscription,
        batch: Reading,
        outbox: &mut Outbox,
    ) {
        if self.channels.get(subscription).is_none() {
            return;
        }
        if self.is_held {
            return self.fills.push_back(subscription);
        }
        let channel = &mut self.channels[subscription.slot];
        channel.is_filling = false;
        let mut messages = batch.messages.into_iter().peekable();
        // Messages that came live meanwhile are reported already. Nothing is missing after them
        // then.
        let mut continues = batch.is_whole;
        while messages.next_if(|message| message.sequence <= channel.head).is_some() {
            continues = true;
        }
        let key = channel.key;
        if !continues && messages.peek().is_some() {
            outbox.report(JournalReport::Gap { channel: key });
        }
        for message in messages {
            channel.head = message.sequence;
            outbox.report(JournalReport::Message { channel: key, message });
        }
        if batch.left > 0 {
            channel.is_filling = true;
            self.fills.push_back(subscription);
        } else if channel.head >= channel.target {
            channel.turn(SlotState::Live, &mut self.behind);
        } else if (now_ms as u32).wrapping_sub(channel.target_since_ms) > LOST_MS as u32 {
            channel.head = channel.target;
            channel.turn(SlotState::Live, &mut self.behind);
            outbox.report(JournalReport::Gap { channel: key });
        } else {
            channel.is_filling = true;
            self.refills.push_back((now_ms + REFILL_MS, subscription));
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        while let Some((due_ms, subscription)) = self.refills.front().copied()
            && due_ms <= now_ms
        {
            self.refills.pop_front();
            self.fills.push_back(subscription);
        }
        shrink(&mut self.refills);
        if self.confirm_all_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            self.confirm_all_ms = None;
            self.suspect(now_ms);
        }
        while let Some((due_ms, subscription)) = self.confirms.front().copied()
            && due_ms <= now_ms
        {
            self.confirms.pop_front();
            if let Some(channel) = self.channels.get(subscription) {
                let head = channel.head;
                self.unasked.push_back((subscription.slot, head));
            }
        }
        shrink(&mut self.confirms);
        let is_late = |heads: &Heads| now_ms.saturating_sub(heads.asked_ms) >= HEADS_MS;
        let late: Vec<_> = self
            .heads
            .iter()
            .filter(|(_, heads)| is_late(heads))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            outbox.answered(token);
            let Some(heads) = self.heads.remove(&token) else { continue };
            self.unasked.extend(heads.slots.into_keys().map(|slot| (slot, heads.floor)));
        }
    }
}
