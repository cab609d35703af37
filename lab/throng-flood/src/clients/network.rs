//! The clients' connections: kernel sockets or a tunnel, plain or under TLS, behind one interface.
//!
//! A connection has the position of its client. Each position has at most one.

use std::sync::Arc;

use super::sockets::Sockets;
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::tls::{Arrived, TlsConnections, TlsFailure, TlsTarget};
use throng_tunnel::Tunnel;

/// The connections of one thread.
pub(super) struct ClientConnections {
    pub(super) carrier: Carrier,
    /// `None` for plain connections.
    tls: Option<TlsConnections>,
}

pub(super) enum Carrier {
    Sockets(Sockets),
    Tunnel(Box<Tunnel>),
}

impl ClientConnections {
    /// For at most `capacity` connections.
    pub(super) fn new(
        carrier: Carrier,
        tls: Option<&Arc<TlsTarget>>,
        capacity: usize,
    ) -> ClientConnections {
        let tls = tls.map(|target| TlsConnections::new(Arc::clone(target), capacity));
        ClientConnections { carrier, tls }
    }

    /// Starts to connect. Returns how many bytes of the request are sent already: none under TLS.
    /// The network reports when the rest can be sent.
    pub(super) fn open(
        &mut self,
        position: usize,
        request: &[u8],
        now: u64,
    ) -> Result<usize, Failure> {
        let Some(tls) = &mut self.tls else { return self.carrier.open(position, request, now) };
        tls.start(position)?;
        let carrier = &mut self.carrier;
        tls.flush(position, now, |records| carrier.open(position, records, now))?;
        Ok(0)
    }

    /// True if there is a connection, established or in progress.
    pub(super) fn is_open(&self, position: usize) -> bool {
        match &self.carrier {
            Carrier::Sockets(sockets) => sockets.is_open(position),
            Carrier::Tunnel(tunnel) => tunnel.is_open(position),
        }
    }

    /// True if the connections are under TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// True if a TLS handshake has begun and is not done.
    pub(super) fn is_shaking_hands(&self, position: usize) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_shaking_hands(position))
    }

    /// True if content can be exchanged, once the connection is established.
    pub(super) fn is_ready(&self, position: usize) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_ready(position))
    }

    /// True if the kernel has accepted everything that was sent.
    pub(super) fn is_flushed(&self, position: usize) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.has_records(position))
    }

    /// Sends bytes and returns how many were accepted: 0 if the connection is closed, in progress
    /// or full.
    pub(super) fn send(&mut self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        let carrier = &mut self.carrier;
        let Some(tls) = &mut self.tls else { return carrier.send(position, bytes) };
        let taken =
            tls.send(position, bytes, now_ns(), |records| carrier.send(position, records))?;
        self.watch_records(position)?;
        Ok(taken)
    }

    /// Sends records that were left, if there are any.
    pub(super) fn flush(&mut self, position: usize) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let carrier = &mut self.carrier;
        tls.flush(position, now_ns(), |records| carrier.send(position, records))?;
        self.watch_records(position)
    }

    fn watch_records(&mut self, position: usize) -> Result<(), Failure> {
        if self.is_flushed(position) { Ok(()) } else { self.carrier.watch_writable(position) }
    }

    /// Opens the records of a connection under TLS, and leaves what they contain in `content`.
    pub(super) fn open_records(
        &mut self,
        position: usize,
        bytes: &[u8],
        content: &mut Vec<u8>,
    ) -> Arrived {
        let tls = self.tls.as_mut();
        tls.map(|tls| tls.receive(position, bytes, now_ns(), content)).unwrap_or_default()
    }

    /// The failure that the end of the byte stream is under TLS; `None` if it is an orderly end.
    pub(super) fn stream_end(&self, position: usize) -> Option<TlsFailure> {
        self.tls.as_ref()?.stream_end(position)
    }

    /// Requests an event when the connection is writable. Call it after a partial
    /// [`send`](Self::send).
    pub(super) fn watch_writable(&mut self, position: usize) -> Result<(), Failure> {
        self.carrier.watch_writable(position)
    }

    /// The error of a connection, if the kernel knows one.
    pub(super) fn failure(&self, position: usize) -> Option<Failure> {
        match &self.carrier {
            Carrier::Sockets(sockets) => sockets.failure(position),
            Carrier::Tunnel(_) => None,
        }
    }

    /// Closes a connection, if it is open: with a reset or in order.
    pub(super) fn close(&mut self, position: usize, with_reset: bool) {
        if let Some(tls) = &mut self.tls {
            tls.close(position);
        }
        match &mut self.carrier {
            Carrier::Sockets(sockets) => sockets.close(position, with_reset),
            Carrier::Tunnel(tunnel) if with_reset => tunnel.reset(position),
            Carrier::Tunnel(tunnel) => tunnel.close(position, now_ns()),
        }
    }

    /// The client's next connection goes elsewhere, if there is another server.
    pub(super) fn fail_over(&mut self, position: usize) {
        if let Carrier::Sockets(sockets) = &mut self.carrier {
            sockets.fail_over(position);
        }
    }

    /// Resets all connections.
    pub(super) fn close_all(&mut self) {
        match &mut self.carrier {
            Carrier::Sockets(sockets) => sockets.close_all(),
            Carrier::Tunnel(tunnel) => tunnel.reset_all(),
        }
    }
}

impl Carrier {
    fn open(&mut self, position: usize, bytes: &[u8], now: u64) -> Result<usize, Failure> {
        match self {
            Carrier::Sockets(sockets) => sockets.open(position, bytes),
            Carrier::Tunnel(tunnel) => {
                tunnel.open(position, now);
                Ok(0)
            }
        }
    }

    fn send(&mut self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        match self {
            Carrier::Sockets(sockets) => sockets.send(position, bytes),
            Carrier::Tunnel(tunnel) => Ok(tunnel.send(position, bytes, now_ns())),
        }
    }

    fn watch_writable(&mut self, position: usize) -> Result<(), Failure> {
        match self {
            Carrier::Sockets(sockets) => sockets.watch_writable(position),
            // A tunnel always reports it.
            Carrier::Tunnel(_) => Ok(()),
        }
    }
}
