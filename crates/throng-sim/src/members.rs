//! The logs of members: what becomes of each, and who is one.
//!
//! They are the truth that clients are compared with. So each change is checked itself: it follows
//! from the one before.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;
use throng_core::Message;

use crate::facts::{Fact, FactLog, event_of_member, member_of};
use crate::model::Model;
use crate::{Check, ensure};

impl Model {
    /// The changing channels that clients follow by their names.
    pub(crate) fn changing(&self) -> Range<usize> {
        let members = self.topics.iter().filter(|topic| topic.is_of_members()).count();
        self.lists..self.topics.len() - members
    }

    /// The logs of members.
    pub(crate) fn members(&self) -> Range<usize> {
        self.changing().end..self.topics.len()
    }

    /// The log of a channel's members, if it has any.
    pub(crate) fn members_of(&self, topic: usize) -> Option<usize> {
        self.topics[topic].rule.members?;
        self.members().find(|log| self.topics[*log].name == self.topics[topic].name)
    }
}

impl FactLog {
    /// The members as they were at a change, by their keys.
    pub(crate) fn members_at(&self, offset: u64) -> BTreeMap<&str, &Value> {
        let mut members = BTreeMap::new();
        for fact in self.between(0, offset) {
            let key = fact.key.as_deref().unwrap_or_default();
            if fact.sets_key() {
                members.insert(key, &fact.shown["member"]);
            } else {
                members.remove(key);
            }
        }
        members
    }

    /// The newest change of a member, unless it has left.
    pub(crate) fn member(&self, key: &str) -> Option<&Fact> {
        self.newest(key).filter(|fact| fact.sets_key())
    }

    /// Checks that the next change is one: who joins was not there, who leaves was, and who shows
    /// something else did not show that.
    pub(crate) fn check_change(&self, message: &Message) -> Check {
        let key = message.key().ok_or("a change of nobody")?;
        let before = self.member(key).map(|fact| &fact.shown["member"]);
        let (object, event) = (member_of(message), event_of_member(message));
        let names = [&object["connection"], &object["user"]];
        let name = names.into_iter().find(|name| !name.is_null());
        ensure!(name.is_some_and(|name| name == key), "{key} is {object}");
        let is_right = match (event, before) {
            ("join", None) => !message.removes_key(),
            ("update", Some(before)) => !message.removes_key() && *before != object,
            ("leave", Some(before)) => {
                let is_same = names == [&before["connection"], &before["user"]];
                message.removes_key() && is_same && object.get("info").is_none()
            }
            _ => false,
        };
        ensure!(is_right, "{key} {event}s with {object}, behind {before:?}");
        Ok(())
    }
}
