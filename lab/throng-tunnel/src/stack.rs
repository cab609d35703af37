//! All connections of one device, without I/O: packets and the time are passed in.
//!
//! # Invariants
//!
//! * A position has one address and port for ever, and names its connection.
//! * Bytes are kept only while they are unacknowledged, or unread by the client.
//! * A connection has an entry in `unacknowledged` exactly while its mark is set.
//! * A segment without a connection is answered with a reset.

mod sending;

use std::collections::HashMap;
use std::net::SocketAddrV4;

use crate::addresses::{Addresses, Targets};
use crate::packet::{self, Flags, Segment};
use crate::tcp::{Connection, End, Marks, Reply, State, reset_without_connection};
use crate::timers::{ESTABLISHED_ATTEMPT, Timers};

/// The receive window. Without window scaling it is as large as Linux's initial one. A reading
/// client has read everything it acknowledges, so a larger window would only let the server send
/// ahead of a client that does not read.
pub(crate) const WINDOW: usize = 65_535;

/// Bytes that are accepted for sending before the server has acknowledged any.
const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 10;

/// Unused buffers that are kept for reuse.
const SPARE_MAX: usize = 64;

/// Initial sequence numbers come from a clock with ticks of 2^8 ns. It wraps in 18 minutes, and
/// runs faster than any client sends, so a server that still has the old connection of an address
/// recognises the new one.
const CLOCK_SHIFT: u32 = 8;

/// Sends packets to the server.
pub(crate) trait PacketSink {
    fn send(&mut self, segment: &Segment<'_>);
}

/// All connections of one device; see the module documentation.
#[derive(Debug)]
pub(crate) struct Stack {
    addresses: Addresses,
    targets: Targets,
    /// Payload bytes that fit into one segment.
    max_segment_bytes: usize,
    connections: Vec<Connection>,
    unacknowledged: HashMap<u32, Unacknowledged>,
    unread: HashMap<u32, Vec<u8>>,
    timers: Timers,
    /// Positions with a pending acknowledgement. Some may have none any more.
    pending_acks: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Segments retransmitted by this side, and received ones that were or will be retransmitted.
    pub(crate) retransmitted: u64,
}

/// Data and flags that the server has not acknowledged.
#[derive(Debug, Default)]
struct Unacknowledged {
    bytes: Vec<u8>,
    /// How many of `bytes` have been sent, from the first on.
    sent: usize,
    /// `SYN` before the bytes, or `FIN` after them.
    has_flag: bool,
    /// When to retransmit.
    due_ns: u64,
    /// Retransmissions since the server last acknowledged anything.
    attempt: u8,
    /// There was a retransmission, and part of what was in flight then is still unacknowledged.
    is_recovering: bool,
}

impl Unacknowledged {
    fn in_flight(&self) -> u32 {
        // At most `UNACKNOWLEDGED_BYTES_MAX`.
        self.sent as u32 + u32::from(self.has_flag)
    }
}

/// An event for a client.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The client's position.
    pub position: u32,
    /// The connection can send, for the first time or again.
    pub is_writable: bool,
    /// Received bytes, new and in order.
    pub bytes: &'a [u8],
    /// The end of the connection, after the bytes.
    pub end: Option<End>,
}

/// Bytes received while the client did not read.
#[derive(Debug, PartialEq, Eq)]
pub struct Unread {
    /// The bytes, in order.
    pub bytes: Vec<u8>,
    /// The server has sent `FIN` after them.
    pub is_finished: bool,
}

impl Stack {
    pub(crate) fn new(addresses: Addresses, targets: Targets, max_segment_bytes: usize) -> Stack {
        Stack {
            addresses,
            targets,
            max_segment_bytes,
            connections: Vec::new(),
            unacknowledged: HashMap::new(),
            unread: HashMap::new(),
            timers: Timers::default(),
            pending_acks: Vec::new(),
            spare: Vec::new(),
            retransmitted: 0,
        }
    }

    /// Reserves address space for this many clients. Pages become resident as clients connect.
    pub(crate) fn reserve(&mut self, clients: usize) {
        self.connections.reserve_exact(clients);
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    fn connection(&self, position: u32) -> Connection {
        self.connections.get(position as usize).copied().unwrap_or_default()
    }

    /// True if the client has a connection that it has not closed.
    pub(crate) fn is_open(&self, position: u32) -> bool {
        matches!(self.connection(position).state, State::Connecting | State::Open)
    }

    /// Drops everything that is kept for a closed connection.
    fn forget(&mut self, position: u32) {
        if let Some(entry) = self.unacknowledged.remove(&position) {
            self.keep_spare(entry.bytes);
        }
        self.unread.remove(&position);
        self.connections[position as usize] = Connection::default();
    }

    fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() > 0 && self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    fn in_flight(&self, position: u32, connection: Connection) -> u32 {
        if !connection.marks.has(Marks::UNACKNOWLEDGED) {
            return 0;
        }
        self.unacknowledged.get(&position).map_or(0, Unacknowledged::in_flight)
    }

    /// Processes a packet. Returns the event for a client, if there is one.
    pub(crate) fn receive<'a>(
        &mut self,
        packet: &'a [u8],
        now_ns: u64,
        sink: &mut impl PacketSink,
    ) -> Option<Arrival<'a>> {
        let segment = packet::parse(packet)?;
        let position = self.addresses.position(segment.to);
        let position = position.filter(|&position| {
            (position as usize) < self.connections.len()
                && self.targets.of(position) == segment.from
        });
        let Some(position) = position else {
            send_reset(&segment, reset_without_connection(&segment), sink);
            return None;
        };
        let connection = self.connection(position);
        let in_flight = self.in_flight(position, connection);
        let receive_space = if connection.marks.has(Marks::KEEPS_UNREAD) {
            receive_space(&self.unread, position)
        } else {
            WINDOW
        };
        let was_closing = connection.state == State::Closing;
        let connection = &mut self.connections[position as usize];
        let mut outcome = connection.receive(&segment, in_flight, receive_space);
        let is_over = connection.state == State::Closed;
        let is_shut = connection.window == 0;
        self.retransmitted += u64::from(outcome.is_retransmitted);
        match outcome.reply {
            Reply::Nothing => {}
            Reply::DelayedAck if is_over => self.acknowledge(position, sink),
            Reply::DelayedAck => {
                if connection.marks.insert(Marks::ACK_PENDING) {
                    self.pending_acks.push(position);
                }
            }
            Reply::Ack => self.acknowledge(position, sink),
            Reply::Reset(_) => send_reset(&segment, outcome.reply, sink),
        }
        if is_over {
            self.forget(position);
        }
        if !outcome.accepted.is_empty() && !is_over {
            self.connections[position as usize].marks.set(Marks::NOTHING_RECEIVED, false);
        }
        if was_closing {
            // The client has closed already.
            outcome.end = None;
        }
        let mut is_writable = outcome.is_connected;
        if !is_over && (outcome.acknowledged > 0 || in_flight == 0 || is_shut) {
            is_writable |= self.acknowledged(position, outcome.acknowledged, now_ns, sink);
        }
        let bytes = &segment.payload[outcome.accepted];
        let is_something = is_writable || !bytes.is_empty() || outcome.end.is_some();
        is_something.then_some(Arrival { position, is_writable, bytes, end: outcome.end })
    }

    /// Handles an acknowledgement or a window update. Returns whether the client's wait for space
    /// is over.
    fn acknowledged(
        &mut self,
        position: u32,
        count: u32,
        now_ns: u64,
        sink: &mut impl PacketSink,
    ) -> bool {
        let connection = &mut self.connections[position as usize];
        if !connection.marks.has(Marks::UNACKNOWLEDGED) {
            return false;
        }
        let Some(entry) = self.unacknowledged.get_mut(&position) else { return false };
        let is_all = count == entry.in_flight();
        let bytes = (count as usize).min(entry.sent);
        entry.bytes.drain(..bytes);
        entry.sent -= bytes;
        entry.has_flag &= !is_all;
        entry.is_recovering &= !is_all;
        let is_recovering = entry.is_recovering && count > 0;
        if count > 0 || connection.window == 0 {
            // A server that reports a full window is alive.
            entry.attempt = first_attempt(*connection);
        }
        if is_all && entry.bytes.is_empty() {
            let entry = self.unacknowledged.remove(&position).unwrap_or_default();
            connection.marks.set(Marks::UNACKNOWLEDGED, false);
            let was_waiting = connection.marks.has(Marks::WAITS_FOR_SPACE);
            connection.marks.set(Marks::WAITS_FOR_SPACE, false);
            self.keep_spare(entry.bytes);
            return was_waiting;
        }
        if count > 0 {
            entry.due_ns = self.timers.start(position, entry.attempt, now_ns);
        }
        if is_recovering {
            // What follows a lost segment is probably lost too.
            let connection = *connection;
            self.send_again(position, connection, sink);
        }
        self.send_on(position, sink);
        false
    }

    /// Keeps received bytes for a client that does not read, and shrinks the advertised window.
    pub(crate) fn keep_unread(&mut self, position: u32, bytes: &[u8]) {
        self.unread.entry(position).or_default().extend_from_slice(bytes);
        self.connections[position as usize].marks.set(Marks::KEEPS_UNREAD, true);
    }

    /// Returns the bytes kept for a client that reads again, and reopens the window.
    pub(crate) fn take_unread(
        &mut self,
        position: u32,
        sink: &mut impl PacketSink,
    ) -> Option<Unread> {
        let connection = self.connections.get_mut(position as usize)?;
        let is_finished =
            connection.state == State::Open && connection.marks.has(Marks::PEER_FINISHED);
        let bytes = self.unread.remove(&position);
        connection.marks.set(Marks::KEEPS_UNREAD, false);
        if bytes.is_some() {
            self.acknowledge(position, sink);
        }
        let is_something = bytes.is_some() || is_finished;
        is_something.then(|| Unread { bytes: bytes.unwrap_or_default(), is_finished })
    }

    /// Sends the pending acknowledgements.
    pub(crate) fn flush(&mut self, sink: &mut impl PacketSink) {
        let mut pending_acks = std::mem::take(&mut self.pending_acks);
        for position in pending_acks.drain(..) {
            if self.connection(position).marks.has(Marks::ACK_PENDING) {
                self.acknowledge(position, sink);
            }
        }
        self.pending_acks = pending_acks;
    }

    /// When [`expire`](Self::expire) has work to do next.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }
}

/// The attempt that a connection's retransmissions begin with. A lost request must be repeated
/// soon; the acknowledgement of what an idle client sends may wait in the device's queue.
fn first_attempt(connection: Connection) -> u8 {
    if connection.marks.has(Marks::NOTHING_RECEIVED) { 0 } else { ESTABLISHED_ATTEMPT }
}

/// Bytes that a client which does not read can still receive.
fn receive_space(unread: &HashMap<u32, Vec<u8>>, position: u32) -> usize {
    WINDOW.saturating_sub(unread.get(&position).map_or(0, Vec::len))
}

fn window_of(connection: Connection, unread: &HashMap<u32, Vec<u8>>, position: u32) -> u16 {
    if connection.marks.has(Marks::KEEPS_UNREAD) {
        // At most `WINDOW`, which fits.
        receive_space(unread, position) as u16
    } else {
        WINDOW as u16
    }
}

/// Sends the reply to a segment without a connection, if it is a reset.
fn send_reset(segment: &Segment<'_>, reply: Reply, sink: &mut impl PacketSink) {
    let Reply::Reset(sequence) = reply else { return };
    let (flags, acknowledged) = if segment.flags.has(Flags::ACK) {
        (Flags::RST, 0)
    } else {
        (Flags::RST.and(Flags::ACK), segment.sequence.wrapping_add(segment.length()))
    };
    let (from, to): (SocketAddrV4, SocketAddrV4) = (segment.to, segment.from);
    sink.send(&Segment {
        from,
        to,
        sequence,
        acknowledged,
        flags,
        window: 0,
        max_segment_bytes: None,
        payload: &[],
    });
}

#[cfg(test)]
mod tests;
