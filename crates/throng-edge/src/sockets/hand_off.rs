//! Hands connections off: to the control plane if they do not subscribe, and to other workers if
//! this one is full.

use std::net::IpAddr;

use throng_access::CountedAddress;
use throng_core::{Listener, WorkerId};

use crate::connection::{Connection, ConnectionId, Flags, Io, Phase, State};
use crate::counters::Counter;
use crate::net::{HandoffHeader, Net};
use crate::sockets::Sockets;

/// The number of handoffs to the control plane that one slice retries.
const HANDOFFS_PER_SLICE: usize = 64;

/// Facts about the client of a connection before its first request is read.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    /// Its address, if that is known and kept.
    pub(crate) counted: Option<CountedAddress>,
    /// True if the connection has to begin with a PROXY header.
    pub(crate) awaits_proxy_header: bool,
}

impl Arrival {
    fn address(&self) -> Option<IpAddr> {
        self.counted.as_ref().map(CountedAddress::address)
    }
}

impl<N: Net> Sockets<N> {
    /// Hands the connection off to the control plane with the bytes that were read from it. If the
    /// control plane takes no more, the connection stays, and [`Sockets::retry_handoffs`] tries
    /// again. Returns whether it has gone.
    pub(crate) fn hand_off_to_control(&mut self, id: ConnectionId, bytes: &[u8]) -> bool {
        let (connection, client) = self.connections.take(id);
        let mut flags = connection.flags;
        let address = client.as_ref().map(CountedAddress::address);
        let header = HandoffHeader { address, ..HandoffHeader::between_planes(Listener::Public) };
        let socket = match self.net.to_control(header, connection.socket, bytes) {
            Ok(()) => {
                leave_counted(client);
                if flags.has(Flags::SERVED) {
                    self.note_poll_end();
                }
                self.count(Counter::HandedOffToControl);
                return true;
            }
            Err(socket) => socket,
        };
        let is_first_try = !flags.has(Flags::AWAITS_CONTROL);
        flags.set(Flags::AWAITS_CONTROL, true);
        let deadline = self.clock.deadline(self.settings.head_timeout);
        let connection = Connection {
            socket,
            // Later tries do not prolong the wait.
            due: if is_first_try { deadline } else { connection.due },
            io: Some(Box::new(Io::with_inbound(bytes))),
            phase: Phase::default(),
            flags,
            ..connection
        };
        self.connections.put_back(id, connection, client);
        self.deferred.handoffs.push_back(self.connections.token(id));
        false
    }

    /// Tries again to hand off connections that the control plane did not take.
    pub(crate) fn retry_handoffs(&mut self) {
        for _ in 0..self.deferred.handoffs.len().min(HANDOFFS_PER_SLICE) {
            let Some(token) = self.deferred.handoffs.pop_front() else { return };
            // The others have ended or were refused meanwhile.
            let Some(id) = self.connections.find(token) else { continue };
            let connection = &mut self.connections[id];
            let may_go = connection.state() == State::Head && connection.has(Flags::AWAITS_CONTROL);
            let Some(io) = connection.io.as_mut().filter(|_| may_go) else { continue };
            let bytes = std::mem::take(&mut io.inbound);
            if !self.hand_off_to_control(id, &bytes) {
                return;
            }
        }
    }

    /// Another worker with room; `None` if this one has room, or no other has.
    pub(crate) fn worker_with_room(&self) -> Option<WorkerId> {
        if !self.connections.is_full() {
            return None;
        }
        self.metrics.other_with_room()
    }

    /// Another worker for a new connection, if those that are here may take all places; `None` if
    /// this one has room, or no other has.
    pub(crate) fn worker_for_new(&self) -> Option<WorkerId> {
        if self.connections.room_for_new() > 0 {
            return None;
        }
        let other = self.metrics.other_with_room()?;
        // As long as heads alone take the places here and there, it may as well stay.
        let has_room = self.metrics.all().worker(other).room_for_new() > 0;
        (has_room || self.connections.is_full()).then_some(other)
    }

    /// Hands a connection off to another worker with what is known about its `client`, and with the
    /// bytes that were read from it. Returns both if that worker takes no more.
    pub(crate) fn hand_off_to_worker(
        &mut self,
        other: WorkerId,
        socket: N::Socket,
        client: Arrival,
        bytes: &[u8],
    ) -> Result<(), (N::Socket, Arrival)> {
        // The place is kept before the handoff: the other worker may receive it, and free the
        // place, before this thread goes on.
        let place = self.metrics.keep_place(other);
        let header = HandoffHeader {
            address: client.address(),
            awaits_proxy_header: client.awaits_proxy_header,
            ..HandoffHeader::TO_WORKER
        };
        if let Err(socket) = self.net.to_worker(other, header, socket, bytes) {
            return Err((socket, client));
        }
        leave_counted(client.counted);
        place.travel();
        self.count(Counter::HandedOffToWorker);
        Ok(())
    }

    /// Hands a connection that subscribes off to another worker, if this one has no place for it
    /// and another has. `bytes` begin with its request. Returns whether it stays. A connection that
    /// was itself handed off stays, so that none goes back and forth.
    pub(crate) fn hand_off_if_full(&mut self, id: ConnectionId, bytes: &[u8]) -> bool {
        if self.connections[id].has(Flags::HANDED_OFF) {
            return true;
        }
        let Some(other) = self.worker_with_room() else { return true };
        let (connection, counted) = self.connections.take(id);
        let client = Arrival { counted, awaits_proxy_header: false };
        let sent = self.hand_off_to_worker(other, connection.socket, client, bytes);
        let (socket, client) = match sent {
            Ok(()) => return false,
            Err(returned) => returned,
        };
        let connection = Connection { socket, phase: Phase::default(), ..connection };
        self.connections.put_back(id, connection, client.counted);
        // The attempt has removed it from epoll.
        self.watch(id);
        self.is_here(id)
    }
}

/// The address of a connection that was handed off goes on counting: its receiver has it now.
fn leave_counted(client: Option<CountedAddress>) {
    let _ = client.map(CountedAddress::into_address);
}
