//! State of a TLS connection only while something is half done: a handshake, half a record.

use std::collections::VecDeque;

use throng_tls::{End, Handshake};

use crate::connection::Token;

/// The memory of a handshake under way, in bytes, roughly.
const HANDSHAKE_BYTES: usize = 8 << 10;

/// State of a connection while something is half read, half written or not agreed upon.
#[derive(Default)]
pub(super) struct Half {
    /// The beginning of a record; after a handoff, whole records, too.
    pub(super) inbound: Vec<u8>,
    /// Records that wait for the socket: the rest of one that it took in part, a handshake's
    /// flight, a key update, an alert.
    pub(super) outbound: Outbound,
    pub(super) stage: Stage,
    /// Why nothing more will be opened, if so. What came before it was passed on.
    pub(super) end: Option<End>,
    /// True while bytes pass as they are, until the PROXY header before the handshake has come.
    pub(super) is_passing: bool,
    /// Its first record has come, and there are too many handshakes to begin this one: it is in
    /// the queue.
    pub(super) is_queued: bool,
    /// The tick at which its socket was read last, while it shakes hands.
    pub(super) read_at: u32,
    /// The token of its events, until the handshake is done.
    pub(super) token: Option<Token>,
}

/// How far the handshake of a connection without keys is.
#[derive(Default)]
pub(super) enum Stage {
    /// Its first record has not come in full: it costs its bytes only. Also once it is done.
    #[default]
    Waiting,
    /// It is under way since this moment, a number of ticks.
    Shaking(Box<Handshake>, u32),
    /// It failed, or was given up.
    Failed,
}

/// Bytes that wait for the socket, from `written` on.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbound {
    pub(super) fn resume(bytes: Vec<u8>) -> Outbound {
        Outbound { bytes, written: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.written += count;
        if self.is_empty() {
            *self = Outbound::default();
        }
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Half {
    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let shaking = match self.stage {
            Stage::Shaking(..) => HANDSHAKE_BYTES,
            Stage::Waiting | Stage::Failed => 0,
        };
        self.inbound.capacity() + self.outbound.capacity() + shaking
    }

    /// True if nothing in it is needed, once the handshake is done.
    pub(super) fn is_idle(&self) -> bool {
        self.inbound.is_empty() && self.outbound.is_empty() && self.end.is_none()
    }
}

impl std::fmt::Debug for Half {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Half")
            .field("inbound_bytes", &self.inbound.len())
            .field("outbound_bytes", &self.outbound.rest().len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// The sockets whose handshakes wait for the end of others, longest first. Those that are gone
/// meanwhile are left out when they are found.
pub(super) type Queued = VecDeque<u32>;

/// Handshakes that take too long, which are read once more before they are given up.
pub(super) type Late = Vec<Token>;

/// The sockets whose handshakes are under way, oldest first, with the moments at which they began.
/// Those that ended meanwhile are left out when they are found.
pub(super) type Begun = VecDeque<(u32, u32)>;
