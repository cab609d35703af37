//! What comes from the other processes that serve the same channels, and what they ask for.

use std::sync::Arc;

use super::LEFT_MAX;
use crate::members::exchange::{
    Hearing, MESSAGE_BYTES, MemberChange, MemberPart, MemberValue, MemberWant, OpenAsk, PeerId,
};
use crate::members::parts::SharedChannel;
use crate::members::tallies::{self, Tallies};
use crate::members::wants::{Base, Want};
use crate::members::{State, behind};
use crate::memory::{MemoryEngine, SHARDS};
use crate::name::ChannelName;

/// Members that are looked at for a part, at most: those of other processes are not in it.
const LOOKED_AT_MAX: usize = 4_096;

impl MemoryEngine {
    /// The others can be reached from now on, or not any more. While they cannot, nobody leaves who
    /// is there.
    pub fn members_connected(&self, now_ms: u64, is_connected: bool) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let waiting = exchange.lock().connected(now_ms, is_connected);
        if let Some(tallies) = &self.members.tallies {
            tallies.connected(now_ms, is_connected);
        }
        waiting.into_iter().for_each(|waiting| waiting.ticket.answer(true));
        exchange.ask(now_ms);
    }

    /// Another process is there, which may have members.
    pub fn member_node_heard(&self, now_ms: u64, node: &str) {
        if let Some(exchange) = self.members.exchange.get() {
            exchange.lock().is_there(now_ms, node);
        }
    }

    /// Another process has ended in order. Its members may come back within the grace.
    pub fn member_node_left(&self, now_ms: u64, node: &str) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let peer = exchange.lock().left(node);
        if let Some(peer) = peer {
            self.lose(now_ms, peer, true);
        }
    }

    /// Takes processes that are silent for gone, with their members. Called about once a second,
    /// after what has come from others was taken.
    pub fn part_with_silent_nodes(&self, now_ms: u64) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let (gone, was_halted) = exchange.lock().take_gone(now_ms);
        if let Some(tallies) = self.members.tallies.as_ref().filter(|_| was_halted) {
            let is_connected = exchange.lock().is_connected();
            tallies.connected(now_ms, is_connected);
        }
        gone.into_iter().for_each(|peer| self.lose(now_ms, peer, false));
    }

    /// Another process has told of changes of its members, from number `first` on.
    pub fn hear_members(&self, now_ms: u64, node: &str, first: u64, changes: Vec<MemberChange>) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let hearing = exchange.lock().hear(now_ms, node, first, changes.len());
        match hearing {
            Hearing::Nothing => {}
            Hearing::Another => self.member_node_left(now_ms, node),
            Hearing::Taken { peer, skip, is_lost } => {
                if is_lost {
                    self.ask_again(peer);
                }
                for (number, change) in (first..).zip(changes).skip(skip) {
                    self.take_change(now_ms, (peer, number), change);
                }
                exchange.ask(now_ms);
            }
        }
    }

    /// News of a process was lost: all its parts are asked for again.
    fn ask_again(&self, peer: PeerId) {
        let mut channels = Vec::new();
        for shard in 0..SHARDS {
            channels.extend(self.members.lock(shard).shared.keys().cloned());
        }
        channels.extend(self.members.tallies.is_some().then(tallies::name));
        if let Some(exchange) = self.members.exchange.get() {
            exchange.lock().want_all_of(peer, channels);
        }
    }

    /// The parts of this process that another one wants, as far as they find room in an answer.
    pub fn member_parts(&self, now_ms: u64, wants: Vec<MemberWant>) -> Vec<MemberPart> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for want in wants {
            if bytes >= MESSAGE_BYTES {
                break;
            }
            let part = self.member_part(now_ms, want, MESSAGE_BYTES - bytes);
            let of_members = part.members.iter();
            bytes +=
                of_members.map(|(key, value)| key.len() + value.object.len() + 64).sum::<usize>();
            bytes += part.channel.name().len() + 64;
            parts.push(part);
        }
        parts
    }

    fn member_part(&self, now_ms: u64, want: MemberWant, room: usize) -> MemberPart {
        if let Some(tallies) = self.tallies_of(&want.channel) {
            return tallies.part(want, room);
        }
        let MemberWant { channel, after } = want;
        let state = self.members_with(&channel);
        let exchange = self.members.exchange.get();
        // No change of this channel is made meanwhile.
        let as_of = exchange.map_or(0, |exchange| exchange.lock().number());
        let (mut members, mut next, mut bytes) = (Vec::new(), None, 0);
        let range = behind(state.channels.get(&channel), after.as_deref());
        let mut last = None;
        for (at, (key, member)) in range.enumerate() {
            if bytes >= room || at >= LOOKED_AT_MAX {
                next = last;
                break;
            }
            last = Some(key.clone());
            let told = member.is_own.then(|| self.told(now_ms, &channel, key)).flatten();
            if let Some(object) = told {
                bytes += key.len() + object.len() + 64;
                members.push((key.clone(), MemberValue { stamp: member.stamp(), object }));
            }
        }
        drop(state);
        MemberPart { channel, after, as_of, members, next }
    }

    /// Others have answered a question, or not: each with the parts that found room.
    pub fn members_answered(
        &self,
        now_ms: u64,
        id: u64,
        answers: Vec<(Box<str>, Vec<MemberPart>)>,
    ) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let nodes: Vec<&str> = answers.iter().map(|(node, _)| &**node).collect();
        let Some(open) = exchange.lock().answered(now_ms, id, &nodes) else { return };
        for (node, parts) in answers {
            if open.only.as_ref().is_none_or(|only| *only == node) {
                self.take_answer(now_ms, &open, &node, parts);
            }
        }
        let mut ready = Vec::new();
        for want in open.wants {
            let is_whole = self.with_shared(&want.channel, |shared| {
                shared.is_asked |= open.only.is_none();
                exchange.lock().is_whole(now_ms, &shared.parts)
            });
            if is_whole == Some(true) {
                ready.push(want.channel);
            }
        }
        self.answer_waiting(now_ms, &ready);
        exchange.ask(now_ms);
    }

    fn take_answer(&self, now_ms: u64, open: &OpenAsk, node: &str, parts: Vec<MemberPart>) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let answerer = exchange.lock().answerer(now_ms, open, node);
        let Some((peer, generation)) = answerer else { return };
        let mut parts = parts.into_iter().peekable();
        for want in &open.wants {
            let is_its =
                |part: &MemberPart| part.channel == want.channel && part.after == want.after;
            let Some(part) = parts.next_if(is_its) else {
                exchange.lock().want_of(node, want.clone());
                continue;
            };
            let base = want.base.unwrap_or(Base { generation, as_of: part.as_of });
            if !self.take_part(now_ms, (peer, base.as_of), &part) {
                continue;
            }
            match part.next {
                Some(next) if part.after.as_ref().is_none_or(|after| *after < next) => {
                    let want = Want { channel: part.channel, after: Some(next), base: Some(base) };
                    exchange.lock().want_of(node, want);
                }
                _ => {
                    self.with_shared(&part.channel, |shared| shared.completes((peer, base)));
                }
            }
        }
    }

    /// Changes what is known of the parts of a channel, if anybody here follows its members.
    fn with_shared<T>(
        &self,
        channel: &ChannelName,
        change: impl FnOnce(&mut SharedChannel) -> T,
    ) -> Option<T> {
        match self.tallies_of(channel) {
            Some(tallies) => Some(tallies.with_parts(change)),
            None => self.members_with(channel).shared.get_mut(channel).map(change),
        }
    }

    /// The numbers of subscribers, if this is the name of their table.
    pub(super) fn tallies_of(&self, channel: &ChannelName) -> Option<&Arc<Tallies>> {
        self.members.tallies.as_ref().filter(|_| tallies::is_name(channel))
    }

    /// True if the members of a channel are kept here although nobody here follows them.
    pub(super) fn keeps_members(&self, channel: &ChannelName) -> bool {
        self.members.tallies.as_ref().is_some_and(|tallies| tallies.keeps_members(channel))
    }

    /// Answers those that have waited for others long enough, or for one of these channels.
    fn answer_waiting(&self, now_ms: u64, ready: &[ChannelName]) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let waiting = exchange.lock().take_waiting(now_ms, ready);
        for waiting in waiting {
            let is_partial = self.are_members_partial(now_ms, &waiting.channel);
            waiting.ticket.answer(is_partial);
        }
    }

    /// Tells, asks and forgets what is due.
    pub(super) fn tick_exchange(&self, now_ms: u64) {
        let Some(exchange) = self.members.exchange.get() else { return };
        exchange.tick(now_ms);
        if exchange.lock().is_awaited() {
            self.answer_waiting(now_ms, &[]);
        }
        let mut left = LEFT_MAX;
        for shard in 0..SHARDS {
            let mut state = self.members.lock(shard);
            let count = state.owed.len().min(left);
            left -= count;
            for _ in 0..count {
                let Some((channel, key)) = state.owed.pop_first() else { break };
                self.show(&mut state, now_ms, &channel, &key);
                if state.owed.contains(&(channel, key)) {
                    // The queues are full.
                    break;
                }
            }
        }
        self.forget_unused(now_ms);
        if let Some(tallies) = &self.members.tallies {
            tallies.tick(now_ms);
        }
        exchange.ask(now_ms);
    }

    /// Forgets departures that every part knows of by now, and channels whose members nobody here
    /// has followed for a while. Asks again for members that have found no room, and for parts that
    /// are not known.
    fn forget_unused(&self, now_ms: u64) {
        let Some(exchange) = self.members.exchange.get() else { return };
        let tallies = self.members.tallies.as_ref();
        let mut state = self.members.lock(self.next_shard());
        let mut unused = Vec::new();
        let State { shared, channels, .. } = &mut *state;
        for (channel, of_channel) in shared.iter_mut() {
            of_channel.forget_removed(now_ms);
            let has_left_out = std::mem::take(&mut of_channel.lacks);
            if has_left_out {
                of_channel.parts.clear();
            }
            let mut others = exchange.lock();
            if has_left_out || others.lacks_part(now_ms, &of_channel.parts) {
                others.want(channel.clone());
            }
            drop(others);
            let is_own =
                || channels.get(channel).is_some_and(|all| all.values().any(|it| it.is_own));
            // Events are to tell of those that leave.
            let is_kept = |tallies: &Arc<Tallies>| {
                tallies.keeps_members(channel)
                    && (channels.contains_key(channel) || tallies.is_followed(channel))
            };
            let is_used = || self.is_followed(channel) || is_own() || tallies.is_some_and(is_kept);
            if now_ms >= of_channel.until_ms && !is_used() {
                unused.push(channel.clone());
            }
        }
        for channel in unused {
            self.unshare(&mut state, now_ms, &channel);
        }
    }
}
