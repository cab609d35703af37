//! All connections of one device, without I/O: packets come in and go out, time is passed in.
//!
//! # Invariants
//!
//! * A position has one address and port for ever; a connection is known by its position.
//! * Bytes are kept only while they are unacknowledged, or held for a client that does not read.
//! * An entry of `unacknowledged` is there exactly while its connection has the mark.
//! * A segment that finds no connection is answered with a reset.

mod sending;

use std::collections::HashMap;
use std::net::SocketAddrV4;

use super::ends::{Addresses, Targets};
use super::packet::{self, Flags, Segment};
use super::tcp::{Answer, Connection, End, Marks, State, reset_of_unknown};
use super::timers::{PATIENT_ATTEMPT, Timers};

/// What a client takes and has not read: without window scaling, as large as Linux begins with.
/// A client that reads has read everything when it acknowledges, so that more would only let a
/// server send ahead of a client that does not.
pub(super) const WINDOW: usize = 65_535;

/// What is taken to be sent before the server has acknowledged it.
const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 10;

/// Buffers of bytes that are not needed are kept for others, up to so many.
const SPARE_MAX: usize = 64;

/// Numbers of connections begin at a clock of two to this power of nanoseconds: it goes round in 18
/// minutes, and faster than any client sends, so that a server whose old connection lingers
/// for a minute recognises a new one.
const CLOCK_SHIFT: u32 = 8;

/// What takes packets to the server.
pub(super) trait Wire {
    fn send(&mut self, segment: &Segment<'_>);
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stack {
    addresses: Addresses,
    targets: Targets,
    /// Bytes of a segment that can be sent.
    segment_bytes_max: usize,
    connections: Vec<Connection>,
    unacknowledged: HashMap<u32, Unacknowledged>,
    held: HashMap<u32, Vec<u8>>,
    timers: Timers,
    /// Those that are owed an acknowledgement, and some that are not any more.
    owed: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Segments that came again or will, and that were sent again.
    pub(super) repeated: u64,
}

/// What the server has not acknowledged.
#[derive(Debug, Default)]
struct Unacknowledged {
    bytes: Vec<u8>,
    /// Of these, the first that have been sent.
    sent: usize,
    /// `SYN` before them, or `FIN` after them.
    has_flag: bool,
    /// When it is sent again.
    due_ns: u64,
    /// How often it has been sent again since the server acknowledged something.
    attempt: u8,
    /// Something was sent again, and not all of what was in flight then is acknowledged.
    is_recovering: bool,
}

impl Unacknowledged {
    fn in_flight(&self) -> u32 {
        // At most `UNACKNOWLEDGED_BYTES_MAX`.
        self.sent as u32 + u32::from(self.has_flag)
    }
}

/// What has come for a client.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The client's.
    pub position: u32,
    /// There is room to send (again).
    pub has_room: bool,
    /// In order, and new.
    pub bytes: &'a [u8],
    /// After the bytes.
    pub end: Option<End>,
}

/// What came while a client did not read.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// In order.
    pub bytes: Vec<u8>,
    /// The server has no more to say.
    pub is_finished: bool,
}

impl Stack {
    pub(super) fn new(addresses: Addresses, targets: Targets, segment_bytes_max: usize) -> Stack {
        Stack {
            addresses,
            targets,
            segment_bytes_max,
            connections: Vec::new(),
            unacknowledged: HashMap::new(),
            held: HashMap::new(),
            timers: Timers::default(),
            owed: Vec::new(),
            spare: Vec::new(),
            repeated: 0,
        }
    }

    /// Makes room for so many clients; pages of it become resident as they are opened.
    pub(super) fn reserve(&mut self, clients: usize) {
        self.connections.reserve_exact(clients);
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    fn connection(&self, position: u32) -> Connection {
        self.connections.get(position as usize).copied().unwrap_or_default()
    }

    /// Whether the client has a connection that it has not closed.
    pub(super) fn is_open(&self, position: u32) -> bool {
        matches!(self.connection(position).state, State::Connecting | State::Open)
    }

    /// Takes what is kept of a connection that is over.
    fn forget(&mut self, position: u32) {
        if let Some(entry) = self.unacknowledged.remove(&position) {
            self.keep_spare(entry.bytes);
        }
        self.held.remove(&position);
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

    /// Takes a packet; what it means for a client, if anything.
    pub(super) fn receive<'a>(
        &mut self,
        packet: &'a [u8],
        now_ns: u64,
        wire: &mut impl Wire,
    ) -> Option<Arrival<'a>> {
        let segment = packet::parse(packet)?;
        let position = self.addresses.position(segment.to);
        let position = position.filter(|&position| {
            (position as usize) < self.connections.len()
                && self.targets.of(position) == segment.from
        });
        let Some(position) = position else {
            answer_unknown(&segment, reset_of_unknown(&segment), wire);
            return None;
        };
        let connection = self.connection(position);
        let in_flight = self.in_flight(position, connection);
        let room = match connection.marks.has(Marks::HOLDS) {
            true => room_of(&self.held, position),
            false => WINDOW,
        };
        let was_closing = connection.state == State::Closing;
        let connection = &mut self.connections[position as usize];
        let mut outcome = connection.arrive(&segment, in_flight, room);
        let is_over = connection.state == State::Closed;
        let is_shut = connection.window == 0;
        self.repeated += u64::from(outcome.is_repeated);
        match outcome.answer {
            Answer::Nothing => {}
            Answer::Later if is_over => self.acknowledge(position, wire),
            Answer::Later => {
                if connection.marks.raise(Marks::OWES) {
                    self.owed.push(position);
                }
            }
            Answer::Now => self.acknowledge(position, wire),
            Answer::Reset(_) => answer_unknown(&segment, outcome.answer, wire),
        }
        if is_over {
            self.forget(position);
        }
        if !outcome.accepted.is_empty() && !is_over {
            self.connections[position as usize].marks.set(Marks::YOUNG, false);
        }
        if was_closing {
            // The client knows.
            outcome.end = None;
        }
        let mut has_room = outcome.is_connected;
        if !is_over && (outcome.acknowledged > 0 || in_flight == 0 || is_shut) {
            has_room |= self.acknowledged(position, outcome.acknowledged, now_ns, wire);
        }
        let bytes = &segment.payload[outcome.accepted];
        let is_something = has_room || !bytes.is_empty() || outcome.end.is_some();
        is_something.then_some(Arrival { position, has_room, bytes, end: outcome.end })
    }

    /// The server has acknowledged something, or its window has opened. Whether there is room that
    /// was waited for.
    fn acknowledged(
        &mut self,
        position: u32,
        count: u32,
        now_ns: u64,
        wire: &mut impl Wire,
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
            // Who is full and says so is there.
            entry.attempt = first_attempt(*connection);
        }
        if is_all && entry.bytes.is_empty() {
            let entry = self.unacknowledged.remove(&position).unwrap_or_default();
            connection.marks.set(Marks::UNACKNOWLEDGED, false);
            let was_waiting = connection.marks.has(Marks::WANTS_ROOM);
            connection.marks.set(Marks::WANTS_ROOM, false);
            self.keep_spare(entry.bytes);
            return was_waiting;
        }
        if count > 0 {
            entry.due_ns = self.timers.start(position, entry.attempt, now_ns);
        }
        if is_recovering {
            // What follows a lost segment is lost too, as likely as not.
            let connection = *connection;
            self.send_again(position, connection, wire);
        }
        self.send_on(position, wire);
        false
    }

    /// Keeps bytes of an arrival for a client that does not read, and shows the server a window
    /// that is so much smaller.
    pub(super) fn hold(&mut self, position: u32, bytes: &[u8]) {
        self.held.entry(position).or_default().extend_from_slice(bytes);
        self.connections[position as usize].marks.set(Marks::HOLDS, true);
    }

    /// The client reads again: what came meanwhile. The server is told that there is room.
    pub(super) fn release(&mut self, position: u32, wire: &mut impl Wire) -> Option<Held> {
        let connection = self.connections.get_mut(position as usize)?;
        let is_finished = connection.state == State::Open && connection.marks.has(Marks::ENDED);
        let bytes = self.held.remove(&position);
        connection.marks.set(Marks::HOLDS, false);
        if bytes.is_some() {
            self.acknowledge(position, wire);
        }
        let is_something = bytes.is_some() || is_finished;
        is_something.then(|| Held { bytes: bytes.unwrap_or_default(), is_finished })
    }

    /// Sends the acknowledgements that are owed.
    pub(super) fn flush(&mut self, wire: &mut impl Wire) {
        let mut owed = std::mem::take(&mut self.owed);
        for position in owed.drain(..) {
            if self.connection(position).marks.has(Marks::OWES) {
                self.acknowledge(position, wire);
            }
        }
        self.owed = owed;
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }
}

/// Where the waits for an acknowledgement begin. A request that is lost must be said again soon; an
/// acknowledgement of what a parked client says may have to wait until the device's queue is read.
fn first_attempt(connection: Connection) -> u8 {
    if connection.marks.has(Marks::YOUNG) { 0 } else { PATIENT_ATTEMPT }
}

/// Bytes that a client would take that does not read.
fn room_of(held: &HashMap<u32, Vec<u8>>, position: u32) -> usize {
    WINDOW.saturating_sub(held.get(&position).map_or(0, Vec::len))
}

fn window_of(connection: Connection, held: &HashMap<u32, Vec<u8>>, position: u32) -> u16 {
    match connection.marks.has(Marks::HOLDS) {
        // At most `WINDOW`, which fits.
        true => room_of(held, position) as u16,
        false => WINDOW as u16,
    }
}

/// Answers a segment with a reset, if that is the answer.
fn answer_unknown(segment: &Segment<'_>, answer: Answer, wire: &mut impl Wire) {
    let Answer::Reset(sequence) = answer else { return };
    let (flags, acknowledged) = match segment.flags.has(Flags::ACK) {
        true => (Flags::RST, 0),
        false => (Flags::RST.and(Flags::ACK), segment.sequence.wrapping_add(segment.length())),
    };
    let (from, to): (SocketAddrV4, SocketAddrV4) = (segment.to, segment.from);
    wire.send(&Segment {
        from,
        to,
        sequence,
        acknowledged,
        flags,
        window: 0,
        segment_bytes_max: None,
        payload: &[],
    });
}

#[cfg(test)]
mod tests;
