//! A client's expectations of the server: its own requests, and the engine's answers to its worker.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use throng_core::Publication;

use super::plan::Plan;
use super::view::View;
use crate::facts::Fact;
use crate::model::{Begin, Beginning, Entry, Model, Reader};
use crate::stamp::Moment;
use crate::topics::KEYS_MAX;
use crate::{Check, ensure};

/// A request whose response is awaited.
#[derive(Debug, Clone)]
pub(super) enum Request {
    /// A page of the control plane.
    Page,
    /// A request that subscribes.
    Subscription(Plan),
}

/// A subscription as the client knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    pub(super) topic: usize,
    /// The offset of the last message received.
    pub(super) offset: u64,
    /// The messages after it that the server has told of as skipped for newer ones.
    pub(super) skipped: Skipped,
}

/// Messages that a subscription was told to have skipped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Skipped {
    count: u64,
    /// True if there are more, in a number that the server could not tell.
    has_unknown: bool,
}

impl Skipped {
    /// Adds as many as a notice says.
    pub(super) fn add(&mut self, count: Option<u64>) {
        self.count += count.unwrap_or(0);
        self.has_unknown |= count.is_none();
    }

    /// True if these may be what a subscription skipped of `entries`: all but those that it passes
    /// over in any case, or would by now.
    fn may_be(self, entries: &[Entry], reader: Reader) -> bool {
        let least = entries.iter().filter(|entry| !reader.passes_over(entry)).count() as u64;
        self.has_unknown || (least..=entries.len() as u64).contains(&self.count)
    }
}

impl Cursor {
    pub(super) fn new(begin: &Begin) -> Cursor {
        Cursor { topic: begin.topic, offset: begin.cursor, skipped: Skipped::default() }
    }

    /// True if the client gets none of the messages up to `to`: it passes over them, or was told to
    /// have skipped them.
    pub(super) fn passes_over(&self, to: u64, reader: Reader, model: &Model) -> bool {
        if !model.topics[self.topic].is_latest() {
            return model.passes_over(self.topic, self.offset, to, reader);
        }
        let lacked = model.between(self.topic, self.offset, to);
        let least = lacked.iter().filter(|entry| !reader.passes_over(entry)).count() as u64;
        self.offset <= to && (self.skipped.has_unknown || least <= self.skipped.count)
    }

    /// The messages that may come next.
    pub(super) fn candidates<'m>(
        &self,
        reader: Reader,
        model: &'m Model,
    ) -> Box<dyn Iterator<Item = &'m Entry> + 'm> {
        let Cursor { topic, offset, skipped } = *self;
        if !model.topics[topic].is_latest() {
            return Box::new(model.candidates(topic, offset, reader));
        }
        let later = model.between(topic, offset, model.head(topic));
        let is_next = move |(at, entry): &(usize, &Entry)| {
            let is_own = entry.excluded.is_some() && entry.excluded == reader.name;
            !is_own && skipped.may_be(&later[..*at], reader)
        };
        Box::new(later.iter().enumerate().filter(is_next).map(|(_, entry)| entry))
    }
}

/// A subscription to a changing channel as the client knows it.
#[derive(Debug, Clone)]
pub(super) struct Follower {
    pub(super) beginning: Beginning,
    /// The members that it was told of, if it follows those of a channel.
    pub(super) members: BTreeMap<Box<str>, Value>,
    /// The offset of the last message received, or passed over with a gap.
    pub(super) offset: u64,
    /// The end of the state with which it begins, until that has come.
    pub(super) state_end: Option<u64>,
    /// The number of messages that it was told to have passed over, and the most that these may be.
    pub(super) conflated: (u64, u64),
}

impl Follower {
    pub(super) fn new(beginning: Beginning, wants_state: bool) -> Follower {
        let has_state = wants_state && beginning.is_recovered != Some(true);
        Follower {
            offset: beginning.cursor,
            members: BTreeMap::new(),
            state_end: has_state.then_some(beginning.head),
            conflated: (0, 0),
            beginning,
        }
    }

    pub(super) fn topic(&self) -> usize {
        self.beginning.topic
    }

    /// True if the state with which it begins has not come yet.
    pub(super) fn awaits_state(&self) -> bool {
        self.state_end.is_some()
    }

    /// True if it need not get a message that it has not got.
    pub(super) fn may_lack(&self, fact: &Fact, view: View<'_>) -> bool {
        let Beginning { topic, head, ref backlog, .. } = self.beginning;
        let is_old = fact.offset <= head && !backlog.contains(&fact.offset);
        let is_before_state = self.state_end.is_some_and(|end| fact.offset <= end);
        is_old
            || is_before_state && !fact.sets_key()
            || view.model.facts[topic].is_dispensable(fact, view.now.now_ms)
    }

    /// The first message up to `to` that it has to get, and has not got.
    pub(super) fn lacks<'m>(&self, to: u64, view: View<'m>) -> Option<&'m Fact> {
        let facts = &view.model.facts[self.topic()];
        facts.between(self.offset, to).find(|fact| !self.may_lack(fact, view))
    }

    /// Checks that nothing is missing up to `to`, and goes there.
    pub(super) fn pass(&mut self, to: u64, view: View<'_>) -> Check {
        let lacks = self.lacks(to.saturating_sub(1), view).map(|fact| &fact.shown);
        ensure!(lacks.is_none(), "{to} came after {}, without {lacks:?}: {self:?}", self.offset);
        let facts = view.model.facts[self.topic()].between(self.offset, to.saturating_sub(1));
        self.conflated.1 += facts.filter(|fact| fact.key.is_some()).count() as u64;
        self.offset = to;
        Ok(())
    }

    /// True if messages may have been dropped that it lacks: too many that none supersedes, or too
    /// many bytes of all channels.
    pub(super) fn may_lag(&self, view: View<'_>) -> bool {
        let (facts, rule) =
            (&view.model.facts[self.topic()], &view.model.topics[self.topic()].rule);
        let pending = facts.between(self.offset, u64::MAX).filter(|fact| !fact.sets_key());
        // Beside those, its replay buffer may have some of each key.
        pending.count() + 3 * KEYS_MAX > rule.max_lag_messages
            || view.model.bytes_ever() > view.terms.max_blocked_bytes
    }
}

/// A channel with members that a client follows.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) channel: usize,
    /// The user that it is there.
    pub(super) user: Option<usize>,
    /// The number in the newest information that the server has taken from it.
    pub(super) shown: Option<u64>,
}

/// An event that comes before the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    /// On SSE, whether the subscription is recovered.
    Resumed(bool),
    /// The welcome of a stream, SSE or plain WebSocket.
    Welcome,
    /// The welcome of `throng.v1`, which names the heartbeat interval.
    WelcomeV1,
    /// On `throng.v1`, a subscription of the request.
    Subscribed(Begin),
    /// On other transports with compact envelopes, the numbers of all channels.
    Numbers,
}

/// A command of `throng.v1` whose answer is awaited, with the index of its channel.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// One channel, and whether its state is wanted.
    Subscribe(usize, bool),
    /// One channel with members.
    Enter {
        channel: usize,
        /// True if the client wants to follow its members, too.
        watches: bool,
        /// The number in what it shows of itself.
        shown: Option<u64>,
    },
    /// A channel of which it is a member, and the number in what it shows there from now on.
    Update(usize, u64),
    Unsubscribe(usize),
    /// Many channels, and the error codes with which some must be refused.
    SubscribeMany(Vec<(usize, Option<&'static str>)>),
    /// Many channels, and whether each was followed.
    UnsubscribeMany(Vec<(usize, bool)>),
    Publish(usize),
    History(usize),
    Presence(usize),
    Ping,
    /// A command that must be refused with this error code.
    Refused(&'static str),
}

impl Command {
    /// The channel that it asks to follow.
    pub(super) fn followed(&self) -> Option<usize> {
        match self {
            Command::Subscribe(channel, _) | Command::Enter { channel, .. } => Some(*channel),
            _ => None,
        }
    }

    /// True if it begins or ends a subscription to a channel.
    pub(super) fn is_about(&self, channel: usize) -> bool {
        match self {
            Command::SubscribeMany(entries) => entries.iter().any(|(it, _)| *it == channel),
            Command::UnsubscribeMany(entries) => entries.iter().any(|(it, _)| *it == channel),
            Command::Unsubscribe(it) => *it == channel,
            _ => self.followed() == Some(channel),
        }
    }
}

/// A publication sent on a WebSocket that the engine has not received yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) publication: Publication,
    /// True if the client follows the channel and excludes itself.
    pub(super) is_excluded: bool,
}

/// The engine's answer to a client's publication.
#[derive(Debug)]
pub(super) enum PublishAnswer {
    Accepted {
        id: String,
        subscribers: u64,
        is_duplicate: bool,
    },
    Busy,
    /// It was not decided in time whether it is allowed, so that the worker refused it.
    Undecided,
}

/// The engine's answers to the client's worker, oldest first: the worker's answers to the client
/// must agree with them.
#[derive(Debug, Default)]
pub(super) struct EngineAnswers {
    /// Subscriptions, and when they began.
    pub(super) begins: VecDeque<(Begin, Moment)>,
    /// More about those to changing channels.
    pub(super) beginnings: VecDeque<Beginning>,
    pub(super) published: VecDeque<PublishAnswer>,
    /// Pages of history: their offsets, and whether there are more.
    pub(super) pages: VecDeque<(Vec<u64>, bool)>,
}
