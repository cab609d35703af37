//! The clients' connections: kernel sockets or a tunnel, behind one interface.
//!
//! A connection has the position of its client. Each position has at most one.

use super::sockets::Sockets;
use crate::failure::Failure;
use crate::marker::now_ns;
use throng_tunnel::Tunnel;

/// The connections of one thread.
pub(super) enum ClientConnections {
    Sockets(Sockets),
    Tunnel(Box<Tunnel>),
}

impl ClientConnections {
    /// Starts to connect. Returns how many bytes of the request are sent already. The network
    /// reports when the rest can be sent.
    pub(super) fn open(
        &mut self,
        position: usize,
        request: &[u8],
        now: u64,
    ) -> Result<usize, Failure> {
        match self {
            ClientConnections::Sockets(sockets) => sockets.open(position, request),
            ClientConnections::Tunnel(tunnel) => {
                tunnel.open(position, now);
                Ok(0)
            }
        }
    }

    /// Whether there is a connection, established or in progress.
    pub(super) fn is_open(&self, position: usize) -> bool {
        match self {
            ClientConnections::Sockets(sockets) => sockets.is_open(position),
            ClientConnections::Tunnel(tunnel) => tunnel.is_open(position),
        }
    }

    /// Sends bytes and returns how many were accepted: 0 if the connection is closed, in progress
    /// or full.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        match self {
            ClientConnections::Sockets(sockets) => sockets.send(position, bytes),
            ClientConnections::Tunnel(tunnel) => Ok(tunnel.send(position, bytes, now_ns())),
        }
    }

    /// Requests an event when the connection is writable. Call it after a partial
    /// [`send`](Self::send).
    pub(super) fn watch_writable(&mut self, position: usize) -> Result<(), Failure> {
        match self {
            ClientConnections::Sockets(sockets) => sockets.watch_writable(position),
            // A tunnel always reports it.
            ClientConnections::Tunnel(_) => Ok(()),
        }
    }

    /// The error of a connection, if the kernel knows one.
    pub(super) fn failure(&self, position: usize) -> Option<Failure> {
        match self {
            ClientConnections::Sockets(sockets) => sockets.failure(position),
            ClientConnections::Tunnel(_) => None,
        }
    }

    /// Closes a connection, if it is open: with a reset or in order.
    pub(super) fn close(&mut self, position: usize, with_reset: bool) {
        match self {
            ClientConnections::Sockets(sockets) => sockets.close(position, with_reset),
            ClientConnections::Tunnel(tunnel) if with_reset => tunnel.reset(position),
            ClientConnections::Tunnel(tunnel) => tunnel.close(position, now_ns()),
        }
    }

    /// Resets all connections.
    pub(super) fn close_all(&mut self) {
        match self {
            ClientConnections::Sockets(sockets) => sockets.close_all(),
            ClientConnections::Tunnel(tunnel) => tunnel.reset_all(),
        }
    }
}
