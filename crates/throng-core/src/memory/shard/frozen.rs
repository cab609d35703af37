//! A shard's channels as frozen state.

use std::sync::Weak;

use super::super::channel::{Channel, Follower, Followers};
use super::super::shared::Shared;
use super::{Hashed, Shard, oldest_ms};
use crate::frozen::{
    Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError, decode_name, encode_content, encode_name,
};
use crate::id::{LocalId, WorkerId};
use crate::log::Log;
use crate::message::Content;
use crate::name::ChannelName;
use crate::stamp::Stamp;

/// A channel without its messages.
#[derive(Debug)]
pub(in crate::memory) struct FrozenChannel {
    pub(in crate::memory) name: ChannelName,
    head: u64,
    followers: Vec<Follower>,
    /// No message beyond this stamp has been dropped.
    lost: Stamp,
    /// The offset up to which the user has read; 0 if that is not known.
    read: u64,
    /// How many messages follow.
    pub(in crate::memory) messages: u32,
}

impl FrozenChannel {
    /// Reads a channel that only `workers` workers can follow.
    pub(in crate::memory) fn decode(
        mut decoder: Decoder<'_>,
        workers: usize,
        has_stamps: bool,
    ) -> Result<FrozenChannel, ThawError> {
        let name = decode_name(&mut decoder)?;
        let head = decoder.u64()?;
        if head > OFFSET_MAX {
            return Err(ThawError::Invalid("the head of a channel"));
        }
        let mut followers: Vec<Follower> = Vec::new();
        for _ in 0..decoder.u16()? {
            let (worker, local, subscribers) = (decoder.u16()?, decoder.u32()?, decoder.u32()?);
            let is_known = followers.iter().any(|other| other.worker == WorkerId(worker));
            let local = LocalId::from_number(local)
                .filter(|_| usize::from(worker) < workers && subscribers > 0 && !is_known);
            let local = local.ok_or(ThawError::Invalid("a follower of a channel"))?;
            followers.push(Follower { local, subscribers, worker: WorkerId(worker) });
        }
        let messages = decoder.u32()?;
        let lost = Stamp(if has_stamps { decoder.u64()? } else { 0 });
        let read = if has_stamps { decoder.u64()? } else { 0 };
        decoder.finish()?;
        if read > head {
            return Err(ThawError::Invalid("the read marker of a channel"));
        }
        Ok(FrozenChannel { name, head, followers, lost, read, messages })
    }
}

impl Shard {
    /// No channel that is new in another engine may get an offset up to this one, when the channels
    /// that [`Shard::freeze`] leaves out are forgotten.
    pub(in crate::memory) fn forgotten_head(&self) -> u64 {
        let forgettable = self.channels.iter().filter(|(_, channel)| channel.is_forgettable());
        let heads = forgettable.map(|(_, channel)| channel.head);
        heads.fold(self.forgotten_head, u64::max)
    }

    /// Raises the offset that new channels start after.
    pub(in crate::memory) fn raise_forgotten_head(&mut self, head: u64) {
        self.forgotten_head = self.forgotten_head.max(head);
    }

    /// Writes all channels that have messages or followers, each with its messages. Returns how
    /// many channels that were.
    pub(in crate::memory) fn freeze<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut count = 0;
        for (_, channel) in self.channels.iter().filter(|(_, channel)| !channel.is_forgettable()) {
            write(self.freeze_channel(channel))?;
            for content in channel.log.iter().flat_map(|log| log.contents()) {
                let mut encoder = Encoder::new(RecordKind::Message);
                encode_content(&mut encoder, content);
                write(encoder.finish())?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn freeze_channel(&self, channel: &Channel) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::Channel);
        encode_name(&mut encoder, &ChannelName::from_key(self.names.get(channel.name)));
        encoder.u64(channel.head);
        let followers = channel.followers.as_slice();
        encoder.u16(followers.len() as u16);
        for follower in followers {
            encoder.u16(follower.worker.0);
            encoder.u32(follower.local.number());
            encoder.u32(follower.subscribers);
        }
        encoder.u32(channel.log.as_ref().map_or(0, |log| log.len()) as u32);
        encoder.u64(channel.log.as_ref().map_or(0, |log| log.lost().0));
        encoder.u64(channel.log.as_ref().map_or(0, |log| log.read()));
        encoder.finish()
    }

    /// Writes the idempotency keys.
    pub(in crate::memory) fn freeze_keys<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.idempotency.freeze(write)
    }

    /// Adds a channel without its messages. Returns its slot.
    pub(in crate::memory) fn thaw_channel(
        &mut self,
        shared: &Shared,
        hash: u64,
        frozen: &FrozenChannel,
    ) -> Result<u32, ThawError> {
        let name = Hashed { name: &frozen.name, hash };
        if self.find(name).is_some() {
            return Err(ThawError::Invalid("a channel is there twice"));
        }
        let slot = self.find_or_create(shared, name);
        let channel = &mut self.channels[slot];
        channel.head = frozen.head;
        channel.followers = Followers::from(frozen.followers.clone());
        // Its messages follow.
        channel.log = (frozen.messages > 0).then(|| Box::new(Log::new(frozen.lost)));
        if let Some(log) = &mut channel.log {
            log.set_read(frozen.read);
        }
        Ok(slot)
    }

    /// Adds the next message of a channel, or refuses one that does not follow the last.
    pub(in crate::memory) fn thaw_message(
        &mut self,
        shared: &Shared,
        slot: u32,
        content: Content,
    ) -> Result<(), ThawError> {
        let channel = &mut self.channels[slot];
        let log = channel.log.get_or_insert_with(Box::default);
        let is_first = log.is_empty();
        let is_next = log.newest_offset().is_none_or(|newest| newest == content.previous)
            && log.newest_ms().unwrap_or(0) <= content.time_ms
            && log.newest_stamp().unwrap_or_default() <= content.stamp
            && content.stamp <= shared.stamps.newest()
            && content.id.offset <= channel.head;
        if !is_next {
            return Err(ThawError::Invalid("a message does not follow the one before"));
        }
        let time_ms = content.time_ms;
        shared.add(log, content.into(), Weak::new());
        if is_first {
            let Shard { ages, channels, .. } = self;
            ages.add(time_ms, slot, |slot| oldest_ms(channels, slot));
        }
        Ok(())
    }

    /// Checks that the channel's messages end at its head, once they have all been thawed.
    pub(in crate::memory) fn check_thawed(&self, slot: u32) -> Result<(), ThawError> {
        let channel = &self.channels[slot];
        let newest = channel.log.as_ref().and_then(|log| Log::newest_offset(log));
        if newest.is_none_or(|newest| newest == channel.head) {
            Ok(())
        } else {
            Err(ThawError::Invalid("the messages of a channel do not end at its head"))
        }
    }
}
