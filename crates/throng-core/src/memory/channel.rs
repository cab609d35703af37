//! One channel of a shard, kept small: each user's inbox is one.

use std::sync::atomic::Ordering;

use thin_vec::{ThinVec, thin_vec};

use super::shared::Shared;
use crate::engine::History;
use crate::id::{Epoch, LocalId, MessageId, WorkerId};
use crate::log::page::LogPage;
use crate::log::{Kept, Log};
use crate::names::NameRef;
use crate::read_marker::{Mark, ReadMarker};
use crate::reading::HistoryQuery;
use crate::rules::RuleId;
use crate::stamp::Watermark;

/// The workers that follow a channel.
#[derive(Debug, Default)]
pub(super) enum Followers {
    #[default]
    None,
    /// Needs no allocation: where there are many channels, most have one follower.
    One(Follower),
    /// Its length is where its elements are, so that a channel with one follower stays small.
    Many(ThinVec<Follower>),
}

/// A worker that follows the channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    /// The worker's id for the channel.
    pub(super) local: LocalId,
    /// The worker's subscriptions of the channel.
    pub(super) subscribers: u32,
    pub(super) worker: WorkerId,
}

impl From<Vec<Follower>> for Followers {
    fn from(followers: Vec<Follower>) -> Followers {
        match followers.as_slice() {
            [] => Followers::None,
            [only] => Followers::One(*only),
            _ => Followers::Many(followers.into()),
        }
    }
}

impl Followers {
    pub(super) fn as_slice(&self) -> &[Follower] {
        match self {
            Followers::None => &[],
            Followers::One(follower) => std::slice::from_ref(follower),
            Followers::Many(followers) => followers,
        }
    }

    /// The subscriptions of all workers together.
    pub(super) fn subscribers(&self) -> u64 {
        self.as_slice().iter().map(|follower| u64::from(follower.subscribers)).sum()
    }

    /// Counts one more subscription of `worker`, whose id for the channel is `local_if_new` unless
    /// it follows the channel already. Returns that id.
    pub(super) fn add(&mut self, worker: WorkerId, local_if_new: LocalId) -> LocalId {
        let known = match self {
            Followers::None => None,
            Followers::One(follower) => (follower.worker == worker).then_some(follower),
            Followers::Many(followers) => followers.iter_mut().find(|other| other.worker == worker),
        };
        if let Some(follower) = known {
            follower.subscribers += 1;
            return follower.local;
        }
        let new = Follower { local: local_if_new, subscribers: 1, worker };
        *self = match std::mem::take(self) {
            Followers::None => Followers::One(new),
            Followers::One(first) => Followers::Many(thin_vec![first, new]),
            Followers::Many(mut followers) => {
                followers.push(new);
                Followers::Many(followers)
            }
        };
        local_if_new
    }

    /// Counts one subscription of `worker` less.
    pub(super) fn remove(&mut self, worker: WorkerId) {
        match self {
            Followers::None => debug_assert!(false, "the worker follows the channel"),
            Followers::One(follower) => {
                debug_assert!(follower.worker == worker, "the worker follows the channel");
                if follower.worker != worker {
                    return;
                }
                follower.subscribers -= 1;
                if follower.subscribers == 0 {
                    *self = Followers::None;
                }
            }
            Followers::Many(followers) => {
                let Some(at) = followers.iter().position(|other| other.worker == worker) else {
                    debug_assert!(false, "the worker follows the channel");
                    return;
                };
                followers[at].subscribers -= 1;
                if followers[at].subscribers == 0 {
                    followers.swap_remove(at);
                }
                // A channel that two workers followed once keeps no allocation for it.
                if let [only] = followers.as_slice() {
                    *self = Followers::One(*only);
                }
            }
        }
    }

    /// Sets the number of a worker's subscriptions, if it follows the channel; 0 removes it.
    pub(super) fn set(&mut self, worker: WorkerId, subscribers: u32) {
        let is_other =
            |other: &Follower| other.worker == worker && other.subscribers != subscribers;
        let Some(at) = self.as_slice().iter().position(is_other) else { return };
        let mut followers = self.as_slice().to_vec();
        if subscribers == 0 {
            followers.swap_remove(at);
        } else {
            followers[at].subscribers = subscribers;
        }
        *self = Followers::from(followers);
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Followers::None)
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    /// The offset of the newest message.
    pub(super) head: u64,
    /// `None` while no message is kept.
    pub(super) log: Option<Box<Log>>,
    pub(super) followers: Followers,
    pub(super) name: NameRef,
    /// The first bits of the name's place in the lists of several processes.
    pub(super) order: u16,
    pub(super) rule: RuleId,
}

const _: () = assert!(std::mem::size_of::<Channel>() <= 40);

impl Channel {
    /// The offset of the newest message that is not kept. A cursor below it has a gap.
    fn floor(&self) -> u64 {
        self.log.as_ref().and_then(|log| log.floor()).unwrap_or(self.head)
    }

    /// True if the channel has neither messages, a record nor followers.
    pub(super) fn is_forgettable(&self) -> bool {
        self.log.is_none() && self.followers.is_empty()
    }

    /// True if the channel has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_ended())
    }

    /// Drops the messages that the channel's rule no longer covers, and the bodies of those that
    /// have expired.
    pub(super) fn expire(&mut self, shared: &Shared, now_ms: u64) {
        // No message is kept.
        let Some(log) = &mut self.log else { return };
        let rule = shared.rules.get(self.rule);
        let (retention, state) = (rule.retention, rule.state);
        // First: what has expired makes room for others.
        shared.expire(log, now_ms);
        shared.shrink(log, |log| log.trim(&retention, now_ms, state));
        // An end lasts as long as a message of that time.
        let is_over = |ended_ms: u64| ended_ms.saturating_add(retention.max_age_ms) <= now_ms;
        if log.bare_end_ms().is_some_and(is_over) {
            shared.forget_end(log);
        }
        let newest = self.log.as_ref().and_then(|log| log.newest_offset());
        debug_assert!(newest.is_none_or(|newest| newest == self.head), "a log ends at the head");
        self.drop_log_if_unused(shared);
    }

    /// Drops the log if nothing in it can be read.
    pub(super) fn drop_log_if_unused(&mut self, shared: &Shared) {
        let Some(log) = self.log.as_mut().filter(|log| log.is_unused()) else { return };
        // Placeholders may be left.
        shared.clear(log);
        shared.lose(self.rule, log.lost());
        self.log = None;
    }

    /// The cursor before all messages that are kept.
    pub(super) fn start(&self) -> u64 {
        self.log.as_ref().and_then(|log| log.start()).unwrap_or(self.head)
    }

    /// The cursor of a client with this position, and whether all messages after it are here.
    pub(super) fn since(&self, shared: &Shared, position: Watermark) -> (u64, Option<bool>) {
        let is_recovered = match &self.log {
            Some(log) => shared.is_known(position) && position.stamp >= log.lost(),
            None => shared.has_all_since(self.rule, position),
        };
        if !is_recovered {
            return (self.start(), Some(false));
        }
        let first = self.log.as_ref().and_then(|log| log.before_stamp(position.stamp));
        (first.unwrap_or(self.head), Some(true))
    }

    /// The cursor before the last `count` messages, or before all that are kept if they are fewer.
    pub(super) fn before_last(&self, count: usize) -> u64 {
        match &self.log {
            Some(log) if count > 0 => log.before_last(count).unwrap_or(self.start()),
            _ => self.head,
        }
    }

    /// The cursor before the messages that were published at a time or later.
    pub(super) fn before_time(&self, time_ms: u64) -> u64 {
        let first = self.log.as_ref().and_then(|log| log.before_time(time_ms));
        first.unwrap_or(self.head)
    }

    /// The cursor of a client whose last message is `id`, and whether all messages after that one
    /// are here. With an id of another epoch or ahead of the head, which this log never gave out,
    /// the cursor is before all messages that are kept.
    pub(super) fn after(&self, epoch: Epoch, id: MessageId) -> (u64, Option<bool>) {
        let is_known = id.epoch == epoch && id.offset <= self.head;
        let is_recovered = is_known && id.offset >= self.floor();
        (if is_recovered { id.offset } else { self.start() }, Some(is_recovered))
    }

    /// How far a user who had read up to the offset `before` has read after `mark`.
    pub(super) fn read_marker(
        &self,
        epoch: Epoch,
        before: u64,
        mark: Option<Mark>,
        unread_max: u64,
    ) -> ReadMarker {
        // Without a message nothing is unread, and nothing has to be remembered.
        let Some(log) = &self.log else { return ReadMarker::default() };
        let moves = |mark: &Mark| {
            mark.id.epoch == epoch
                && mark.id.offset <= self.head
                && (mark.id.offset > before || mark.may_go_back)
        };
        let offset = mark.filter(moves).map_or(before, |mark| mark.id.offset);
        let unread = log.unread_after(offset, unread_max as usize) as u64;
        let read = (offset > 0).then_some(MessageId { epoch, offset });
        ReadMarker { read, unread, has_moved: offset != before }
    }

    /// A page of at most `limit` messages.
    pub(super) fn history(
        &mut self,
        shared: &Shared,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let head = shared.message_id(self.head);
        let (cursor, is_recovered) = match query {
            HistoryQuery::After(id) => self.after(shared.epoch, id),
            HistoryQuery::Since(position) => self.since(shared, position),
            HistoryQuery::From(time_ms) => (self.before_time(time_ms), None),
            HistoryQuery::Newest | HistoryQuery::Before(_) | HistoryQuery::FirstOfLast(_) => {
                (0, None)
            }
        };
        // No message is kept.
        let Some(log) = &mut self.log else {
            let (has_more, is_ended) = (false, false);
            return History { head, messages: Vec::new(), has_more, is_ended, is_recovered };
        };
        let is_ended = log.is_ended();
        let end = match query {
            HistoryQuery::After(_) | HistoryQuery::Since(_) | HistoryQuery::From(_) => {
                let LogPage { messages, has_more, visited } = log.page_after(cursor, limit);
                shared.visited.fetch_add(visited as u64, Ordering::Relaxed);
                return History { head, messages, has_more, is_ended, is_recovered };
            }
            HistoryQuery::FirstOfLast(count) => {
                let count = count.min(shared.rules.get(self.rule).max_lag_messages);
                let before = if count == 0 { None } else { log.before_last(count) };
                let before = before.unwrap_or(if count == 0 { self.head } else { 0 });
                let messages = log.after(before).take(1).map(Kept::message).collect();
                return History { head, messages, has_more: false, is_ended, is_recovered };
            }
            HistoryQuery::Before(id) if id.epoch == shared.epoch => id.offset,
            // Offsets of different epochs do not compare: such a page begins at the newest message.
            HistoryQuery::Newest | HistoryQuery::Before(_) => u64::MAX,
        };
        let LogPage { mut messages, has_more, visited } = log.page_before(end, limit);
        shared.visited.fetch_add(visited as u64, Ordering::Relaxed);
        messages.reverse();
        History { head, messages, has_more, is_ended, is_recovered }
    }
}
