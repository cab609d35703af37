//! Hands connections that do not subscribe to the control plane.

use throng_core::Counter;

use super::Worker;
use crate::connection::{Connection, Flags, Io, State};
use crate::framing::Framing;
use crate::net::Net;

/// Connections handed on in one slice, of those that have waited.
const HAND_ONS_PER_SLICE: usize = 64;

impl<N: Net> Worker<N> {
    /// Hands the connection to the control plane with what was read from it. When there is no room
    /// on the way, it stays, and [`Worker::hand_on`] tries again. Returns whether it has gone.
    pub(super) fn give_to_control(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Some(connection) = self.connections.remove(index) else { return true };
        self.holdings.release(index, connection.held());
        let Connection { socket, generation, mut flags, due, .. } = connection;
        let socket = match self.net.to_control(socket, bytes) {
            Ok(()) => {
                self.give_up_place(flags);
                if flags.has(Flags::SERVED) {
                    self.poller_left = Some(self.now.tick);
                }
                self.publish_load();
                self.count(Counter::HandedToControl);
                return true;
            }
            Err(socket) => socket,
        };
        let is_first_try = !flags.has(Flags::AWAITS_CONTROL);
        flags.set(Flags::AWAITS_CONTROL, true);
        let timeout = self.now.tick.saturating_add(Self::ticks(self.settings.head_timeout));
        let io = Io { inbound: bytes.to_vec(), ..Io::default() };
        let again = Connection {
            socket,
            generation,
            due: if is_first_try { timeout } else { due },
            first: None,
            io: Some(Box::new(io)),
            state: State::Head,
            framing: Framing::WebSocket,
            flags,
        };
        let index = self.connections.insert(again);
        self.awaiting_control.push_back(Self::token(index, generation));
        self.count_held(index);
        false
    }

    /// Hands on connections that have waited for room on the way to the control plane.
    pub(super) fn hand_on(&mut self) {
        for _ in 0..self.awaiting_control.len().min(HAND_ONS_PER_SLICE) {
            let Some(token) = self.awaiting_control.pop_front() else { return };
            let Some(index) = self.index_of(token) else { continue };
            let Some(connection) = self.connections.get_mut(index) else { continue };
            let may_go = connection.state == State::Head && connection.has(Flags::AWAITS_CONTROL);
            let Some(io) = connection.io.as_mut().filter(|_| may_go) else { continue };
            let bytes = std::mem::take(&mut io.inbound);
            if !self.give_to_control(index, &bytes) {
                return;
            }
        }
    }
}
