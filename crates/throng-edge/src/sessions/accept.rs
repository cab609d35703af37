//! Takes connections in: new ones, and those that other threads hand off.

use std::time::Duration;

use throng_access::CountedAddress;
use throng_core::Listener;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::connection::{ConnectionId, Flags};
use crate::counters::Counter;
use crate::net::{HandoffHeader, Net};
use crate::sessions::Sessions;
use crate::sockets::Arrival;

impl<N: Net> Sessions<N> {
    /// A new connection from the listener.
    pub fn accepted(&mut self, socket: N::Socket) {
        self.take_accepted(socket, false);
    }

    /// A new connection from the listener where all begin with a TLS handshake.
    pub fn accepted_tls(&mut self, socket: N::Socket) {
        self.take_accepted(socket, true);
    }

    fn take_accepted(&mut self, socket: N::Socket, is_tls: bool) {
        let awaits_proxy_header = self.access.clients.source.expects_proxy_header();
        let Some(socket) = self.open(socket, is_tls, awaits_proxy_header) else { return };
        let Some(client) = self.arrival(&socket) else { return self.turn_away(socket) };
        let (socket, client) = match self.worker_for_new() {
            Some(other) => match self.hand_off_to_worker(other, socket, client, &[]) {
                Ok(()) => return,
                Err(returned) => returned,
            },
            None => (socket, client),
        };
        let patience = self.settings.head_timeout;
        self.admit(Flags::default(), socket, client, patience, &mut []);
        self.evict_excess();
    }

    /// A connection that another worker or the control plane hands off, with the bytes read from
    /// it. One from the admin listener asks for the status samples, and the control plane has
    /// checked that it may have them.
    pub fn handed_off(&mut self, header: HandoffHeader, socket: N::Socket, bytes: &mut [u8]) {
        if header.is_new {
            self.give_back_place(header);
            return self.accepted(socket);
        }
        let is_viewer = header.listener == Listener::Admin || header.is_canary;
        let flags = Flags::default()
            .with(Flags::HANDED_OFF, true)
            .with(Flags::VIEWER, is_viewer)
            .with(Flags::CANARY, header.is_canary);
        self.give_back_place(header);
        let client = self.handed_off_client(header);
        let Some(state_bytes) = self.arrived(header, &socket, bytes) else {
            self.accept_failed();
            return self.turn_away(socket);
        };
        let bytes = &mut bytes[state_bytes..];
        // It has been served, and is idle: the next request may take its time.
        let is_idle = bytes.is_empty() && !header.is_new && !header.has_place;
        let patience =
            if is_idle { self.settings.idle_timeout } else { self.settings.head_timeout };
        self.admit(flags, socket, client, patience, bytes);
        self.evict_excess();
    }

    /// The kernel has closed a connection on its way here: no descriptor was free for it.
    pub fn handoff_lost(&mut self, header: HandoffHeader) {
        self.give_back_place(header);
        drop(self.handed_off_client(header));
        self.accept_failed();
    }

    /// Facts about the client of a connection that has come by a handoff.
    fn handed_off_client(&self, header: HandoffHeader) -> Arrival {
        let arrived = |address| CountedAddress::arrived(&self.access.clients, address);
        Arrival {
            counted: header.address.map(arrived),
            awaits_proxy_header: header.awaits_proxy_header,
        }
    }

    /// Adds a connection, handles its `bytes`, and reads what follows. Its head has so much time.
    fn admit(
        &mut self,
        flags: Flags,
        socket: N::Socket,
        client: Arrival,
        patience: Duration,
        bytes: &mut [u8],
    ) {
        if !self.turn(Sessions::make_room) {
            self.refuse_without_place(&socket);
            return self.turn_away(socket);
        }
        let due = self.clock().deadline(patience);
        let flags = flags.with(Flags::AWAITS_PROXY_HEADER, client.awaits_proxy_header);
        let now_ms = self.clock().unix_ms();
        let id = self.connections_mut().insert(socket, flags, due, now_ms, client.counted);
        self.turn(|sessions| sessions.begin(id, bytes));
        if self.shutdown.is_ended() {
            // It was handed off before the end, and no later slice of the drain closes it: dropped
            // with the worker, it would have no answer, and over TLS no end.
            self.turn(|sessions| sessions.drain_connection(id, true, false));
        }
    }

    /// Handles the first input of a connection, and asks for its events.
    fn begin(&mut self, id: ConnectionId, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            self.budget().begin_turn();
            self.input(id, bytes);
        }
        if self.is_here(id) {
            // The head mostly arrives with the connection (`TCP_DEFER_ACCEPT`): reading at once
            // saves an event.
            self.read(id, false);
        }
        // Last, so that a connection that is answered and closed at once is never registered. Input
        // since the read is not lost: epoll reports a socket that is readable when it is added.
        if self.is_here(id) {
            self.watch(id);
            self.connections_mut().watch_head(id);
        }
    }

    /// Makes sure that there is a place for a new connection: the oldest unfinished head gives way
    /// if none is free. Returns whether there is one.
    fn make_room(&mut self) -> bool {
        if self.connections().has_room_for_head() {
            return true;
        }
        // All heads are complete, and their connections wait for the control plane.
        let Some(id) = self.connections_mut().take_oldest_unfinished_head() else { return false };
        let mut out = Vec::new();
        let options = self.response_options(ErrorCode::Full, None);
        ErrorResponse::no_more_connections().write_response(&mut out, &options);
        self.give_way(id, &out);
        true
    }

    /// Refuses a connection for which there is no place, not even an unfinished head's: all
    /// heads are complete, and their connections wait for the control plane.
    fn refuse_without_place(&mut self, socket: &N::Socket) {
        self.count(Counter::RefusedBusy);
        let mut out = Vec::new();
        let options = self.response_options(ErrorCode::Busy, None);
        ErrorResponse::from(ErrorCode::Busy).write_response(&mut out, &options);
        // Its request is read first: closing a socket with unread input resets the connection.
        let mut input = self.buffers().take_input();
        self.read_unlisted(socket, &mut input);
        self.buffers().return_input(input);
        self.answer_unlisted(socket, &out, false);
    }
}
