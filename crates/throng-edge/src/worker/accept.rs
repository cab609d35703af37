//! Takes a socket in, or passes it on to a worker that has room.

use throng_core::{Counter, Listener, WorkerId};

use super::{Held, Worker};
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Flags, State};
use crate::framing::Framing;
use crate::net::{HandOver, Net};

impl<N: Net> Worker<N> {
    /// A new connection from the listener.
    pub fn accepted(&mut self, socket: N::Socket) {
        self.count(Counter::Accepted);
        let socket = match self.roomier() {
            Some(other) => match self.pass_on(other, socket, &[]) {
                Ok(()) => return,
                Err(socket) => socket,
            },
            None => socket,
        };
        self.admit(Flags::default(), socket, &mut []);
        self.relieve();
    }

    /// The listener could not give a connection: it stays in the backlog for now.
    pub fn accept_failed(&mut self) {
        self.count(Counter::AcceptFailed);
    }

    /// A connection from another worker or from the control plane, with what was read from it. One
    /// of the admin listener asks for the samples, and the control plane has checked that it may.
    pub fn handed_over(&mut self, hand_over: HandOver, socket: N::Socket, bytes: &mut [u8]) {
        let is_viewer = hand_over.listener == Listener::Admin;
        let flags = Flags::default().with(Flags::VIEWER, is_viewer);
        self.give_back_place(hand_over);
        self.is_taking_over = true;
        self.admit(flags, socket, bytes);
        self.is_taking_over = false;
        self.relieve();
    }

    /// A connection was lost on its way here: no descriptor was left for it.
    pub fn hand_over_lost(&mut self, hand_over: HandOver) {
        self.give_back_place(hand_over);
        self.accept_failed();
    }

    /// From now on the place is any subscriber's.
    fn give_back_place(&self, hand_over: HandOver) {
        if hand_over.has_place {
            drop(self.figures.worker(self.id).kept_place());
        }
    }

    /// Another worker, which has room, if this one has none.
    fn roomier(&self) -> Option<WorkerId> {
        let other = if self.is_full() { self.figures.roomiest() } else { None };
        other.filter(|&other| other != self.id)
    }

    /// Passes a connection on to another worker, with what was read from it.
    fn pass_on(
        &mut self,
        other: WorkerId,
        socket: N::Socket,
        bytes: &[u8],
    ) -> Result<(), N::Socket> {
        // Before it is sent, as afterwards the other may have taken it in already.
        let place = self.figures.worker(other).keep_place();
        self.net.to_worker(other, socket, bytes)?;
        place.travel();
        self.count(Counter::HandedToWorker);
        Ok(())
    }

    /// Passes on a connection whose request, which `bytes` begin with, subscribes where there is no
    /// place for it. Returns its index if it stays. One that has just come from elsewhere does, so
    /// that none goes to and fro.
    pub(super) fn move_on(&mut self, index: u32, bytes: &[u8]) -> Option<u32> {
        if self.is_taking_over {
            return Some(index);
        }
        let Some(other) = self.roomier() else { return Some(index) };
        let connection = self.connections.remove(index)?;
        let generation = connection.generation;
        self.holdings.release(index, connection.held());
        let Connection { socket, due, mut io, state, framing, flags, first, .. } = connection;
        match self.pass_on(other, socket, bytes) {
            Ok(()) => {
                self.publish_load();
                None
            }
            Err(socket) => {
                if let Some(io) = &mut io {
                    io.held = Held::default();
                }
                let again =
                    Connection { socket, generation, due, first, io, state, framing, flags };
                let index = self.connections.insert(again);
                self.count_held(index);
                // The way over has taken it out of the events.
                self.watch(index);
                Some(index)
            }
        }
    }

    fn admit(&mut self, flags: Flags, socket: N::Socket, bytes: &mut [u8]) {
        if !self.make_way() {
            return self.refuse_at_once(&socket);
        }
        let index = self.insert(flags, socket);
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
        if self.index_of(token).is_some() {
            self.await_head(index);
        }
    }

    fn insert(&mut self, flags: Flags, socket: N::Socket) -> u32 {
        // Tokens of generation zero are not connections'.
        self.generation = self.generation.wrapping_add(1).max(1);
        let due = self.now.tick.saturating_add(Self::ticks(self.settings.head_timeout));
        let index = self.connections.insert(Connection {
            socket,
            generation: self.generation,
            due,
            first: None,
            io: None,
            state: State::Head,
            framing: Framing::WebSocket,
            flags,
        });
        self.publish_load();
        index
    }

    fn watch(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let token = Self::token(index, connection.generation);
        if !self.net.watch(&connection.socket, token) {
            self.forget(index, CloseReason::SocketError);
        }
    }
}
