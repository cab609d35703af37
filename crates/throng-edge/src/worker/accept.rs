//! Takes a socket in, or passes it on for want of room.

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use throng_core::Counter;
use throng_wire::Refusal;
use throng_wire::refusal::ResponseOptions;

use super::Worker;
use crate::connection::{Connection, Flags, State};
use crate::framing::Framing;
use crate::net::Net;

/// Connections beyond a worker's room that it keeps for a moment, to tell them that it is full.
/// They have descriptors of their own, see `start`.
pub(crate) const REFUSALS_MAX: u32 = 64;

/// What `Retry-After` says when there is no room, in seconds.
pub(crate) const RETRY_AFTER_S: u32 = 5;

impl<N: Net> Worker<N> {
    /// A new connection from the listener.
    pub fn accepted(&mut self, socket: N::Socket) {
        self.count(Counter::Accepted);
        if self.is_full() {
            self.pass_on(socket);
            return;
        }
        self.admit(socket, &mut []);
    }

    /// The listener could not give a connection: it stays in the backlog for now.
    pub fn accept_failed(&mut self) {
        self.count(Counter::AcceptFailed);
    }

    /// A connection from another worker or from the control plane, with what was read from it.
    pub fn handed_over(&mut self, socket: N::Socket, bytes: &mut [u8]) {
        if self.is_full() {
            self.refuse_full(socket);
            return;
        }
        self.admit(socket, bytes);
    }

    /// Whether it has no room for another connection.
    pub fn is_full(&self) -> bool {
        let (all, capacity) = (self.connections.len() as u32, self.capacity());
        all - self.closing >= capacity || all >= capacity + REFUSALS_MAX
    }

    fn capacity(&self) -> u32 {
        self.figures.worker(self.id).capacity
    }

    fn pass_on(&mut self, socket: N::Socket) {
        let Some(other) = self.figures.roomiest().filter(|&other| other != self.id) else {
            self.refuse_full(socket);
            return;
        };
        // Until the other has taken it in, so that a burst does not all go one way. Before it is
        // sent, as afterwards the other may have counted it already.
        self.figures.worker(other).connections.fetch_add(1, Ordering::Relaxed);
        match self.net.to_worker(other, socket) {
            Ok(()) => self.count(Counter::HandedToWorker),
            Err(socket) => self.refuse_full(socket),
        }
    }

    fn refuse_full(&mut self, socket: N::Socket) {
        self.count(Counter::RefusedFull);
        let refusal =
            Refusal::new(503, "full", "there is no room for another connection; try again later");
        let options =
            ResponseOptions { retry_after_s: Some(RETRY_AFTER_S), ..ResponseOptions::default() };
        if self.connections.len() as u32 >= self.capacity() + REFUSALS_MAX {
            let mut out = Vec::new();
            refusal.write_response(&mut out, &options);
            // What it has sent is read first, as closing a socket with unread bytes resets it.
            let _ = self.net.read(&socket, &mut self.buffer);
            let _ = self.net.write(&socket, &[IoSlice::new(&out)]);
            self.net.finish(&socket);
            self.count(Counter::Closed);
            return;
        }
        let index = self.insert(socket);
        self.refuse(index, &refusal, &options);
        self.watch(index);
    }

    fn admit(&mut self, socket: N::Socket, bytes: &mut [u8]) {
        let index = self.insert(socket);
        let Some(generation) = self.connections.get(index).map(|it| it.generation) else { return };
        let token = Self::token(index, generation);
        if !bytes.is_empty() {
            self.begin_turn();
            self.input(index, bytes);
        }
        if self.index_of(token).is_some() {
            // The head mostly comes with the connection, so that looking at once saves an event.
            self.read(index, false);
        }
        if self.index_of(token).is_some() {
            self.watch(index);
        }
    }

    fn insert(&mut self, socket: N::Socket) -> u32 {
        self.next_generation = self.next_generation.wrapping_add(1);
        let due = self.now.tick.saturating_add(Self::ticks(self.settings.head_timeout));
        let index = self.connections.insert(Connection {
            socket,
            generation: self.next_generation,
            due,
            first: None,
            io: None,
            state: State::Head,
            framing: Framing::WebSocket,
            flags: Flags::default(),
        });
        self.publish_load();
        index
    }

    fn watch(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let token = Self::token(index, connection.generation);
        if !self.net.watch(&connection.socket, token) {
            self.forget(index, Counter::ClosedByError);
        }
    }
}
