//! The [members](crate::members) of channels: subscriptions that begin and end, what is told,
//! pages.

mod frozen;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_wire::Labels;
use throng_wire::labels::StateKey;
use throng_wire::v1::{ShownMember, member_without_info};

use super::MemoryEngine;
use crate::attributes::Attributes;
use crate::members::{Away, Member, MemberMetrics, MemberPage, Members, State};
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::{Publication, PublishError};
use crate::state::KeyQuery;

/// Members that leave in one step. The others wait for the next.
const LEFT_MAX: usize = 1000;

/// For how long a departure waits that the log has refused.
const AGAIN_MS: u64 = 100;

/// The key of a member.
fn key_of<'a>(shown: &ShownMember<'a>) -> &'a str {
    shown.connection.or(shown.user).unwrap_or_default()
}

impl MemoryEngine {
    /// A subscription of a member to a channel is about to begin. The first one makes it join; a
    /// further one with other information updates it.
    ///
    /// # Errors
    ///
    /// The list of members is full, or delivery lags. Nothing has changed.
    pub fn begin_member(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        shown: ShownMember<'_>,
    ) -> Result<(), PublishError> {
        let key = key_of(&shown);
        let members = &self.members;
        let mut state = members.lock();
        let is_here = state.channels.get(channel).is_some_and(|all| all.contains_key(key));
        if !is_here {
            let told = self.tell_member(now_ms, channel, "join", shown);
            told.inspect_err(|_| {
                members.refused.fetch_add(1, Ordering::Relaxed);
            })?;
            members.joined.fetch_add(1, Ordering::Relaxed);
            members.count.fetch_add(1, Ordering::Relaxed);
        } else if shown.info.is_some() {
            self.update_told(now_ms, channel, shown)?;
        }
        let all = state.channels.entry(channel.clone()).or_default();
        let member = all.entry(key.into()).or_insert(Member { connections: 0, away: None });
        member.connections += 1;
        state.stay(channel, key);
        Ok(())
    }

    /// A subscription of a member has ended. With the last one it leaves, after the grace of the
    /// rule.
    pub fn end_member(&self, now_ms: u64, channel: &ChannelName, key: &str) {
        // Without the rule there is nobody to wait for.
        let grace_ms = self.rules().members(channel).map_or(0, |rule| rule.grace_ms);
        let mut state = self.members.lock();
        let away = Away { since_ms: now_ms, due_ms: now_ms + grace_ms };
        if state.leave(channel, key, away) && grace_ms == 0 {
            self.part_with(&mut state, now_ms, channel, key);
        }
    }

    /// A member shows something else of itself. Returns whether that is a change.
    ///
    /// # Errors
    ///
    /// The list of members is full, or delivery lags. Nothing has changed.
    pub fn update_member(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        shown: ShownMember<'_>,
    ) -> Result<bool, PublishError> {
        let state = self.members.lock();
        let is_here =
            state.channels.get(channel).is_some_and(|all| all.contains_key(key_of(&shown)));
        if is_here { self.update_told(now_ms, channel, shown) } else { Ok(false) }
    }

    /// A page of a channel's members, behind the key `after`.
    pub fn members(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        after: Option<&str>,
        limit: usize,
    ) -> MemberPage {
        let log = ChannelName::members(channel.name());
        let query = KeyQuery { prefix: Box::default(), after: after.map(Box::from), limit };
        let page = self.keys(now_ms, &log, &query);
        let mut found = MemberPage { next: page.next, ..MemberPage::default() };
        let mut users = BTreeSet::new();
        for message in page.messages {
            let Ok(object) = str::from_utf8(message.body.bytes()) else { continue };
            found.members.push(object.into());
            users.extend(user_of(object));
        }
        found.users = users.into_iter().collect();
        found
    }

    /// The number of a channel's members.
    pub fn members_of(&self, channel: &ChannelName) -> u64 {
        self.members.lock().channels.get(channel).map_or(0, |all| all.len() as u64)
    }

    /// Counters of members.
    pub fn member_metrics(&self) -> MemberMetrics {
        let Members { count, joined, updated, left, refused, .. } = &self.members;
        let [members, joined, updated, left, refused] =
            [count, joined, updated, left, refused].map(|count| count.load(Ordering::Relaxed));
        MemberMetrics { members, joined, updated, left, refused }
    }

    /// Members whose grace is over leave.
    pub(crate) fn part_with_absent(&self, now_ms: u64) {
        // Mostly there are none.
        if self.members.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for _ in 0..LEFT_MAX {
            // For each one alone: workers wait for it.
            let mut state = self.members.lock();
            let first = state.due.first().filter(|(due_ms, ..)| *due_ms <= now_ms);
            let Some((_, channel, key)) = first.cloned() else { return };
            self.part_with(&mut state, now_ms, &channel, &key);
        }
    }

    /// A user without connections leaves all channels at once, whatever the grace of their rules.
    pub fn part_with_user(&self, now_ms: u64, user: &str) {
        let mut state = self.members.lock();
        let absent: Vec<_> =
            state.due.iter().filter(|(_, _, key)| **key == *user).cloned().collect();
        for (_, channel, key) in absent {
            self.part_with(&mut state, now_ms, &channel, &key);
        }
    }

    /// A member leaves, whose time has come. If the log refuses that, it is due a little later.
    fn part_with(&self, state: &mut State, now_ms: u64, channel: &ChannelName, key: &str) {
        let member = state.channels.get(channel).and_then(|all| all.get(key));
        let Some(away) = member.and_then(|member| member.away) else { return };
        state.stay(channel, key);
        let told = self.told(now_ms, channel, key).map(|object| member_without_info(&object));
        let told = told.map(|object| {
            let log = ChannelName::members(channel.name());
            self.publish_internal(now_ms, value(log, "leave", (key, true), object))
        });
        // Nobody has been told of one whose value was evicted.
        if told.is_some_and(|told| told.is_err_and(|error| error != PublishError::NoKey)) {
            return state.part(channel, key, Away { due_ms: now_ms + AGAIN_MS, ..away });
        }
        state.remove(channel, key);
        self.members.left.fetch_add(1, Ordering::Relaxed);
        self.members.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The member as subscribers know it.
    fn told(&self, now_ms: u64, channel: &ChannelName, key: &str) -> Option<Box<str>> {
        let log = ChannelName::members(channel.name());
        let page = self.keys(now_ms, &log, &KeyQuery::one(key));
        page.one(key).and_then(|message| str::from_utf8(message.body.bytes()).ok()).map(Box::from)
    }

    fn update_told(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        shown: ShownMember<'_>,
    ) -> Result<bool, PublishError> {
        if self.told(now_ms, channel, key_of(&shown)).as_deref() == Some(&*shown.object()) {
            return Ok(false);
        }
        self.tell_member(now_ms, channel, "update", shown)?;
        self.members.updated.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn tell_member(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        event: &str,
        shown: ShownMember<'_>,
    ) -> Result<(), PublishError> {
        let (log, key) = (ChannelName::members(channel.name()), (key_of(&shown), false));
        self.publish_internal(now_ms, value(log, event, key, shown.object())).map(drop)
    }
}

/// The message that sets or removes a member.
fn value(
    log: ChannelName,
    event: &str,
    (key, is_removed): (&str, bool),
    object: String,
) -> Publication {
    let key = StateKey { name: key.into(), is_removed };
    let labels = Labels { event: Some(event.into()), tags: None, key: Some(key) };
    Publication {
        attributes: Attributes::of_publication(&labels, None),
        ..Publication::new(log, Body::Json(object.into()))
    }
}

/// The user in the object of a member.
fn user_of(object: &str) -> Option<Arc<str>> {
    #[derive(serde::Deserialize)]
    struct WithUser {
        user: Option<Box<str>>,
    }
    serde_json::from_str::<WithUser>(object).ok()?.user.map(Arc::from)
}
