//! Who may and who must be a member of a channel: who follows it, and for the grace who did.

use throng_core::Message;

use super::World;
use crate::client::member::number_of;
use crate::topics::ROOMS;
use crate::{Check, ensure};

/// For how long members stay at least that have polled, or whose connection was frozen and did not
/// come back.
const STAY_MS: u64 = 10_000;

/// How late a departure may be: the engine looks for them once in a while.
const LATE_MS: u64 = 200;

impl World {
    fn has_members(&self) -> bool {
        !self.model.members().is_empty()
    }

    /// The members of a channel that are sure, by their keys, with their clients.
    fn sure_members(&self, channel: usize) -> Vec<(String, usize)> {
        let view = self.view();
        let heard = self.recorder.heard();
        let is_there = |name: Option<u64>| name.is_some_and(|name| heard.is_connected(name));
        let clients = self.clients.iter().filter(|client| is_there(client.name()));
        let keys = clients.filter_map(|it| Some((it.sure_key(channel, view)?, it.number)));
        keys.collect()
    }

    /// Notes who is a member now.
    pub(super) fn note_members(&mut self) {
        if !self.has_members() {
            return;
        }
        let now_ms = self.now_ms();
        for channel in ROOMS {
            for (key, _) in self.sure_members(channel) {
                self.members.sure_ms.insert((channel, key), now_ms);
            }
            let possible = self.clients.iter();
            let possible = possible.flat_map(|it| it.possible_keys(channel, &self.model));
            for key in possible {
                self.members.possible_ms.insert((channel, key), now_ms);
            }
        }
    }

    /// Checks a change of a member: nobody leaves who is there, or was until a grace ago, and
    /// nobody shows what its clients have not said.
    pub(super) fn check_member(&self, topic: usize, message: &Message) -> Check {
        let Some(channel) = self.room_of(topic) else { return Ok(()) };
        let key = message.key().unwrap_or_default();
        let event = message.facts().event.unwrap_or_default();
        self.notes.trace(format!("  {key} {event}s in {channel}, with {}", message.id.offset));
        if !message.removes_key() {
            let member = serde_json::from_slice(message.body.bytes()).unwrap_or_default();
            let Some(number) = number_of(&member) else { return Ok(()) };
            let has_said = self.clients.iter().any(|it| it.has_said(channel, number));
            ensure!(has_said, "nobody has said what {key} shows: {member}");
            return Ok(());
        }
        let mut sure = self.sure_members(channel).into_iter();
        let stays = sure.find(|(other, _)| other == key);
        ensure!(stays.is_none(), "{key} leaves, but has client {stays:?}");
        let grace_ms = self.model.topics[channel].rule.members.map_or(0, |rule| rule.grace_ms);
        let last_ms = self.members.sure_ms.get(&(channel, key.to_owned()));
        let is_over = last_ms.is_none_or(|last_ms| last_ms + grace_ms <= message.time_ms);
        ensure!(is_over, "{key} leaves at {}, but was there at {last_ms:?}", message.time_ms);
        Ok(())
    }

    /// The channel that a log has the members of.
    fn room_of(&self, log: usize) -> Option<usize> {
        ROOMS.into_iter().find(|channel| self.model.members_of(*channel) == Some(log))
    }

    /// At rest, members are those who follow a channel, and those who did until a grace ago.
    pub(super) fn check_members(&mut self) -> Check {
        if self.has_members() {
            // Some may have left with the last tick.
            self.absorb()?;
        }
        for channel in ROOMS {
            let Some(log) = self.model.members_of(channel) else { continue };
            let members = self.model.facts[log].members_at(u64::MAX);
            for (key, client) in self.sure_members(channel) {
                let member = members.get(&*key);
                let member = member.ok_or_else(|| format!("{key}, client {client}, is none"))?;
                self.clients[client].check_shown(channel, member)?;
            }
            let grace_ms = self.model.topics[channel].rule.members.map_or(0, |it| it.grace_ms);
            let since_ms = self.now_ms() - grace_ms.max(STAY_MS) - LATE_MS;
            for key in members.keys() {
                let keys = [Some((*key).to_owned()), None];
                let mut last_ms = keys.map(|key| (channel, key)).into_iter();
                let is_possible =
                    last_ms.any(|it| self.members.possible_ms.get(&it) >= Some(&since_ms));
                ensure!(is_possible, "{key} is still a member of {channel}");
            }
            let name = self.model.topics[channel].name;
            self.recorder.heard().check_members(name, members.keys().copied())?;
            self.check_member_counts(channel, members.len())?;
        }
        Ok(())
    }

    /// The engine counts as many members as the log has.
    fn check_member_counts(&self, channel: usize, count: usize) -> Check {
        let name = self.model.topics[channel].channel_name();
        let counted = self.engine.memory().members_of(&name);
        ensure!(counted == count as u64, "{counted} members are counted, {count} are there");
        Ok(())
    }

    /// Once all clients have left, and the last grace is over, nobody is a member.
    pub(super) fn check_nobody_is_member(&mut self) -> Check {
        if !self.has_members() {
            return Ok(());
        }
        self.pass(STAY_MS + LATE_MS)?;
        self.absorb()?;
        let left = self.engine.memory().member_metrics().members;
        ensure!(left == 0, "{left} members are left");
        self.notes.saw("members: all have left");
        Ok(())
    }
}
