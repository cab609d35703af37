//! The [members](crate::members) of channels: subscriptions that begin and end, what is told,
//! pages.

mod frozen;
mod held;
mod news;
mod partial;
mod presence;
mod shared;

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use throng_wire::Labels;
use throng_wire::labels::StateKey;
use throng_wire::v1::{ShownMember, is_connection, member_without_info};

use super::{MemoryEngine, SHARDS};
use crate::attributes::Attributes;
use crate::events::Event;
use crate::members::{Away, Member, MemberMetrics, MemberPage, Members, State};
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::{Publication, PublishError};
use crate::state::KeyQuery;

/// Members that leave in one step. The others wait for the next.
const LEFT_MAX: usize = 5_000;

/// For how long a departure waits that the log has refused.
const AGAIN_MS: u64 = 100;

/// The key of what the log says of the list. No public name begins with a slash.
const LIST_KEY: &str = "/list";

/// The key of a member.
fn key_of<'a>(shown: &ShownMember<'a>) -> &'a str {
    shown.connection.or(shown.user).unwrap_or_default()
}

impl MemoryEngine {
    /// The members of the channel's shard.
    fn members_with(&self, channel: &ChannelName) -> MutexGuard<'_, State> {
        self.members.lock(self.find(channel).0)
    }

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
        let mut state = self.members_with(channel);
        let is_here = state.has(channel, key);
        self.hold_member(&mut state, now_ms, channel, shown)?;
        if let Some(member) = state.member_mut(channel, key) {
            member.connections += 1;
        }
        state.stay(channel, key);
        if !is_here {
            self.notify(now_ms, Event::MemberAdded(channel, key));
        }
        Ok(())
    }

    fn notify(&self, now_ms: u64, event: Event<'_>) {
        if let Some(events) = &self.shared.events {
            events.notify(now_ms, event);
        }
    }

    /// Makes somebody a member of this process, or has a member of it show something else.
    fn hold_member(
        &self,
        state: &mut State,
        now_ms: u64,
        channel: &ChannelName,
        shown: ShownMember<'_>,
    ) -> Result<(), PublishError> {
        let key = key_of(&shown);
        if self.share(state, now_ms, channel) {
            return self.hold_shared(state, now_ms, channel, shown);
        }
        if !state.has(channel, key) {
            let told = self.tell_member(now_ms, channel, "join", key, shown.object());
            told.inspect_err(|_| self.is_refused())?;
        } else if shown.info.is_some() {
            self.update_told(now_ms, channel, key, shown.object())?;
        }
        self.entry(state, channel, key).is_own = true;
        Ok(())
    }

    /// A subscription of a member has ended. With the last one it leaves, after the grace of the
    /// rule and at least `least_grace_ms`.
    pub fn end_member(&self, now_ms: u64, channel: &ChannelName, key: &str, least_grace_ms: u64) {
        // Without the rule there is nobody to wait for.
        let grace_ms = self.rules().members(channel).map_or(0, |rule| rule.grace_ms);
        let grace_ms = grace_ms.max(least_grace_ms);
        let mut state = self.members_with(channel);
        let away = Away { since_ms: now_ms, due_ms: now_ms + grace_ms };
        if state.leave(channel, key, away) && grace_ms == 0 {
            self.part_with(&mut state, now_ms, channel, key);
        }
    }

    /// The member with this key shows something else of itself. Its connection belongs to `user`.
    /// Returns whether that is a change.
    ///
    /// # Errors
    ///
    /// The list of members is full, or delivery lags. Nothing has changed.
    pub fn update_member(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        (key, user): (&str, Option<&str>),
        info: &str,
    ) -> Result<bool, PublishError> {
        let mut state = self.members_with(channel);
        let told = self.told(now_ms, channel, key).filter(|_| state.has(channel, key));
        let Some(told) = told else { return Ok(false) };
        // It stays what it is, whatever the rule says since an upgrade.
        let shown = if is_connection(&told) {
            ShownMember { connection: Some(key), user, info: Some(info) }
        } else {
            ShownMember { connection: None, user: Some(key), info: Some(info) }
        };
        let object = shown.object();
        let is_update = self.update_told(now_ms, channel, key, object.clone())?;
        if is_update {
            self.is_said(&mut state, now_ms, channel, key, object);
        }
        Ok(is_update)
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
        let mut query = KeyQuery {
            prefix: Box::default(),
            after: after.map(Box::from),
            limit,
            is_of_one: false,
        };
        let mut page = self.keys(now_ms, &log, &query);
        page.messages.retain(|message| message.is_list_partial().is_none());
        // It had nothing else.
        if let Some(next) = page.next.take_if(|_| page.messages.is_empty()) {
            query.after = Some(next);
            page = self.keys(now_ms, &log, &query);
        }
        let mut found = MemberPage {
            head: page.head,
            members: Vec::with_capacity(page.messages.len()),
            users: Vec::new(),
            next: page.next,
        };
        let mut users = BTreeSet::new();
        for message in page.messages {
            let Ok(object) = str::from_utf8(message.body.bytes()) else { continue };
            found.members.push(object.into());
            users.extend(user_of(object));
        }
        found.users = users.into_iter().collect();
        found
    }

    /// True if a channel has the member with this key.
    pub fn has_member(&self, channel: &ChannelName, key: &str) -> bool {
        self.members_with(channel).has(channel, key)
    }

    /// The number of a channel's members.
    pub fn members_of(&self, channel: &ChannelName) -> u64 {
        self.members_with(channel).channels.get(channel).map_or(0, |all| all.len() as u64)
    }

    /// Counters of members.
    pub fn member_metrics(&self) -> MemberMetrics {
        let Members { count, joined, updated, left, refused, .. } = &self.members;
        let [members, joined, updated, left, refused] =
            [count, joined, updated, left, refused].map(|count| count.load(Ordering::Relaxed));
        let exchange = self.members.exchange.get();
        let news_lost = exchange.map_or(0, |exchange| exchange.lock().losses);
        let uncounted = self.members.tallies.as_ref().map_or(0, |tallies| tallies.uncounted());
        MemberMetrics { members, joined, updated, left, refused, news_lost, uncounted }
    }

    /// Members whose grace is over leave, and what others have to say or are to be told comes and
    /// goes.
    pub(crate) fn tick_members(&self, now_ms: u64) {
        self.tick_exchange(now_ms);
        // Mostly there are none.
        if self.members.count.load(Ordering::Relaxed) > 0 {
            self.part_with_absent(now_ms);
        }
        self.tell_partial_lists(now_ms);
    }

    fn part_with_absent(&self, now_ms: u64) {
        // Beginning with another shard each time, so that none waits for the others for long.
        let first_shard = self.next_tick.load(Ordering::Relaxed);
        let mut left = LEFT_MAX;
        for shard in (0..SHARDS).map(|nth| (first_shard + nth) % SHARDS) {
            while left > 0 {
                // For each one alone: workers wait for it.
                let mut state = self.members.lock(shard);
                let first = state.due.first().filter(|(due_ms, ..)| *due_ms <= now_ms);
                let Some((_, channel, key)) = first.cloned() else { break };
                self.part_with(&mut state, now_ms, &channel, &key);
                left -= 1;
            }
        }
    }

    /// A user without connections leaves all channels at once, whatever the grace of their rules.
    /// It is forgotten where the user would go on, and so are the events of before a time, in
    /// milliseconds since 1970, that name the user and that no application has been told of.
    /// Returns how many events these are.
    pub fn part_with_user(&self, now_ms: u64, user: &str, before_ms: u64) -> u64 {
        self.bookmarks.forget(user);
        for shard in 0..SHARDS {
            let mut state = self.members.lock(shard);
            let absent: Vec<_> =
                state.due.iter().filter(|(_, _, key)| **key == *user).cloned().collect();
            for (_, channel, key) in absent {
                self.part_with(&mut state, now_ms, &channel, &key);
            }
        }
        self.shared.events.as_ref().map_or(0, |events| events.forget_user(user, before_ms))
    }

    /// A member leaves this process, whose time has come, and the channel if no other process has
    /// it. If the log refuses that, it is due a little later.
    fn part_with(&self, state: &mut State, now_ms: u64, channel: &ChannelName, key: &str) {
        let Some(away) = state.member(channel, key).and_then(|member| member.away) else { return };
        state.stay(channel, key);
        self.is_no_more(state, now_ms, channel, key);
        if state.member(channel, key).is_some_and(|member| member.is_held()) {
            return self.show(state, now_ms, channel, key);
        }
        let told = self.told(now_ms, channel, key).map(|object| member_without_info(&object));
        let told = told.map(|object| {
            let log = ChannelName::members(channel.name());
            self.publish_internal(now_ms, value(log, "leave", Some((key, true)), object))
        });
        // Nobody has been told of one whose value was evicted.
        if told.is_some_and(|told| told.is_err_and(|error| error != PublishError::NoKey)) {
            return state.part(channel, key, Away { due_ms: now_ms + AGAIN_MS, ..away });
        }
        state.remove(channel, key);
        self.members.left.fetch_add(1, Ordering::Relaxed);
        self.members.count.fetch_sub(1, Ordering::Relaxed);
        self.notify(now_ms, Event::MemberRemoved(channel, key));
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
        key: &str,
        object: String,
    ) -> Result<bool, PublishError> {
        if self.told(now_ms, channel, key).as_deref() == Some(&*object) {
            return Ok(false);
        }
        self.tell_member(now_ms, channel, "update", key, object)?;
        Ok(true)
    }

    /// Tells subscribers that a member has joined or shows something else, and counts it.
    fn tell_member(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        event: &str,
        key: &str,
        object: String,
    ) -> Result<(), PublishError> {
        let log = ChannelName::members(channel.name());
        self.publish_internal(now_ms, value(log, event, Some((key, false)), object))?;
        let counter = if event == "join" { &self.members.joined } else { &self.members.updated };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_refused(&self) {
        self.members.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A member, whom the caller makes one of this process or another one.
    fn entry<'a>(&self, state: &'a mut State, channel: &ChannelName, key: &str) -> &'a mut Member {
        let all = state.channels.entry(channel.clone()).or_default();
        match all.entry(key.into()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.members.count.fetch_add(1, Ordering::Relaxed);
                entry.insert(Member::default())
            }
        }
    }
}

/// The message that sets or removes a member, which has the key.
fn value(log: ChannelName, event: &str, key: Option<(&str, bool)>, object: String) -> Publication {
    let key = key.map(|(key, is_removed)| StateKey { name: key.into(), is_removed });
    let labels = Labels { event: Some(event.into()), tags: None, key };
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
