//! What a worker needs of the world: sockets, and somebody to hand them to.
//!
//! The real one is in `sys`; the simulation has one whose sockets block, take half, and reset.

use std::io::IoSlice;
use std::net::SocketAddr;

use throng_core::{Listener, WorkerId};

use crate::connection::Token;

/// What became of a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now: an event will tell when.
    Blocked,
    /// The peer has ended its side (reads only).
    End,
    /// The connection is gone.
    Gone,
}

/// Bytes for one socket.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a, S> {
    /// The socket to write to.
    pub socket: &'a S,
    /// At least one byte.
    pub bytes: &'a [u8],
}

/// What goes with a connection that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffHeader {
    /// Where it came in.
    pub listener: Listener,
    /// Whether a place is kept for it where it goes.
    pub has_place: bool,
}

impl HandoffHeader {
    /// From one worker to another, which keeps a place for it.
    pub const TO_WORKER: HandoffHeader =
        HandoffHeader { listener: Listener::Public, has_place: true };

    /// Between the planes: no place is kept.
    pub const fn between_planes(listener: Listener) -> HandoffHeader {
        HandoffHeader { listener, has_place: false }
    }
}

/// A worker's sockets.
pub trait Net {
    /// A connected, non-blocking socket. Dropping it closes it.
    type Socket;

    /// Reads into `buffer`.
    fn read(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Transfer;

    /// Writes from `slices`, in order, as much as the socket takes.
    fn write(&mut self, socket: &Self::Socket, slices: &[IoSlice<'_>]) -> Transfer;

    /// Writes each request, in order, as much as its socket takes, and appends one transfer for
    /// each to `transfers`. The requests are for different sockets.
    fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, Self::Socket>],
        transfers: &mut Vec<Transfer>,
    ) {
        for request in requests {
            transfers.push(self.write(request.socket, &[IoSlice::new(request.bytes)]));
        }
    }

    /// From now on reports with `token` when the socket becomes readable or its peer goes. Returns
    /// whether that worked.
    fn watch(&mut self, socket: &Self::Socket, token: Token) -> bool;

    /// From now on reports also when the socket becomes writable, and does so at once if it is.
    fn watch_writable(&mut self, socket: &Self::Socket, token: Token) -> bool;

    /// Bytes that the socket has taken and its peer has not acknowledged.
    fn unacknowledged_bytes(&self, socket: &Self::Socket) -> usize;

    /// From now on finds out by itself whether the peer of a silent socket is there.
    fn keep_alive(&mut self, socket: &Self::Socket);

    /// Who is at the other end, for the log.
    fn peer(&self, _: &Self::Socket) -> Option<SocketAddr> {
        None
    }

    /// The worker is about to act on input of the socket that it read earlier. Does nothing, unless
    /// someone records for whom the worker acts.
    fn resume(&mut self, _: &Self::Socket) {}

    /// Tells the peer that nothing more comes.
    fn finish(&mut self, socket: &Self::Socket);

    /// Hands the socket, and what was read from it, to the control plane; returns it if that takes
    /// no more.
    fn to_control(&mut self, socket: Self::Socket, bytes: &[u8]) -> Result<(), Self::Socket>;

    /// Hands the socket, and what was read from it, to another worker as
    /// [`HandoffHeader::TO_WORKER`]; returns it if that takes no more.
    fn to_worker(
        &mut self,
        worker: WorkerId,
        socket: Self::Socket,
        bytes: &[u8],
    ) -> Result<(), Self::Socket>;
}
