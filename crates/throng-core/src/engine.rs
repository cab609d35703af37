//! The questions of workers and the control plane about channels, and the answers.

use std::sync::Arc;

use crate::id::{ChannelId, LocalId, MessageId, WorkerId};
use crate::message::Message;
use crate::name::ChannelName;
use crate::reading::StartAt;
use crate::rules::RuleId;

/// A worker's request to follow a channel for one more subscription.
#[derive(Debug, Clone, Copy)]
pub struct Follow<'a> {
    pub channel: &'a ChannelName,
    pub worker: WorkerId,
    /// The worker's id for the channel, unless it follows the channel already.
    pub local_if_new: LocalId,
    pub start: StartAt,
}

/// The engine's answer to [`Follow`].
#[derive(Debug)]
pub struct Followed {
    /// The engine's id for the channel. The worker ends the subscription with it.
    pub channel: ChannelId,
    /// The worker's id for the channel: [`Follow::local_if_new`], or the one of its first
    /// subscription.
    pub local: LocalId,
    /// The channel's rule, with the lag limit that the worker applies.
    pub rule: RuleId,
    /// The id of the newest message. The channel keeps its epoch while it is followed.
    pub head: MessageId,
    /// The subscription's cursor: it gets the messages after this id.
    pub cursor: MessageId,
    /// With [`StartAt::After`] and [`StartAt::Since`], whether all messages after that position are
    /// in `backlog`.
    pub is_recovered: Option<bool>,
    /// True if the backlog may lack messages that later ones have superseded, so that a hole in it
    /// is no gap.
    pub is_sparse: bool,
    /// True if each offset of the channel is its predecessor's plus one, so that the difference of
    /// two offsets is a number of messages.
    pub are_offsets_consecutive: bool,
    /// True if the channel has ended: nothing comes after the head.
    pub is_ended: bool,
    /// The messages after the cursor up to the head, oldest first.
    pub backlog: Vec<Arc<Message>>,
}

impl Followed {
    /// The answer on a channel whose subscribers get the newest message alone: a client that
    /// resumes gets no more than that one, and has recovered if it has it. `resumes_here` is the
    /// position from which it resumes, if this log gave it out; its cursor stays there, so that the
    /// table counts the messages that are skipped.
    pub(crate) fn keep_latest(&mut self, resumes_here: Option<MessageId>) {
        // It does not resume: it gets as much history as it asks for.
        let Some(is_recovered) = self.is_recovered else { return };
        self.backlog.drain(..self.backlog.len().saturating_sub(1));
        let Some(position) = resumes_here else { return };
        let newest = self.backlog.last().map_or(position.offset, |newest| newest.id.offset);
        self.is_recovered = Some(is_recovered || newest >= self.head.offset);
        if !is_recovered {
            self.cursor = position;
        }
    }
}

/// A page of history.
#[derive(Debug)]
pub struct History {
    /// The id of the channel's newest message.
    pub head: MessageId,
    /// The messages of the page, oldest first.
    pub messages: Vec<Arc<Message>>,
    /// True if the next page in the direction of the query has messages.
    pub has_more: bool,
    /// True if the channel has ended.
    pub is_ended: bool,
    /// With [`HistoryQuery::After`] and [`HistoryQuery::Since`], whether the log still has all
    /// messages after that position.
    pub is_recovered: Option<bool>,
}

/// The followers of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audience {
    pub subscribers: u64,
    /// The workers that have subscriptions, with their ids for the channel.
    pub workers: Vec<(WorkerId, LocalId, ChannelId)>,
}

/// The combined answers of the other processes that serve the same channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNodes<T> {
    pub found: T,
    /// True if none of their answers is missing.
    pub is_complete: bool,
}

/// There are no others.
impl<T: Default> Default for OtherNodes<T> {
    fn default() -> OtherNodes<T> {
        OtherNodes { found: T::default(), is_complete: true }
    }
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineMetrics {
    /// Channels and users that have messages or followers.
    pub channels: u64,
    /// Messages in all logs.
    pub messages: u64,
    /// Bytes in all logs.
    pub bytes: u64,
    /// Keys of all states.
    pub state_keys: u64,
    /// Bytes of their newest messages. Those in memory are among `bytes`.
    pub state_bytes: u64,
    /// Values and creations in memory and on disk that were refused since the start: as their
    /// publisher held its share, and as all states had their room.
    pub states_refused: [u64; 2],
    /// Members of all channels that have lists of them.
    pub members: u64,
    /// Markers of users in channels in memory.
    pub read_markers: u64,
    /// Markers in channels that were refused since the start, as there were too many.
    pub read_markers_refused: u64,
    /// Messages accepted since the start, without volatile ones.
    pub published: u64,
    /// Volatile messages published since the start.
    pub volatile: u64,
    /// Publications refused since the start because a worker's queue was full, or because no
    /// offset was left.
    pub busy: u64,
    /// Publications with a known idempotency key since the start.
    pub duplicates: u64,
    /// Messages dropped since the start because all logs together exceeded their limit.
    pub evicted: u64,
    /// Messages in logs that have expired since the start.
    pub expired: u64,
    /// Entries of logs in memory that pages have looked at since the start.
    pub visited: u64,
    /// Ends of channels in memory that were forgotten since the start.
    pub ends_forgotten: u64,
    /// Idempotency keys that are remembered in memory.
    pub keys: u64,
    /// Keys among them forgotten early since the start, because there were too many.
    pub keys_displaced: u64,
}
