//! The limits at which the data plane waits, refuses or closes.
//!
//! Only [`Limits::max_buffered_bytes`] is a setting that users see: the defaults of the others suit
//! every server. They are fields, and not constants, because tests need small ones.

use std::time::Duration;

use throng_core::ConnectionName;

/// The most workers that a process starts: each takes three descriptors in every table.
pub const WORKERS_MAX: usize = 1024;
const _: () = assert!(WORKERS_MAX <= ConnectionName::WORKERS_MAX);

/// The default of [`Limits::max_heads`].
const HEADS_MAX: u32 = 64;

/// The default of [`Limits::max_lingering`].
const LINGERING_MAX: u32 = 64;

/// The default of [`Limits::max_handshakes`].
const HANDSHAKES_MAX: u32 = 1024;

/// The default of [`Limits::max_viewers`].
const VIEWERS_MAX: u32 = 8;

/// The default number of connections that a worker holds beside its subscribers. Descriptors are
/// set aside for them.
pub(crate) const RESERVE: u32 = HEADS_MAX + LINGERING_MAX + VIEWERS_MAX;

/// The limits of the data plane. Of those for all workers, each worker has an equal share.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of half-read requests and messages, and of unread answers, of all connections of all
    /// workers. A worker beyond its share closes the connections that buffer most.
    pub max_buffered_bytes: usize,
    /// A connection that buffers fewer bytes is never closed for what all buffer together. The
    /// kernel takes about as much for each connection anyway.
    pub held_bytes_floor: usize,
    /// Bytes of answers to its own commands that may wait for one blocked connection. A client that
    /// asks for more without reading is closed.
    pub max_outbound_bytes: usize,
    /// Bytes of messages that the replay buffers of all workers may hold for subscribers that do
    /// not read. Beyond it the oldest are dropped.
    pub max_blocked_bytes: usize,
    /// Bytes of messages that one worker takes from its queue before it has offered them to all
    /// subscribers. Beyond it notifications stay in the queue; once that is full, publishers are
    /// refused.
    pub max_pending_bytes: usize,
    /// Connections without a complete head that a worker holds while every other place is taken; at
    /// least one.
    pub max_heads: u32,
    /// Closing connections of a worker that take no subscriber's place. They wait up to a few
    /// seconds for their peers to read the final response.
    pub max_lingering: u32,
    /// TLS handshakes that a worker has under way at a time. Each takes 8 KB; beyond it connections
    /// wait to be accepted, and handshakes that stall give way.
    pub max_handshakes: u32,
    /// Viewers of the status page that a full worker still accepts, so that an operator sees the
    /// overload. Further ones are refused like any other subscriber.
    pub max_viewers: u32,
    /// Bytes that a worker writes in one slice to subscribers that lack messages, or as answers to
    /// commands, roughly: some hundred microseconds of work.
    pub slice_bytes: usize,
    /// Channels of a command about many that are asked about, followed or left in one turn: about
    /// 200 µs of work. As many questions about access are open for it at a time.
    pub list_part: usize,
    /// The time from the first byte of a WebSocket message to its last.
    pub message_timeout: Duration,
    /// The time that a request or command waits for a decision of the access policy, or for another
    /// answer from elsewhere. Then it is refused with `busy`.
    pub wait_timeout: Duration,
    /// The time in which a client has to read an answer, if it reads some of it now and then.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_buffered_bytes: 1 << 30,
            held_bytes_floor: 4 << 10,
            max_outbound_bytes: 4 << 20,
            max_blocked_bytes: throng_core::subscriptions::BLOCKED_BYTES_MAX,
            max_pending_bytes: 64 << 20,
            max_heads: HEADS_MAX,
            max_lingering: LINGERING_MAX,
            max_viewers: VIEWERS_MAX,
            max_handshakes: HANDSHAKES_MAX,
            slice_bytes: 256 << 10,
            list_part: 128,
            wait_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(15 * 60),
        }
    }
}
