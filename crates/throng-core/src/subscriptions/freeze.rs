//! The table as frozen state: first the channels with their replay buffers, then, with each
//! connection, its subscriptions.
//!
//! A channel keeps its [`LocalId`], under which the engine posts notifications. Left out is what
//! follows from the rest: the circular lists, in which subscriptions stand in the order of
//! their thaw; passes, which visit every subscription that lacks something and takes more; which
//! subscriptions are blocked; what the buffers hold in bytes.

use std::sync::Arc;

use super::channel::LocalChannel;
use super::cursor::{REACH, full_cursor};
use super::replay_buffer::ReplayBuffer;
use super::subscription::{
    BLOCKED, CATCHING_UP, KEPT, MarkedConnection, Subscription, SubscriptionId, UNASKED,
};
use super::terms::LOST_OF_STATE;
use super::{Confirmed, Resumable, SubscriptionTable, Terms, Waiting};
use crate::frozen::{
    Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError, decode_content, decode_name,
    encode_content, encode_name,
};
use crate::id::{ChannelId, ConnectionId, Epoch, LocalId};
use crate::message::{Content, Message};
use crate::name::{ChannelName, Kind};

/// A subscription between two tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenSubscription {
    local: LocalId,
    cursor: u64,
    is_catching_up: bool,
    is_kept: bool,
    is_unasked: bool,
    terms: Terms,
}

// Bits of the flags for the terms that follow.
const HAS_MEMBER: u8 = 1 << 3;
const HAS_EXPIRY: u8 = 1 << 4;
const HAS_PACE: u8 = 1 << 5;
/// Since version 8.
const HAS_STATE_END: u8 = 1 << 6;
/// Since version 11.
const IS_RESUMABLE: u8 = 1 << 7;

impl FrozenSubscription {
    /// The worker's id for the channel, which it keeps.
    pub fn local(&self) -> LocalId {
        self.local
    }

    /// Appends the subscription.
    pub fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.local.number());
        encoder.u64(self.cursor);
        let marks = [self.is_catching_up, self.is_kept, self.is_unasked];
        let bits = marks.iter().rev().fold(0, |bits, mark| bits << 1 | u8::from(*mark));
        let Terms { member, expires, pace_ms, state_end, resumable } = &self.terms;
        let has_member = if member.is_some() { HAS_MEMBER } else { 0 };
        let has_expiry = if expires.is_some() { HAS_EXPIRY } else { 0 };
        let has_pace = if pace_ms.is_some() { HAS_PACE } else { 0 };
        let has_state_end = if state_end.is_some() { HAS_STATE_END } else { 0 };
        let is_resumable = if resumable.is_some() { IS_RESUMABLE } else { 0 };
        encoder.u8(bits | has_member | has_expiry | has_pace | has_state_end | is_resumable);
        if let Some(member) = member {
            encoder.bytes(member.as_bytes());
        }
        if let Some(expires) = expires {
            encoder.u32(*expires);
        }
        if let Some(pace_ms) = pace_ms {
            encoder.u32(*pace_ms);
        }
        if let Some(state_end) = state_end {
            encoder.u64(*state_end);
        }
        if let Some(resumable) = resumable {
            encode_resumable(encoder, resumable);
        }
    }

    /// The tick at which the subscription ends by itself.
    pub fn expires(&self) -> Option<u32> {
        self.terms.expires
    }

    /// The key by which its client is a member of the channel.
    pub fn member(&self) -> Option<&str> {
        self.terms.member.as_deref()
    }

    /// Reads a subscription, of any table.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<FrozenSubscription, ThawError> {
        let local = LocalId::from_number(decoder.u32()?);
        let local = local.ok_or(ThawError::Invalid("the channel of a subscription"))?;
        let cursor = decoder.u64()?;
        let flags = decoder.u8()?;
        let [is_catching_up, is_kept, is_unasked] = [1, 2, 4].map(|bit| flags & bit != 0);
        let member = if flags & HAS_MEMBER == 0 { None } else { Some(decoder.text()?.into()) };
        let expires = if flags & HAS_EXPIRY == 0 { None } else { Some(decoder.u32()?) };
        let pace_ms = if flags & HAS_PACE == 0 { None } else { Some(decoder.u32()?) };
        if pace_ms == Some(0) {
            return Err(ThawError::Invalid("the pace of a subscription"));
        }
        let state_end = if flags & HAS_STATE_END == 0 { None } else { Some(decoder.u64()?) };
        if state_end.is_some_and(|end| end > OFFSET_MAX && end < LOST_OF_STATE) {
            return Err(ThawError::Invalid("the state of a subscription"));
        }
        let is_resumable = flags & IS_RESUMABLE != 0;
        let resumable = is_resumable.then(|| decode_resumable(decoder)).transpose()?;
        let terms = Terms { member, expires, pace_ms, state_end, resumable };
        Ok(FrozenSubscription { local, cursor, is_catching_up, is_kept, is_unasked, terms })
    }
}

/// Appends from where the next subscription of a user goes on.
fn encode_resumable(encoder: &mut Encoder, Resumable { user, confirmed }: &Resumable) {
    encoder.bytes(user.as_bytes());
    let (up_to, asked) = confirmed.map_or((None, None), |it| (Some(it.up_to), it.asked));
    encoder.u8(u8::from(up_to.is_some()) | u8::from(asked.is_some()) << 1);
    up_to.into_iter().chain(asked).for_each(|offset| encoder.u64(offset));
}

fn decode_resumable(decoder: &mut Decoder<'_>) -> Result<Box<Resumable>, ThawError> {
    let user = decoder.text()?.into();
    let flags = decoder.u8()?;
    let mut offset = || decoder.u64().map(|offset| offset.min(OFFSET_MAX));
    let confirmed = match flags {
        0 => None,
        1 => Some(Confirmed { up_to: offset()?, asked: None }),
        3 => Some(Confirmed { up_to: offset()?, asked: Some(offset()?) }),
        _ => return Err(ThawError::Invalid("what a client has confirmed")),
    };
    Ok(Box::new(Resumable { user, confirmed }))
}

/// A channel that is being thawed, while its messages follow.
#[derive(Debug)]
pub struct OpenChannel {
    local: LocalId,
    channel: ChannelId,
    /// The engine's id of it in the other process, which clients know as its number; `None` before
    /// version 3, which told no client.
    former: Option<ChannelId>,
    name: ChannelName,
    epoch: Epoch,
    are_offsets_consecutive: bool,
    head: u64,
    floor: u64,
    /// True if messages may lack that later ones have superseded.
    is_sparse: bool,
    /// True if the channel has ended, at its head.
    has_ended: bool,
    /// The offset of the last message that has come.
    last: Option<u64>,
    messages_left: u32,
}

impl OpenChannel {
    /// Reads a channel of this version. `find` returns the engine's id of a channel, and the id
    /// under which the engine knows it to be followed by this worker.
    pub fn decode(
        mut decoder: Decoder<'_>,
        version: u16,
        find: impl FnOnce(&ChannelName) -> Option<(ChannelId, LocalId)>,
    ) -> Result<OpenChannel, ThawError> {
        let local = LocalId::from_number(decoder.u32()?);
        let name = decode_name(&mut decoder)?;
        let epoch = Epoch::numbered(decoder.u64()?);
        let are_offsets_consecutive = decoder.u8()? != 0;
        let (head, floor) = (decoder.u64()?, decoder.u64()?);
        let messages_left = decoder.u32()?;
        let former = if version < 3 { None } else { Some(ChannelId(decoder.u32()?)) };
        let bits = if version < 8 { 0 } else { decoder.u8()? };
        let [is_sparse, has_ended] = [1, 2].map(|bit| bits & bit != 0);
        decoder.finish()?;
        let is_sound = floor <= head
            && head <= OFFSET_MAX
            && head - floor < 2 * REACH
            && (messages_left > 0 || floor == head);
        let (Some(local), true) = (local, is_sound) else {
            return Err(ThawError::Invalid("a followed channel"));
        };
        let (channel, known) =
            find(&name).ok_or(ThawError::Invalid("a channel that the engine does not know"))?;
        if known != local {
            return Err(ThawError::Invalid("the place of a followed channel"));
        }
        let open = OpenChannel {
            local,
            channel,
            former,
            name,
            epoch,
            are_offsets_consecutive,
            head,
            floor,
            is_sparse,
            has_ended,
            last: None,
            messages_left,
        };
        Ok(open)
    }

    /// The worker's id for the channel.
    pub fn local(&self) -> LocalId {
        self.local
    }

    /// The channel, if clients know it by another number than the engine's id: a build that hashes
    /// names in another way has a new one.
    pub fn renumbered(&self) -> Option<ChannelId> {
        Some(self.channel).filter(|own| self.former.is_some_and(|former| former != *own))
    }

    /// The name that the engine knows the channel by.
    pub fn name(&self) -> &ChannelName {
        &self.name
    }

    /// True if no message of the channel lacks.
    pub fn is_whole(&self) -> bool {
        self.messages_left == 0
    }

    /// Reads the next message of the channel, or refuses one that does not follow the last.
    pub fn message(&mut self, mut decoder: Decoder<'_>) -> Result<Content, ThawError> {
        let content = decode_content(&mut decoder, self.epoch, &self.name)?;
        decoder.finish()?;
        let offset = content.id.offset;
        let is_next = match self.last.replace(offset) {
            Some(last) if self.is_sparse => content.previous >= last,
            Some(last) => content.previous == last,
            // The floor may stand between two offsets that are far apart.
            None => (self.is_sparse || content.previous <= self.floor) && offset > self.floor,
        };
        self.messages_left = self.messages_left.saturating_sub(1);
        let ends_well = if self.is_whole() { offset == self.head } else { offset < self.head };
        if is_next && ends_well {
            Ok(content)
        } else {
            Err(ThawError::Invalid("a message of a replay buffer"))
        }
    }
}

impl SubscriptionTable {
    /// Writes all channels, each with the messages of its replay buffer, one record with each call
    /// of `write`. `name_of` is the engine's name of a channel, which it keeps while a worker
    /// follows the channel.
    pub fn freeze_channels(
        &self,
        name_of: impl Fn(ChannelId) -> Option<ChannelName>,
        write: &mut dyn FnMut(Vec<u8>),
    ) {
        for (index, channel) in self.channels.iter() {
            let Some(name) = name_of(channel.channel) else {
                debug_assert!(false, "a followed channel has a name");
                continue;
            };
            let buffer = channel.buffer.as_ref().filter(|buffer| !buffer.messages().is_empty());
            let mut encoder = Encoder::new(RecordKind::FollowedChannel);
            encoder.u32(LocalId::from_index(index).number());
            encode_name(&mut encoder, &name);
            encoder.u64(self.epochs.get(channel.epoch).number());
            encoder.u8(u8::from(self.epochs.are_offsets_consecutive(channel.epoch)));
            encoder.u64(channel.head);
            encoder.u64(buffer.map_or(channel.head, |buffer| buffer.floor()));
            encoder.u32(buffer.map_or(0, |buffer| buffer.messages().len()) as u32);
            encoder.u32(channel.channel.0);
            let is_sparse = buffer.is_some_and(|buffer| buffer.is_sparse());
            let has_ended = self.ends.contains_key(&LocalId::from_index(index));
            encoder.u8(u8::from(is_sparse) | u8::from(has_ended) << 1);
            write(encoder.finish());
            for message in buffer.iter().flat_map(|buffer| buffer.messages()) {
                let mut encoder = Encoder::new(RecordKind::Message);
                encode_content(&mut encoder, message);
                write(encoder.finish());
            }
        }
    }

    /// Goes on with the count of [`SubscriptionTable::dropped`] of another table.
    pub fn resume_dropped(&mut self, dropped: u64) {
        self.dropped = dropped;
    }

    /// A subscription as frozen state, which ends here; `None` if it has ended. The lists that it
    /// was in are broken: call nothing else after this, but it with other subscriptions. So the
    /// table's memory is freed while it is written.
    pub fn take_frozen(&mut self, id: SubscriptionId) -> Option<FrozenSubscription> {
        let frozen = self.freeze_subscription(id);
        if let Some(local) = self.local(id) {
            self.take_terms(local, id);
        }
        self.subscriptions.remove(id.index());
        frozen
    }

    fn freeze_subscription(&self, id: SubscriptionId) -> Option<FrozenSubscription> {
        let subscription = self.live(id)?;
        let is_catching_up = subscription.connection.has(CATCHING_UP);
        let head = self.channels[subscription.local.index()].head;
        let cursor = full_cursor(head, subscription.cursor);
        let local = subscription.local;
        let [is_kept, is_unasked] = [KEPT, UNASKED].map(|mark| subscription.connection.has(mark));
        let mut terms = self.terms(id).cloned().unwrap_or_default();
        if self.awaits_state(id) && matches!(self.waiting(id), Waiting::Gap { .. }) {
            terms.state_end = Some(LOST_OF_STATE);
        }
        Some(FrozenSubscription { local, cursor, is_catching_up, is_kept, is_unasked, terms })
    }

    /// Adds a channel without subscriptions and messages.
    pub fn thaw_channel(&mut self, open: &OpenChannel) -> Result<(), ThawError> {
        let &OpenChannel { local, channel, epoch, head, floor, .. } = open;
        if self.channels.get(local.index()).is_some() {
            return Err(ThawError::Invalid("the place of a followed channel"));
        }
        let thawed = || Box::new(ReplayBuffer::thawed(floor, head, open.is_sparse));
        let buffer = (floor < head).then(thawed);
        let epoch = self.epochs.try_add(epoch, open.are_offsets_consecutive);
        let epoch = epoch.ok_or(ThawError::Invalid("too many epochs"))?;
        // Not frozen: the rules may have changed since.
        let rule = self.rules.find(&open.name);
        let thawed = LocalChannel {
            head,
            buffer,
            channel,
            first: None,
            count: 0,
            blocked: 0,
            catching_up: 0,
            epoch,
            rule,
            is_user: open.name.kind() == Kind::User,
        };
        if open.has_ended {
            self.ends.insert(local, head);
        }
        let stored = self.channels.insert_at(local.index(), thawed);
        debug_assert!(stored.is_ok(), "the place was vacant");
        Ok(())
    }

    /// Adds the next message to the replay buffer of a channel that is being thawed.
    pub fn thaw_message(
        &mut self,
        open: &mut OpenChannel,
        decoder: Decoder<'_>,
    ) -> Result<(), ThawError> {
        let content = open.message(decoder)?;
        let buffer = self.channels[open.local.index()].buffer_mut();
        self.buffer_bytes += buffer.thaw_message(Arc::new(Message::from(Arc::new(content))));
        Ok(())
    }

    /// True if a subscription can be thawed: its channel is here, and its cursor is one that the
    /// channel can have. It may be ahead of the head, with messages whose notifications wait.
    pub fn can_thaw(&self, frozen: &FrozenSubscription) -> bool {
        let channel = self.channels.get(frozen.local.index());
        channel.is_some_and(|channel| frozen.cursor.abs_diff(channel.head) < 2 * REACH)
    }

    /// Adds a subscription for which [`SubscriptionTable::can_thaw`] holds. `sibling` is the
    /// connection's previous subscription, and `takes_more` says whether a pass may offer the
    /// connection what it lacks; otherwise the subscription is blocked.
    pub fn thaw_subscription(
        &mut self,
        connection: ConnectionId,
        frozen: &FrozenSubscription,
        sibling: Option<SubscriptionId>,
        takes_more: bool,
    ) -> SubscriptionId {
        debug_assert!(self.can_thaw(frozen));
        let channel = &mut self.channels[frozen.local.index()];
        let lacks_some = frozen.cursor < channel.head;
        let awaits_state = frozen.terms.state_end.is_some();
        let is_catching_up = frozen.is_catching_up && lacks_some || awaits_state;
        channel.catching_up += u32::from(is_catching_up);
        let id = SubscriptionId::from_index(self.subscriptions.next_index());
        let marks = if is_catching_up { CATCHING_UP } else { 0 }
            | if frozen.is_kept { KEPT } else { 0 }
            | if frozen.is_unasked { UNASKED } else { 0 };
        self.subscriptions.insert(Subscription {
            connection: MarkedConnection::new(connection, marks),
            local: frozen.local,
            cursor: frozen.cursor as u32,
            before: id,
            next: id,
            sibling,
        });
        self.link(frozen.local, id);
        self.set_terms(id, frozen.terms.clone());
        self.go_on_at_end(id, frozen.local);
        if !lacks_some && !awaits_state {
            return id;
        }
        if takes_more {
            self.offer_rest(id);
        } else {
            self.mark(id, BLOCKED);
        }
        id
    }

    /// Ends the thaw: drops the channels to which no subscription has come, and the messages that
    /// none of the subscriptions can lack. Calls `each` with every channel and the number of its
    /// subscriptions.
    pub fn finish_thaw(&mut self, each: &mut dyn FnMut(ChannelId, u32)) {
        for index in 0..self.channels.extent() {
            let Some(channel) = self.channels.get(index) else { continue };
            let (local, epoch, count) = (LocalId::from_index(index), channel.epoch, channel.count);
            each(channel.channel, count);
            if count == 0 {
                self.drop_buffer(local);
                self.clocks.forget(local);
                self.forget_end(local);
                self.channels.remove(index);
                self.epochs.remove(epoch);
            } else {
                self.trim(local);
            }
        }
    }
}
