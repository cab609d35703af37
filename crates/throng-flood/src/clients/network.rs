//! The clients' connections: kernel sockets or a tunnel, behind one interface.
//!
//! A connection has the position of its client. Each position has at most one.

use super::sockets::Sockets;
use crate::failure::Failure;
use crate::marker::now_ns;
use throng_tunnel::Tunnel;

/// The connections of one thread.
pub(super) enum Network {
    Sockets(Sockets),
    Tunnel(Box<Tunnel>),
}

impl Network {
    /// Starts to connect. Returns how many bytes of the request are sent already. The network
    /// reports when the rest can be sent.
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

    /// Whether there is a connection, established or in progress.
    pub(super) fn is_open(&self, position: usize) -> bool {
        match self {
            Network::Sockets(sockets) => sockets.is_open(position),
            Network::Tunnel(tunnel) => tunnel.is_open(position),
        }
    }

    /// Sends bytes and returns how many were accepted: 0 if the connection is closed, in progress
    /// or full.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        match self {
            Network::Sockets(sockets) => sockets.send(position, bytes),
            Network::Tunnel(tunnel) => Ok(tunnel.send(position, bytes, now_ns())),
        }
    }

    /// Requests an event when the connection is writable. Call it after a partial
    /// [`send`](Self::send).
    pub(super) fn watch_writable(&mut self, position: usize) -> Result<(), Failure> {
        match self {
            Network::Sockets(sockets) => sockets.watch_writable(position),
            // A tunnel always reports it.
            Network::Tunnel(_) => Ok(()),
        }
    }

    /// The error of a connection, if the kernel knows one.
    pub(super) fn failure(&self, position: usize) -> Option<Failure> {
        match self {
            Network::Sockets(sockets) => sockets.failure(position),
            Network::Tunnel(_) => None,
        }
    }

    /// Closes a connection, if it is open: with a reset or in order.
    pub(super) fn close(&mut self, position: usize, with_reset: bool) {
        match self {
            Network::Sockets(sockets) => sockets.close(position, with_reset),
            Network::Tunnel(tunnel) if with_reset => tunnel.reset(position),
            Network::Tunnel(tunnel) => tunnel.close(position, now_ns()),
        }
    }

    /// Resets all connections.
    pub(super) fn close_all(&mut self) {
        match self {
            Network::Sockets(sockets) => sockets.close_all(),
            Network::Tunnel(tunnel) => tunnel.reset_all(),
        }
    }
}
