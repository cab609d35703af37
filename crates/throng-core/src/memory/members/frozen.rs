//! The members of channels as frozen state. Their values are in their channels' logs, which are
//! frozen like all others.
//!
//! A frozen subscription does not count for its member, and counts again once it is thawed. So for
//! a while each member is one without connections.

use std::sync::atomic::Ordering;

use throng_wire::v1::ShownMember;

use super::key_of;
use crate::clock;
use crate::frozen::{Decoder, Encoder, RecordKind, ThawError, decode_name, encode_name};
use crate::members::{Away, ByKey, Member};
use crate::memory::{MemoryEngine, SHARDS};
use crate::name::{ChannelName, Kind};

/// Members in a record.
const RECORD_MEMBERS: usize = 1000;

/// For how long members stay at least whose connections may still come.
const THAW_MS: u64 = 10_000;

/// In place of times: it is a member of other processes alone, which say so again.
const NOT_OWN: [u64; 2] = [0, 1];

/// Writes the members of a channel.
fn freeze<E>(
    channel: &ChannelName,
    all: &ByKey,
    write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut left = all.iter();
    while left.len() > 0 {
        let count = left.len().min(RECORD_MEMBERS);
        let mut encoder = Encoder::new(RecordKind::Members);
        encode_name(&mut encoder, channel);
        encoder.u32(count as u32);
        for (key, member) in left.by_ref().take(count) {
            encoder.bytes(key.as_bytes());
            let times = match member.away {
                _ if !member.is_own => NOT_OWN,
                None => [0, 0],
                Some(away) => [away.since_ms, away.due_ms].map(clock::wall_ms),
            };
            times.into_iter().for_each(|time_ms| encoder.u64(time_ms));
        }
        write(encoder.finish())?;
    }
    Ok(())
}

impl MemoryEngine {
    /// Writes the members of all channels.
    pub(crate) fn freeze_members<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for shard in 0..SHARDS {
            let state = self.members.lock(shard);
            state.channels.iter().try_for_each(|(channel, all)| freeze(channel, all, write))?;
        }
        Ok(())
    }

    /// Reads a record of [`MemoryEngine::freeze_members`].
    pub(crate) fn thaw_members(&self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let channel = decode_name(&mut decoder)?;
        if channel.kind() != Kind::Channel {
            return Err(ThawError::Invalid("a channel with members"));
        }
        let now_ms = clock::now_ms();
        let grace_ms = self.rules().members(&channel).map_or(0, |rule| rule.grace_ms);
        let last_ms = now_ms + grace_ms.max(THAW_MS);
        let mut state = self.members_with(&channel);
        for _ in 0..decoder.u32()? {
            let key = decoder.text()?;
            let times = [decoder.u64()?, decoder.u64()?];
            let away = match times {
                [0, 0] | NOT_OWN => Away { since_ms: now_ms, due_ms: last_ms },
                times => {
                    let [since_ms, due_ms] = times.map(clock::from_wall_ms);
                    Away { since_ms: since_ms.min(now_ms), due_ms: due_ms.min(last_ms) }
                }
            };
            let all = state.channels.entry(channel.clone()).or_default();
            let member = Member { is_own: times != NOT_OWN, ..Member::default() };
            if all.insert(key.into(), member).is_some() {
                return Err(ThawError::Invalid("a member twice"));
            }
            state.part(&channel, key, away);
            self.members.count.fetch_add(1, Ordering::Relaxed);
        }
        decoder.finish()
    }

    /// A subscription of a member is frozen. It comes back here or in another process, or has ended
    /// if it does not.
    pub fn rest_member(&self, now_ms: u64, channel: &ChannelName, key: &str) {
        let grace_ms = self.rules().members(channel).map_or(0, |rule| rule.grace_ms);
        let due_ms = now_ms + grace_ms.max(THAW_MS);
        self.members_with(channel).leave(channel, key, Away { since_ms: now_ms, due_ms });
    }

    /// A subscription of a member was frozen, here or in another process, and goes on.
    pub fn resume_member(&self, now_ms: u64, channel: &ChannelName, shown: ShownMember<'_>) {
        let key = key_of(&shown);
        let mut state = self.members_with(channel);
        let is_here = state.member(channel, key).is_some_and(|member| member.is_own);
        if !is_here {
            // It has come so late that the member has left, or the frozen state was made up.
            let _ = self.hold_member(&mut state, now_ms, channel, shown);
        }
        let member = self.entry(&mut state, channel, key);
        (member.is_own, member.connections) = (true, member.connections + 1);
        state.stay(channel, key);
    }
}
