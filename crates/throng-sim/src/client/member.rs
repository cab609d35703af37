//! A client as a member of channels, and what it is told of other members.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use throng_core::{ConnectionName, Kind};

use super::Client;
use super::expected::{Command, Follower, Own};
use super::view::View;
use crate::model::Model;
use crate::random::Random;
use crate::{Check, ensure};

/// What a client says of itself: nobody else says the same.
fn information(number: u64) -> Value {
    json!({"n": number})
}

/// The number in what a member shows.
pub(crate) fn number_of(member: &Value) -> Option<u64> {
    member["info"]["n"].as_u64()
}

impl Client {
    /// Subscribes to a channel with members, or leaves it, or shows something else there.
    pub(super) fn enter(&mut self, channel: usize, random: &mut Random, view: View<'_>) {
        let is_settled = self.commands.is_empty();
        if self.will_follow.contains(&channel) {
            if is_settled && self.key_in(channel, view.model).is_some() && random.percent(75) {
                let number = self.say_something(channel, random);
                let mut value = self.named("update", channel, view);
                value["info"] = information(number);
                return self.command(value, Command::Update(channel, number));
            }
            return self.unsubscribe(channel, view);
        }
        let mut value = self.named("subscribe", channel, view);
        let watches = random.percent(60);
        value["presence"] = json!(watches);
        let may_show = is_settled && self.may_show(channel, view.model);
        let shown = (may_show && random.percent(60)).then(|| self.say_something(channel, random));
        if let Some(number) = shown {
            value["info"] = information(number);
        }
        self.will_follow.push(channel);
        self.command(value, Command::Enter { channel, watches, shown });
    }

    /// The number of what it says of itself in a channel: now and then what it has said before.
    fn say_something(&mut self, channel: usize, random: &mut Random) -> u64 {
        let before = self.said.iter().rev().find(|(other, _)| *other == channel);
        if let Some((_, number)) = before.filter(|_| random.percent(20)) {
            return *number;
        }
        let number = (self.number as u64) << 20 | self.said.len() as u64;
        self.said.push((channel, number));
        number
    }

    /// True if it has said this of itself in the channel.
    pub(crate) fn has_said(&self, channel: usize, number: u64) -> bool {
        self.said.contains(&(channel, number))
    }

    /// True if it would be a member of the channel.
    fn may_show(&self, channel: usize, model: &Model) -> bool {
        let rule = model.topics[channel].rule.members;
        rule.is_some_and(|rule| rule.are_connections) || self.user(model).is_some()
    }

    /// The user whose inbox it follows.
    fn user(&self, model: &Model) -> Option<usize> {
        let mut topics = self.cursors.iter().map(|cursor| cursor.topic);
        topics.find(|&topic| model.topics[topic].kind == Kind::User)
    }

    /// It follows a channel, which may make it a member.
    pub(super) fn enters(&mut self, channel: usize, shown: Option<u64>, model: &Model) {
        if model.topics[channel].rule.members.is_some() {
            let user = self.user(model);
            self.own.push(Own { channel, user, shown });
        }
    }

    /// It follows the members of a channel, as the engine says: from their list on, or from the
    /// change that it knows.
    pub(super) fn watch(&mut self, channel: usize, view: View<'_>) -> Check {
        let log = view.model.members_of(channel).ok_or("a channel without members")?;
        let beginning = self.engine.beginnings.pop_front().ok_or("no members are followed")?;
        ensure!(beginning.topic == log, "{beginning:?} is of no members of {channel}");
        let mut follower = Follower::new(beginning, true);
        if !follower.awaits_state() {
            view.notes.saw("members: recovered");
            // It knows the list as of that change.
            let known = view.model.facts[log].members_at(follower.offset);
            follower.members = owned(known);
        }
        self.followers.push(follower);
        Ok(())
    }

    /// It has entered a channel with members.
    pub(super) fn entered(
        &mut self,
        (channel, watches, shown): (usize, bool, Option<u64>),
        value: &Value,
        view: View<'_>,
    ) -> Check {
        ensure!(value["type"] == "subscribed", "{value}");
        self.subscribed(channel, false, value, view)?;
        if let Some(own) = self.own.iter_mut().find(|own| own.channel == channel) {
            own.shown = shown;
        }
        view.notes.saw("members: entered");
        if watches { self.watch(channel, view) } else { Ok(()) }
    }

    /// The server has taken what it shows.
    pub(super) fn updated(
        &mut self,
        (channel, number): (usize, u64),
        value: &Value,
        view: View<'_>,
    ) -> Check {
        let own = self.own.iter_mut().find(|own| own.channel == channel);
        ensure!(value["type"] == "updated", "{value}");
        own.ok_or("updated what it has left")?.shown = Some(number);
        view.notes.saw("members: updated");
        Ok(())
    }

    /// It follows a channel no more, nor its members.
    pub(super) fn leaves(&mut self, channel: usize, model: &Model) {
        self.own.retain(|own| own.channel != channel);
        let members = model.members_of(channel);
        let is_left = |it: usize| it == channel || Some(it) == members;
        self.cursors.retain(|cursor| cursor.topic != channel);
        self.followers.retain(|follower| !is_left(follower.topic()));
    }

    /// It is told what has become of a member, or that it has the list.
    pub(super) fn told_of_member(&mut self, value: &Value, view: View<'_>) -> Check {
        let model = view.model;
        let is_it = |at: usize| {
            model.topics[at].is_of_members() && value["channel"] == model.topics[at].name
        };
        let at = self.follower_at(is_it);
        let at = at.ok_or_else(|| format!("the members are not followed: {value}"))?;
        let topic = self.followers[at].topic();
        let facts = &model.facts[topic];
        let offset = model.offset(topic, value["id"].as_str().unwrap_or_default())?;
        if value["event"] == "state" {
            // Their number is that of the moment.
            let mut counts = facts.between(offset, u64::MAX).map(|fact| fact.offset);
            let is_count = |at: u64| value["members"] == facts.members_at(at).len();
            let is_right = is_count(offset) || counts.any(is_count);
            ensure!(is_right && value.get("partial").is_none(), "{value}");
            view.notes.saw("members: a list");
            return self.state(at, value, view);
        }
        let fact = facts.get(offset);
        let fact = fact.ok_or_else(|| format!("nothing became of a member: {value}"))?;
        ensure!(*value == fact.shown, "{value} instead of {}", fact.shown);
        self.fact_in_order(at, fact, view)?;
        let key: Box<str> = fact.key.clone().unwrap_or_default();
        let members = &mut self.followers[at].members;
        if fact.sets_key() {
            members.insert(key, fact.shown["member"].clone());
        } else {
            members.remove(&key);
        }
        view.notes.saw(match fact.shown["event"].as_str() {
            Some("join") => "members: told of one who joins",
            Some("update") => "members: told of something else shown",
            _ => "members: told of one who leaves",
        });
        Ok(())
    }

    /// Its key among the members of a channel.
    fn key_in(&self, channel: usize, model: &Model) -> Option<String> {
        let own = self.own.iter().find(|own| own.channel == channel)?;
        if model.topics[channel].rule.members?.are_connections {
            return self.connection_key();
        }
        own.user.map(|user| model.topics[user].name.to_owned())
    }

    /// The key where each connection is a member.
    fn connection_key(&self) -> Option<String> {
        self.name.map(|name| ConnectionName::numbered(name).to_string())
    }

    /// Its key among the members of a channel, unless the server may have ended its subscription.
    pub(crate) fn sure_key(&self, channel: usize, view: View<'_>) -> Option<String> {
        let is_about_it = |(_, command): &(u64, Command)| command.is_about(channel);
        let is_here = self.will_follow.contains(&channel)
            && !self.commands.iter().any(is_about_it)
            && self.is_here()
            && self.expected_close.is_none()
            && !self.pipe.borrow().is_ended();
        if is_here { self.key_in(channel, view.model) } else { None }
    }

    /// The keys that it may have among the members of a channel; `None` for one that it does not
    /// know.
    pub(crate) fn possible_keys(&self, channel: usize, model: &Model) -> Vec<Option<String>> {
        let follows = self.will_follow.contains(&channel)
            || self.own.iter().any(|own| own.channel == channel)
            || self.commands.iter().any(|(_, command)| command.is_about(channel));
        if self.pipe.borrow().is_closed() || !follows {
            return Vec::new();
        }
        match model.topics[channel].rule.members {
            None => Vec::new(),
            Some(rule) if rule.are_connections => vec![self.connection_key()],
            Some(_) => {
                let users = model.topics.iter().filter(|topic| topic.kind == Kind::User);
                users.map(|user| Some(user.name.to_owned())).collect()
            }
        }
    }

    /// Checks what it shows in a channel, of which it is a member for sure.
    pub(crate) fn check_shown(&self, channel: usize, member: &Value) -> Check {
        let own = self.own.iter().find(|own| own.channel == channel);
        let Some(shown) = own.and_then(|own| own.shown) else { return Ok(()) };
        let number = number_of(member).ok_or_else(|| format!("{member} lacks {shown}"))?;
        let is_older = self.has_said(channel, number) && number != shown;
        ensure!(!is_older, "{member} instead of {shown}");
        Ok(())
    }

    /// At rest it knows those who are members of the channels whose members it follows.
    pub(super) fn check_lists(&self, view: View<'_>) -> Check {
        let of_members = |it: &&Follower| view.model.topics[it.topic()].is_of_members();
        for follower in self.followers.iter().filter(of_members) {
            let members = owned(view.model.facts[follower.topic()].members_at(u64::MAX));
            let told = &follower.members;
            ensure!(*told == members, "it is told of the members {told:?} instead of {members:?}");
            view.notes.saw("members: all known");
        }
        Ok(())
    }

    /// The answer to who is in a channel has its members as they were at some time.
    pub(super) fn check_present(&self, channel: usize, value: &Value, view: View<'_>) -> Check {
        let Some(log) = view.model.members_of(channel) else { return Ok(()) };
        let facts = &view.model.facts[log];
        let told: Vec<&Value> = value["members"].as_array().into_iter().flatten().collect();
        let is_it = |at: u64| facts.members_at(at).into_values().eq(told.iter().copied());
        let mut heads = facts.between(0, u64::MAX).map(|fact| fact.offset);
        ensure!(is_it(0) || heads.any(is_it), "these were never the members: {value}");
        view.notes.saw("members: asked for");
        Ok(())
    }
}

fn owned(members: BTreeMap<&str, &Value>) -> BTreeMap<Box<str>, Value> {
    members.into_iter().map(|(key, member)| (key.into(), member.clone())).collect()
}
