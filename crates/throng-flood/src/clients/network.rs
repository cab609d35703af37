//! What carries the clients' connections: sockets of the kernel, or a tunnel. What clients do with
//! them is the same.
//!
//! Connections have the positions of their clients. At most one of a position is open at a time.

use super::sockets::Sockets;
use crate::marker::now_ns;
use crate::tally::Failure;
use throng_tunnel::Tunnel;

/// See the module.
pub(super) enum Network {
    Sockets(Sockets),
    Tunnel(Box<Tunnel>),
}

impl Network {
    /// Begins to connect. Returns how many bytes of the request are on their way already; when the
    /// rest can be sent, the network says that there is room.
    pub(super) fn open(
        &mut self,
        position: usize,
        request: &[u8],
        now: u64,
    ) -> Result<usize, Failure> {
        match self {
            Network::Sockets(sockets) => sockets.open(position, request),
            Network::Tunnel(tunnel) => {
                tunnel.open(position, now);
                Ok(0)
            }
        }
    }

    /// Whether there is a connection, or one on its way.
    pub(super) fn is_open(&self, position: usize) -> bool {
        match self {
            Network::Sockets(sockets) => sockets.is_open(position),
            Network::Tunnel(tunnel) => tunnel.is_open(position),
        }
    }

    /// How many bytes were taken; 0 if it is not open, not connected yet, or full.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        match self {
            Network::Sockets(sockets) => sockets.send(position, bytes),
            Network::Tunnel(tunnel) => Ok(tunnel.send(position, bytes, now_ns())),
        }
    }

    /// To be asked for after a [`send`](Self::send) that did not take all.
    pub(super) fn watch_room(&mut self, position: usize) -> Result<(), Failure> {
        match self {
            Network::Sockets(sockets) => sockets.watch_room(position),
            // It says so in any case.
            Network::Tunnel(_) => Ok(()),
        }
    }

    /// What is known about a connection in trouble.
    pub(super) fn failure(&self, position: usize) -> Option<Failure> {
        match self {
            Network::Sockets(sockets) => sockets.failure(position),
            Network::Tunnel(_) => None,
        }
    }

    /// Closes a connection, if it is open: with a reset, or as one who has nothing more to say.
    pub(super) fn close(&mut self, position: usize, with_reset: bool) {
        match self {
            Network::Sockets(sockets) => sockets.close(position, with_reset),
            Network::Tunnel(tunnel) if with_reset => tunnel.reset(position),
            Network::Tunnel(tunnel) => tunnel.close(position, now_ns()),
        }
    }

    /// Closes all connections with a reset.
    pub(super) fn close_all(&mut self) {
        match self {
            Network::Sockets(sockets) => sockets.close_all(),
            Network::Tunnel(tunnel) => tunnel.reset_all(),
        }
    }
}
