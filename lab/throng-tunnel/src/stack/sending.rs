//! The sending side of the stack: connects, data, closes and retransmissions.

use std::collections::hash_map::Entry;

use super::{
    CLOCK_SHIFT, PacketSink, Stack, UNACKNOWLEDGED_BYTES_MAX, Unacknowledged, WINDOW,
    first_attempt, window_of,
};
use crate::packet::{Flags, Segment};
use crate::tcp::{Connection, Marks, State};
use crate::timers::ATTEMPTS_MAX;

impl Stack {
    /// Starts to connect. Resets an earlier connection of the position, if there is one.
    pub(crate) fn open(&mut self, position: u32, now_ns: u64, sink: &mut impl PacketSink) {
        self.reset(position, sink);
        let at = position as usize;
        if at >= self.connections.len() {
            self.connections.resize(at + 1, Connection::default());
        }
        let connection = &mut self.connections[at];
        *connection = Connection {
            // The lower 32 bits of the clock.
            first_unacknowledged: (now_ns >> CLOCK_SHIFT) as u32,
            state: State::Connecting,
            ..Connection::default()
        };
        connection.marks.set(Marks::UNACKNOWLEDGED, true);
        connection.marks.set(Marks::NOTHING_RECEIVED, true);
        let due_ns = self.timers.start(position, 0, now_ns);
        let syn = Unacknowledged { has_flag: true, due_ns, ..Unacknowledged::default() };
        self.unacknowledged.insert(position, syn);
        self.write_syn(position, sink);
    }

    /// Sends bytes and returns how many were accepted. If not all, an arrival reports when the
    /// connection is writable.
    pub(crate) fn send(
        &mut self,
        position: u32,
        bytes: &[u8],
        now_ns: u64,
        sink: &mut impl PacketSink,
    ) -> usize {
        let Some(connection) = self.connections.get_mut(position as usize) else { return 0 };
        if connection.state != State::Open {
            connection.marks.set(Marks::WAITS_FOR_SPACE, true);
            return 0;
        }
        let entry = match self.unacknowledged.entry(position) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                connection.marks.set(Marks::UNACKNOWLEDGED, true);
                let attempt = first_attempt(*connection);
                let due_ns = self.timers.start(position, attempt, now_ns);
                let bytes = self.spare.pop().unwrap_or_default();
                let entry = entry.insert(Unacknowledged::default());
                (entry.bytes, entry.due_ns, entry.attempt) = (bytes, due_ns, attempt);
                entry
            }
        };
        let taken = bytes.len().min(UNACKNOWLEDGED_BYTES_MAX - entry.bytes.len());
        entry.bytes.extend_from_slice(&bytes[..taken]);
        if taken < bytes.len() {
            connection.marks.set(Marks::WAITS_FOR_SPACE, true);
        }
        self.send_on(position, sink);
        taken
    }

    /// Sends as much as the server's window allows.
    pub(super) fn send_on(&mut self, position: u32, sink: &mut impl PacketSink) {
        let connection = &mut self.connections[position as usize];
        let Some(entry) = self.unacknowledged.get_mut(&position) else { return };
        while entry.sent < entry.bytes.len() && connection.state == State::Open {
            let window = usize::from(connection.window).saturating_sub(entry.sent);
            let bytes = (entry.bytes.len() - entry.sent).min(window).min(self.max_segment_bytes);
            if bytes == 0 {
                return;
            }
            connection.marks.set(Marks::ACK_PENDING, false);
            let payload = &entry.bytes[entry.sent..entry.sent + bytes];
            let segment = Segment {
                from: self.addresses.of(position),
                to: self.targets.of(position),
                // Below `UNACKNOWLEDGED_BYTES_MAX`.
                sequence: connection.first_unacknowledged.wrapping_add(entry.sent as u32),
                acknowledged: connection.expected,
                flags: Flags::ACK.and(Flags::PSH),
                window: window_of(*connection, &self.unread, position),
                max_segment_bytes: None,
                payload,
            };
            sink.send(&segment);
            entry.sent += bytes;
        }
    }

    /// Closes with `FIN`, which is retransmitted until the server acknowledges it.
    pub(crate) fn close(&mut self, position: u32, now_ns: u64, sink: &mut impl PacketSink) {
        let connection = self.connection(position);
        let has_unsent =
            self.unacknowledged.get(&position).is_some_and(|entry| entry.sent < entry.bytes.len());
        // With unread or unsent data the connection is reset, as kernels do.
        if connection.state != State::Open
            || has_unsent
            || connection.marks.has(Marks::KEEPS_UNREAD)
        {
            return self.reset(position, sink);
        }
        let attempt = first_attempt(connection);
        let due_ns = self.timers.start(position, attempt, now_ns);
        let entry = self.unacknowledged.entry(position).or_default();
        (entry.has_flag, entry.due_ns, entry.attempt) = (true, due_ns, attempt);
        let connection = &mut self.connections[position as usize];
        connection.state = State::Closing;
        connection.marks.set(Marks::UNACKNOWLEDGED, true);
        self.write_fin(position, sink);
    }

    /// Resets the connection, if there is one.
    pub(crate) fn reset(&mut self, position: u32, sink: &mut impl PacketSink) {
        let connection = self.connection(position);
        if connection.state == State::Closed {
            return;
        }
        let in_flight = self.in_flight(position, connection);
        let next = connection.first_unacknowledged.wrapping_add(in_flight);
        let flags = Flags::RST.and(Flags::ACK);
        self.write(position, flags, next, &[], sink);
        self.forget(position);
    }

    /// Retransmits what has timed out. Returns the position of a connection that was given up and
    /// reset; call until `None`.
    pub(crate) fn expire(&mut self, now_ns: u64, sink: &mut impl PacketSink) -> Option<u32> {
        while let Some((due_ns, position)) = self.timers.pop(now_ns) {
            let Some(entry) = self.unacknowledged.get_mut(&position) else { continue };
            if entry.due_ns != due_ns {
                continue;
            }
            entry.attempt += 1;
            entry.is_recovering = true;
            let connection = self.connections[position as usize];
            if usize::from(entry.attempt) >= ATTEMPTS_MAX {
                self.reset(position, sink);
                match connection.state {
                    State::Closing => continue,
                    _ => return Some(position),
                }
            }
            entry.due_ns = self.timers.start(position, entry.attempt, now_ns);
            self.retransmitted += 1;
            self.send_again(position, connection, sink);
        }
        None
    }

    pub(super) fn send_again(
        &mut self,
        position: u32,
        connection: Connection,
        sink: &mut impl PacketSink,
    ) {
        if connection.state == State::Connecting {
            return self.write_syn(position, sink);
        }
        let Some(entry) = self.unacknowledged.get_mut(&position) else { return };
        if entry.bytes.is_empty() {
            return self.write_fin(position, sink);
        }
        // One segment only: its acknowledgement tells what else is missing. A closed window gets
        // one byte, as a probe.
        let most = entry.sent.max(1).min(usize::from(connection.window).max(1));
        let bytes = most.min(self.max_segment_bytes).min(entry.bytes.len());
        entry.sent = entry.sent.max(bytes);
        let payload = entry.bytes[..bytes].to_vec();
        let flags = Flags::ACK.and(Flags::PSH);
        self.write(position, flags, connection.first_unacknowledged, &payload, sink);
        let is_all_sent =
            self.unacknowledged.get(&position).is_some_and(|entry| entry.sent == bytes);
        if connection.state == State::Closing && is_all_sent {
            self.write_fin(position, sink);
        }
    }

    fn write_syn(&self, position: u32, sink: &mut impl PacketSink) {
        sink.send(&Segment {
            from: self.addresses.of(position),
            to: self.targets.of(position),
            sequence: self.connection(position).first_unacknowledged,
            acknowledged: 0,
            flags: Flags::SYN,
            window: WINDOW as u16,
            // Less than a packet, so it fits.
            max_segment_bytes: Some(self.max_segment_bytes as u16),
            payload: &[],
        });
    }

    fn write_fin(&mut self, position: u32, sink: &mut impl PacketSink) {
        let first = self.connection(position).first_unacknowledged;
        let bytes = self.unacknowledged.get(&position).map_or(0, |entry| entry.bytes.len());
        let sequence = first.wrapping_add(bytes as u32);
        self.write(position, Flags::FIN.and(Flags::ACK), sequence, &[], sink);
    }

    pub(super) fn acknowledge(&mut self, position: u32, sink: &mut impl PacketSink) {
        let connection = self.connection(position);
        let in_flight = self.in_flight(position, connection);
        let next = connection.first_unacknowledged.wrapping_add(in_flight);
        self.write(position, Flags::ACK, next, &[], sink);
    }

    /// Writes a segment with the current acknowledgement, so that none is pending any more.
    fn write(
        &mut self,
        position: u32,
        flags: Flags,
        sequence: u32,
        payload: &[u8],
        sink: &mut impl PacketSink,
    ) {
        let connection = &mut self.connections[position as usize];
        connection.marks.set(Marks::ACK_PENDING, false);
        sink.send(&Segment {
            from: self.addresses.of(position),
            to: self.targets.of(position),
            sequence,
            acknowledged: connection.expected,
            flags,
            window: window_of(*connection, &self.unread, position),
            max_segment_bytes: None,
            payload,
        });
    }
}
