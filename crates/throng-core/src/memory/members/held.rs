//! Members that several processes have: what each says of them, as one value in the log.
//!
//! The newest word counts ([`MemberValue`]). A process whose own member shows something newer takes
//! that as its own word, so that all that have the member say the same, whoever leaves first.

use std::sync::atomic::Ordering;

use throng_wire::v1::ShownMember;

use super::{LIST_KEY, key_of};
use crate::clock;
use crate::events::Event;
use crate::members::exchange::{MemberChange, MemberPart, MemberValue, PeerId};
use crate::members::{Away, Holder, State, behind};
use crate::memory::MemoryEngine;
use crate::name::ChannelName;
use crate::publication::PublishError;

/// For how long a member stays that another process has no more, if the channel has a grace: a
/// third one may be about to say that it has it.
pub(super) const ELSEWHERE_MS: u64 = 500;

impl MemoryEngine {
    /// [`MemoryEngine::hold_member`] in a channel of several processes.
    pub(super) fn hold_shared(
        &self,
        state: &mut State,
        now_ms: u64,
        channel: &ChannelName,
        shown: ShownMember<'_>,
    ) -> Result<(), PublishError> {
        let key = key_of(&shown);
        let told = self.told(now_ms, channel, key);
        let member = state.member(channel, key);
        let was_own = member.is_some_and(|member| member.is_own);
        let stamp = member.map_or(0, |member| {
            let elsewhere = member.newest_elsewhere().map_or(0, |value| value.stamp);
            elsewhere.max(member.stamp())
        });
        let object = shown.object();
        let says_more = shown.info.is_some() && told.as_deref() != Some(&*object);
        let value = match told.as_deref() {
            _ if says_more => {
                MemberValue { stamp: stamp_after(now_ms, stamp), object: object.into() }
            }
            Some(told) => MemberValue { stamp, object: told.into() },
            None => MemberValue { stamp: 0, object: object.into() },
        };
        if says_more || told.is_none() {
            let event = if told.is_some() { "update" } else { "join" };
            let made = self.tell_member(now_ms, channel, event, key, value.object.clone().into());
            made.inspect_err(|_| self.is_refused())?;
        }
        let member = self.entry(state, channel, key);
        member.is_own = true;
        member.shared.get_or_insert_default().stamp = value.stamp;
        if says_more || !was_own {
            self.tell_others(state, now_ms, channel, key, Some(value));
        }
        Ok(())
    }

    /// A member of this process shows something else, of which subscribers here were told.
    pub(super) fn is_said(
        &self,
        state: &mut State,
        now_ms: u64,
        channel: &ChannelName,
        key: &str,
        object: String,
    ) {
        if !state.shared.contains_key(channel) {
            return;
        }
        let Some(member) = state.member_mut(channel, key) else { return };
        let elsewhere = member.newest_elsewhere().map_or(0, |value| value.stamp);
        let stamp = stamp_after(now_ms, elsewhere.max(member.stamp()));
        member.shared.get_or_insert_default().stamp = stamp;
        let value = MemberValue { stamp, object: object.into() };
        self.tell_others(state, now_ms, channel, key, Some(value));
    }

    /// A member is none of this process any more.
    pub(super) fn is_no_more(
        &self,
        state: &mut State,
        now_ms: u64,
        channel: &ChannelName,
        key: &str,
    ) {
        let member = state.member_mut(channel, key);
        if member.is_some_and(|member| std::mem::take(&mut member.is_own)) {
            self.tell_others(state, now_ms, channel, key, None);
        }
    }

    fn tell_others(
        &self,
        state: &State,
        now_ms: u64,
        channel: &ChannelName,
        key: &str,
        value: Option<MemberValue>,
    ) {
        if let Some(exchange) = self.members.exchange.get()
            && state.shared.contains_key(channel)
        {
            let change = MemberChange { channel: channel.clone(), key: key.into(), value };
            exchange.push(now_ms, change);
        }
    }

    /// Has the log show of a member what is known of it. What the log does not take now, it gets
    /// later; a member for which it is full is left out.
    pub(super) fn show(&self, state: &mut State, now_ms: u64, channel: &ChannelName, key: &str) {
        let told = self.told(now_ms, channel, key);
        let Some(member) = state.member(channel, key) else { return };
        let Some(newest) = member.newest_elsewhere() else { return };
        let own = told.as_deref().filter(|_| member.is_own).map(|told| (member.stamp(), told));
        let is_older = own.is_some_and(|own| (newest.stamp, &*newest.object) <= own);
        if is_older || told.as_deref() == Some(&*newest.object) {
            return;
        }
        let (newest, is_own) = (newest.clone(), member.is_own);
        let event = if told.is_some() { "update" } else { "join" };
        match self.tell_member(now_ms, channel, event, key, newest.object.clone().into()) {
            Ok(()) if is_own => {
                let member = self.entry(state, channel, key);
                member.shared.get_or_insert_default().stamp = newest.stamp;
                self.tell_others(state, now_ms, channel, key, Some(newest));
            }
            Ok(()) => {}
            Err(error) if error.is_of_full_state() => {
                self.is_refused();
                state.shared.entry(channel.clone()).or_default().lacks = true;
                if told.is_none() && !is_own {
                    self.forget(state, channel, key);
                }
            }
            Err(_) => drop(state.owed.insert((channel.clone(), key.into()))),
        }
    }

    /// Forgets a member of which the log has no value.
    pub(super) fn forget(&self, state: &mut State, channel: &ChannelName, key: &str) {
        state.stay(channel, key);
        if state.has(channel, key) {
            state.remove(channel, key);
            self.members.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a change of another process's part, if anybody here follows the channel's members.
    pub(super) fn take_change(
        &self,
        now_ms: u64,
        (peer, number): (PeerId, u64),
        change: MemberChange,
    ) {
        if self.takes_changed_presence(&change) {
            return;
        }
        let MemberChange { channel, key, value } = change;
        if let Some(tallies) = self.tallies_of(&channel) {
            let news = tallies.take(now_ms, (peer, number), &key, value.map(|value| value.stamp));
            return news.into_iter().for_each(|channel| self.follow_members(now_ms, &channel));
        }
        let mut state = self.members_with(&channel);
        if self.keeps_members(&channel) {
            self.share(&mut state, now_ms, &channel);
        }
        let Some(shared) = state.shared.get_mut(&channel) else { return };
        if shared.has((peer, number)) {
            return;
        }
        match value {
            Some(value) => self.is_elsewhere(
                &mut state,
                now_ms,
                (&channel, &key),
                Holder { peer, number, value },
            ),
            None => {
                shared.removes((peer, number), &key);
                self.is_not_elsewhere(&mut state, now_ms, (&channel, &key), (peer, number));
            }
        }
    }

    /// Takes a part of another process, or a piece of one whose first piece is as of `begun`.
    /// Returns false if nobody here follows the channel's members, or a newer part has begun.
    pub(super) fn take_part(
        &self,
        now_ms: u64,
        (peer, begun): (PeerId, u64),
        part: &MemberPart,
    ) -> bool {
        if let Some(tallies) = self.tallies_of(&part.channel) {
            let news = tallies.take_part(now_ms, (peer, begun), part);
            let Some(news) = news else { return false };
            news.iter().for_each(|channel| self.follow_members(now_ms, channel));
            return true;
        }
        let MemberPart { channel, after, as_of, members, next } = part;
        let mut state = self.members_with(channel);
        let Some(shared) = state.shared.get_mut(channel) else { return false };
        if !shared.begins((peer, begun)) {
            return false;
        }
        let is_there = |(key, _): &&(Box<str>, _)| !shared.is_removed((peer, *as_of), key);
        let there: Vec<_> = members.iter().filter(is_there).cloned().collect();
        let is_gone = |key: &str, holders: &[Holder]| {
            holders.iter().any(|holder| holder.peer == peer && holder.number <= *as_of)
                && members.binary_search_by(|(other, _)| (**other).cmp(key)).is_err()
        };
        let range = behind(state.channels.get(channel), after.as_deref())
            .take_while(|(key, _)| next.as_ref().is_none_or(|next| *key <= next));
        let gone = range.filter(|(key, member)| is_gone(key, member.holders()));
        let gone: Vec<Box<str>> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.is_not_elsewhere(&mut state, now_ms, (channel, &key), (peer, *as_of));
        }
        for (key, value) in there {
            let holder = Holder { peer, number: *as_of, value };
            self.is_elsewhere(&mut state, now_ms, (channel, &key), holder);
        }
        true
    }

    /// Another process has a member.
    fn is_elsewhere(
        &self,
        state: &mut State,
        now_ms: u64,
        (channel, key): (&ChannelName, &str),
        holder: Holder,
    ) {
        if key == LIST_KEY {
            return;
        }
        let was_here = state.has(channel, key);
        let shared = self.entry(state, channel, key).shared.get_or_insert_default();
        match shared.holders.iter_mut().find(|known| known.peer == holder.peer) {
            Some(known) if known.number >= holder.number => return,
            Some(known) => *known = holder,
            None => shared.holders.push(holder),
        }
        if state.member(channel, key).is_some_and(|member| !member.is_own) {
            state.stay(channel, key);
        }
        self.show(state, now_ms, channel, key);
        if !was_here && state.has(channel, key) {
            self.notify(now_ms, Event::MemberAdded(channel, key));
        }
    }

    /// Another process does not have a member, as of a number.
    fn is_not_elsewhere(
        &self,
        state: &mut State,
        now_ms: u64,
        (channel, key): (&ChannelName, &str),
        (peer, number): (PeerId, u64),
    ) {
        let Some(member) = state.member_mut(channel, key) else { return };
        let Some(shared) = &mut member.shared else { return };
        let before = shared.holders.len();
        shared.holders.retain(|holder| holder.peer != peer || holder.number > number);
        if shared.holders.len() == before {
            return;
        }
        if member.is_held() {
            return self.show(state, now_ms, channel, key);
        }
        let grace_ms = self.rules().members(channel).map_or(0, |rule| rule.grace_ms);
        self.leaves_in(state, now_ms, (channel, key), grace_ms.min(ELSEWHERE_MS));
    }

    /// A member that no process has any more leaves after a time.
    fn leaves_in(
        &self,
        state: &mut State,
        now_ms: u64,
        (channel, key): (&ChannelName, &str),
        grace_ms: u64,
    ) {
        state.stay(channel, key);
        state.part(channel, key, Away { since_ms: now_ms, due_ms: now_ms + grace_ms });
        if grace_ms == 0 {
            self.part_with(state, now_ms, channel, key);
        }
    }

    /// Another process is gone, with its members. Those leave with the next ticks, or after the
    /// grace of their channels.
    pub(super) fn lose(&self, now_ms: u64, peer: PeerId, has_grace: bool) {
        if let Some(tallies) = &self.members.tallies {
            tallies.lose(now_ms, peer);
        }
        for shard in 0..super::SHARDS {
            let mut state = self.members.lock(shard);
            let State { shared, channels, due, owed } = &mut *state;
            for (channel, of_channel) in shared {
                of_channel.loses(peer);
                let rule = self.rules().members(channel).filter(|_| has_grace);
                let due_ms = now_ms + rule.map_or(0, |rule| rule.grace_ms);
                for (key, member) in channels.get_mut(channel).into_iter().flatten() {
                    let Some(known) = &mut member.shared else { continue };
                    let before = known.holders.len();
                    known.holders.retain(|holder| holder.peer != peer);
                    if known.holders.len() == before {
                        continue;
                    }
                    if member.is_held() {
                        owed.insert((channel.clone(), key.clone()));
                    } else {
                        member.away = Some(Away { since_ms: now_ms, due_ms });
                        due.insert((due_ms, channel.clone(), key.clone()));
                    }
                }
            }
        }
    }
}

/// A stamp that is newer than another one.
fn stamp_after(now_ms: u64, stamp: u64) -> u64 {
    clock::wall_ms(now_ms).max(stamp.saturating_add(1))
}
