//! How much the data plane takes on before it waits, refuses or closes.
//!
//! They are no settings of an operator's, but for [`Limits::max_buffered_bytes`]: the defaults suit
//! every server. They are parameters because tests have to reach them.

use std::time::Duration;

/// See [`Limits::heads_max`].
const HEADS_MAX: u32 = 64;

/// See [`Limits::lingering_max`].
const LINGERING_MAX: u32 = 64;

/// See [`Limits::viewers_max`].
const VIEWERS_MAX: u32 = 8;

/// Connections of a worker beyond its room for subscribers, by default: they have descriptors of
/// their own.
pub(crate) const RESERVE: u32 = HEADS_MAX + LINGERING_MAX + VIEWERS_MAX;

/// The limits of all workers; a worker has an equal share of what is said to be everybody's.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Half-read requests and messages, and unread answers, of all connections of all workers, in
    /// bytes. Beyond its share a worker closes the connections that hold most.
    pub max_buffered_bytes: usize,
    /// A connection that holds fewer bytes is never closed for what all hold together: about what
    /// the kernel takes for it anyway.
    pub held_bytes_floor: usize,
    /// Bytes that may wait for one blocked connection, beside messages: answers to its own
    /// commands. A client that asks without reading is closed beyond it.
    pub outbound_bytes_max: usize,
    /// Bytes of messages that the replay buffers of all workers may hold for subscribers that do
    /// not read; beyond it the oldest are dropped.
    pub blocked_bytes_max: usize,
    /// Bytes of messages that one worker takes from its queue before they have been offered to
    /// everyone; beyond it notifications wait, and once the queue is full publishers are refused.
    pub pending_bytes_max: usize,
    /// Heads that a worker reads while every other place is taken; at least one.
    pub heads_max: u32,
    /// Closing connections of a worker that take no subscriber's place: they wait a moment for
    /// their peers to read what was written last.
    pub lingering_max: u32,
    /// Viewers of the status page that a full worker still takes: an operator has to see the
    /// overload. Further ones are refused like any other subscriber.
    pub viewers_max: u32,
    /// Bytes that a worker writes to those who catch up, or answers to commands, before others have
    /// their turn, roughly: some hundred microseconds of work.
    pub slice_bytes: usize,
    /// A WebSocket message that has begun must be complete after this.
    pub message_timeout: Duration,
    /// A client that takes some of an answer now and then has this long for all of it.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_buffered_bytes: 1 << 30,
            held_bytes_floor: 4 << 10,
            outbound_bytes_max: 4 << 20,
            blocked_bytes_max: throng_core::subscriptions::BLOCKED_BYTES_MAX,
            pending_bytes_max: 64 << 20,
            heads_max: HEADS_MAX,
            lingering_max: LINGERING_MAX,
            viewers_max: VIEWERS_MAX,
            slice_bytes: 256 << 10,
            message_timeout: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(15 * 60),
        }
    }
}
