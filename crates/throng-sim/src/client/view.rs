//! The state of the world that a client's checks depend on.

use throng_core::{MemoryStep, QueueLimits};

use crate::late::Lateness;
use crate::model::{Model, Reader};
use crate::notes::Notes;
use crate::stamp::Moment;

/// The maximum size of a published message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 3000;

/// The time within which clients come back that are asked to leave, in milliseconds.
const ASKED_MS: u64 = 1000;

/// State that the checks of a client may read, besides the client itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) model: &'a Model,
    /// Trace and coverage of the run.
    pub(crate) notes: &'a Notes,
    pub(crate) now: Moment,
    pub(crate) terms: &'a Terms,
    /// True if the server has stopped accepting connections, if only for some time.
    pub(crate) has_stopped_accepting: bool,
    /// When the server first asked its clients to leave, which it may have taken back since.
    pub(crate) asked: Option<Moment>,
    /// When the server started to drain.
    pub(crate) drain: Option<Moment>,
    /// When a drain gives up what it has not delivered; `u64::MAX` without a drain.
    pub(crate) late_ms: u64,
    /// The furthest that the server has gone for want of memory so far.
    pub(crate) shortest: MemoryStep,
}

/// The server's settings that clients can observe.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The interval of heartbeats; 0 for neither heartbeats nor pings.
    pub(crate) heartbeat_ms: u64,
    /// The interval of pings; 0 for none.
    pub(crate) ping_ms: u64,
    /// The time within which a request head must arrive.
    pub(crate) head_ms: u64,
    /// The time after which a connection without a request is closed.
    pub(crate) idle_ms: u64,
    /// True if a client gets a welcome if its request does not say.
    pub(crate) welcome: bool,
    /// The time within which the clients of a drained server reconnect.
    pub(crate) drain_window_ms: u64,
    /// The time after which a drain gives up what it has not delivered.
    pub(crate) drain_timeout_ms: u64,
    /// True if workers can be full.
    pub(crate) is_scarce: bool,
    /// The time within which a WebSocket message must be complete.
    pub(crate) message_ms: u64,
    /// Set if the limits on buffered bytes are so low that they are reached: connections that
    /// buffer fewer bytes than this are never evicted.
    pub(crate) held_bytes_floor: Option<usize>,
    /// True if there is room for so few TLS handshakes at a time that some wait for others, and
    /// those that stall meanwhile are given up.
    pub(crate) has_few_handshakes: bool,
    /// The bytes that the replay buffers of one worker may keep for blocked subscriptions.
    pub(crate) max_blocked_bytes: usize,
    /// True if memory is short now and then, so that subscriptions are refused.
    pub(crate) memory_varies: bool,
    /// The rate of the moments that clients are told in storms; `None` without storms.
    pub(crate) storm_rate: Option<u64>,
    /// The limits of each worker queue.
    pub(crate) queue: QueueLimits,
    /// The bytes that all logs together may keep, if it is less than the channels' rules allow.
    pub(crate) max_logs_bytes: Option<usize>,
    /// How often decisions about access and parts of logs come later, or never.
    pub(crate) lateness: Lateness,
    /// If they are few: places of a worker beyond its maximum of subscribers, for request heads and
    /// for lingering closes.
    pub(crate) reserve: Option<(u32, u32)>,
}

/// The distance from the head that a worker's cursors are sure to tell.
const CURSOR_REACH: u64 = (1 << 30) - 1;

/// True if the messages between `offset` and the head may be lost to a subscription that has none
/// of them: a cursor of 32 bits does not tell how far behind it is.
pub(crate) fn is_out_of_reach(offset: u64, head: u64) -> bool {
    head.saturating_sub(offset) >= CURSOR_REACH
}

impl View<'_> {
    /// The connection with this name, now.
    pub(crate) fn reader(&self, name: Option<u64>) -> Reader {
        Reader { name, now_ms: self.now.now_ms }
    }

    /// True if the server may send clients away.
    pub(crate) fn may_send_away(&self) -> bool {
        self.asked.is_some() || self.drain.is_some()
    }

    /// The moment at which the server had decided to send away a client whose connection has ended
    /// at `end`.
    pub(crate) fn sent_away(&self, end: Moment) -> Option<Moment> {
        let drain = self.drain.filter(|drain| self.asked.is_none() || end.now_ms > drain.now_ms);
        drain.or(self.asked)
    }

    /// The time within which clients that are sent away come back.
    pub(crate) fn away_ms_max(&self) -> u64 {
        let asked_ms = if self.asked.is_some() { ASKED_MS } else { 0 };
        self.terms.drain_window_ms.max(asked_ms)
    }

    /// True if a worker may evict a connection that has sent `bytes` of something incomplete.
    pub(crate) fn may_evict(&self, bytes: usize) -> bool {
        // The capacity of a buffer is up to twice its length.
        self.terms.held_bytes_floor.is_some_and(|floor| bytes * 2 >= floor)
    }

    /// True if decisions about access, or parts of logs, may come later, or never.
    pub(crate) fn may_be_late(&self) -> bool {
        self.terms.lateness.is_possible()
    }

    /// True if the server may have refused for want of memory what this step refuses.
    pub(crate) fn may_be_short(&self, refusing: MemoryStep) -> bool {
        self.shortest >= refusing
    }

    /// True if the server may have told a client that subscribes a moment to come back.
    pub(crate) fn may_be_told(&self) -> bool {
        self.terms.storm_rate.is_some()
    }

    /// True if the access policy denies everything about a channel.
    pub(crate) fn is_secret(&self, topic: usize) -> bool {
        self.terms.lateness.secret == Some(self.model.topics[topic].name)
    }

    /// True if the channel may not have been there since this time: it has to be created.
    pub(crate) fn may_be_missing(&self, topic: usize, since_ms: u64) -> bool {
        self.model.topics[topic].rule.must_exist && self.model.facts[topic].missing_ms >= since_ms
    }

    /// True if a worker may have dropped the message with this offset, or the first one after it,
    /// because its replay buffers kept too many bytes.
    pub(crate) fn may_be_dropped(&self, topic: usize, offset: u64) -> bool {
        self.model.max_buffered_bytes(topic, offset) > self.terms.max_blocked_bytes
    }
}

impl Terms {
    /// True if an incomplete request head may be evicted for a newer connection.
    pub(crate) fn is_tight(&self) -> bool {
        self.reserve.is_some()
    }

    /// The time between two pings, in milliseconds: the setting, rounded to a multiple of the
    /// heartbeat interval. 0 for no pings.
    fn ping_interval_ms(&self) -> u64 {
        if self.heartbeat_ms == 0 || self.ping_ms == 0 {
            return 0;
        }
        let every = (self.ping_ms + self.heartbeat_ms / 2) / self.heartbeat_ms;
        every.max(1) * self.heartbeat_ms
    }

    /// The time that a client has to answer a ping, in milliseconds: two heartbeats or 20 s,
    /// whichever is longer, but at most the ping interval.
    pub(crate) fn answer_ms(&self) -> u64 {
        let heartbeats = 20_000_u64.div_ceil(self.heartbeat_ms.max(1)).max(2);
        (heartbeats * self.heartbeat_ms).min(self.ping_interval_ms())
    }
}
