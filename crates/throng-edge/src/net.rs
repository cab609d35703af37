//! A worker's interface to the kernel and to other threads: sockets, and handoffs.
//!
//! `sys` has the real implementation. The simulation's has sockets that block, take part of a
//! write, and reset.

#[cfg(test)]
pub(crate) mod fixture;

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use throng_core::{Listener, WorkerId};
use throng_tls::{CertificateFlaw, CertifiedUser};

use crate::connection::Token;

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// The number of bytes that came, at least one. If it is less than was asked for, the socket
    /// has no more, and an event follows when it does.
    Bytes(usize),
    /// As [`Read::Bytes`], and there may be more, for which no event comes.
    More(usize),
    /// The socket has nothing now. An event follows when it does.
    Blocked,
    /// Nothing was read: its turn comes later, and no event for it.
    Later,
    /// The peer has finished sending.
    End,
    Gone,
    /// A connection that began as TLS is none. It is plain from now on, and its input is lost.
    NotTls,
    /// TLS has failed, because of a certificate or otherwise, and the peer was told why. Nothing
    /// more can be read or written.
    Failed(Option<CertificateFlaw>),
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The number of bytes that were taken, at least one.
    Bytes(usize),
    /// As [`Transfer::Bytes`], but some of them wait below for the socket, which takes no more now:
    /// call [`Net::flush`] once it does.
    Held(usize),
    /// The socket takes nothing now. An event follows when it does.
    Blocked,
    Gone,
}

/// The TLS of a connection that is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaving {
    /// It has none.
    Plain,
    /// Its state, which the net has forgotten.
    Tls(Vec<u8>),
    /// It cannot be frozen, as [`Net::may_leave`] says: the connection has to be closed.
    Unfinished,
}

/// Bytes to write to one socket.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a, S> {
    pub socket: &'a S,
    /// At least one byte.
    pub bytes: &'a [u8],
}

/// Facts that travel with a connection that is handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffHeader {
    pub listener: Listener,
    /// True if its receiver keeps a place for it.
    pub has_place: bool,
    /// True if it has to begin with a PROXY header, which is not read yet.
    pub awaits_proxy_header: bool,
    /// True if it belongs to the server's own canary.
    pub is_canary: bool,
    /// True if no worker has seen it: its receiver is the first.
    pub is_new: bool,
    /// True if its bytes begin with the state of a TLS connection.
    pub is_tls: bool,
    /// True if it is no connection, but a worker's channel to another process.
    pub is_channel: bool,
    /// The address of its client, which counts: the receiver ends that count once.
    pub address: Option<IpAddr>,
}

impl HandoffHeader {
    /// From one worker to another, which keeps a place for it.
    pub(crate) const TO_WORKER: HandoffHeader =
        HandoffHeader { has_place: true, ..HandoffHeader::between_planes(Listener::Public) };

    /// From the thread that accepts on behalf of the workers.
    pub(crate) const NEW: HandoffHeader = HandoffHeader { is_new: true, ..Self::TO_WORKER };

    /// A connection of the canary. Nothing else makes one: no request can ask for it.
    pub(crate) const CANARY: HandoffHeader =
        HandoffHeader { is_canary: true, ..HandoffHeader::between_planes(Listener::Public) };

    /// A worker's channel to the process that takes over from this one: the worker leaves.
    pub(crate) const CHANNEL: HandoffHeader =
        HandoffHeader { is_channel: true, ..HandoffHeader::between_planes(Listener::Public) };

    /// The same channel, before the worker leaves: it sends copies of its sockets ahead.
    pub(crate) const CHANNEL_AHEAD: HandoffHeader =
        HandoffHeader { is_new: true, ..HandoffHeader::CHANNEL };

    /// Between the planes: no place is kept.
    pub const fn between_planes(listener: Listener) -> HandoffHeader {
        HandoffHeader {
            listener,
            has_place: false,
            awaits_proxy_header: false,
            is_canary: false,
            is_new: false,
            is_tls: false,
            is_channel: false,
            address: None,
        }
    }
}

/// A worker's sockets.
pub trait Net {
    /// A connected, non-blocking socket. Dropping it closes it.
    type Socket;

    /// Reads into `buffer`, which has room for a TLS record
    /// ([`RECORD_BYTES_MAX`](throng_tls::RECORD_BYTES_MAX)).
    fn read(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> Read;

    /// Writes `slices`, in order, as far as the socket takes them.
    fn write(&mut self, socket: &Self::Socket, slices: &[IoSlice<'_>]) -> Transfer;

    /// Writes `bytes`, after which the socket is closed at once if it has taken them all. So they
    /// may wait for that: one packet then has them and the end of the stream.
    fn write_last(&mut self, socket: &Self::Socket, bytes: &[u8]) -> Transfer {
        self.write(socket, &[IoSlice::new(bytes)])
    }

    /// Writes each request, in order, as far as its socket takes it, and appends one transfer for
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

    /// Writes what waits below, as far as the socket takes it. If something is left, returns why:
    /// [`Transfer::Blocked`] or [`Transfer::Gone`].
    fn flush(&mut self, _: &Self::Socket) -> Result<(), Transfer> {
        Ok(())
    }

    /// Memory that the connection takes below, in bytes: half a record, a handshake.
    fn held_bytes(&self, _: &Self::Socket) -> usize {
        0
    }

    /// True if something waits below for the socket: call [`Net::flush`] once it takes more.
    fn holds_output(&self, _: &Self::Socket) -> bool {
        false
    }

    /// Reports events of the socket with `token` from now on: that it is readable, or that its peer
    /// has gone. Events are edge-triggered. Returns false if the kernel refuses.
    fn watch(&mut self, socket: &Self::Socket, token: Token) -> bool;

    /// Also reports when the socket becomes writable, and at once if it is. Returns false if the
    /// kernel refuses.
    fn watch_writable(&mut self, socket: &Self::Socket, token: Token) -> bool;

    /// The number of bytes that the socket has taken and its peer has not acknowledged.
    fn unacknowledged_bytes(&self, socket: &Self::Socket) -> usize;

    /// Turns on TCP keepalive, which finds a dead peer of a socket that nothing is written to.
    fn keep_alive(&mut self, socket: &Self::Socket);

    /// Bounds what the kernel holds of a connection's output, unsent or unacknowledged.
    fn bound_unread(&mut self, socket: &Self::Socket);

    /// Bounds what the kernel holds of a connection's output and has not sent. What is on its way
    /// may be as much as the network takes.
    fn bound_unsent(&mut self, _: &Self::Socket) {}

    /// The peer's address; `None` if it is not known, because the peer has gone, for example.
    fn peer(&self, _: &Self::Socket) -> Option<SocketAddr> {
        None
    }

    /// The user that the client's certificate names; `None` if it has shown none.
    fn certified_user(&self, _: &Self::Socket) -> Option<&CertifiedUser> {
        None
    }

    /// The worker is about to act on input that it read from the socket earlier. Nothing to do for
    /// a kernel; the simulation records on whose behalf the worker acts.
    fn resume(&mut self, socket: &Self::Socket);

    /// The socket is about to be dropped: its connection is reset then, and what the peer has not
    /// read is given up at once. Otherwise the kernel goes on trying for minutes.
    fn reset(&mut self, socket: &Self::Socket);

    /// Shuts down the sending side: the peer reads the end of the stream after what was written.
    fn finish(&mut self, socket: &Self::Socket);

    fn close(&mut self, socket: Self::Socket) {
        drop(socket);
    }

    /// A socket was accepted: it is a plain connection, whatever had its number before.
    fn opened(&mut self, _: &Self::Socket) {}

    /// The connection begins with a TLS handshake; behind a PROXY header, if it awaits one. Returns
    /// false if it can only be closed.
    fn begin_tls(&mut self, _: &Self::Socket, _awaits_proxy_header: bool) -> bool {
        false
    }

    /// The PROXY header that the connection begins with was read, and `rest` behind it. Returns
    /// whether a TLS handshake follows, which takes the rest: then read again.
    fn proxy_header_ended(&mut self, _: &Self::Socket, _rest: &[u8]) -> bool {
        false
    }

    /// A socket came by a handoff, or out of frozen state. Takes its TLS state from the front of
    /// `bytes`, if the header says that it has one. Returns the length of that state; `None` if the
    /// connection can only be closed.
    fn arrived(
        &mut self,
        header: HandoffHeader,
        _: &Self::Socket,
        _bytes: &mut [u8],
    ) -> Option<usize> {
        (!header.is_tls).then_some(0)
    }

    /// Refuses a connection that has not done its TLS handshake, before that costs anything: it is
    /// told by an alert, and nothing can be written after it. Returns false if an answer can be
    /// written.
    fn refuse_handshake(&mut self, _: &Self::Socket) -> bool {
        false
    }

    /// True if a connection can be frozen or handed off, with the TLS that it has: not in the
    /// middle of a handshake, and not once TLS has failed.
    fn may_leave(&self, _: &Self::Socket) -> bool {
        true
    }

    /// Takes the TLS state of a connection that is frozen.
    fn leave(&mut self, _: &Self::Socket) -> Leaving {
        Leaving::Plain
    }

    /// A connection that waited for its turn, and may be read now: one after the other, until
    /// `None`.
    fn next_ready(&mut self) -> Option<Token> {
        None
    }

    /// True if [`Net::next_ready`] has connections, now or in the next slice.
    fn has_ready(&self) -> bool {
        false
    }

    /// A slice of the worker's work begins.
    fn begin_slice(&mut self) {}

    /// A tick of the worker's clock has passed.
    fn tick(&mut self, _tick: u32) {}

    /// Hands the socket off to the control plane, with the `bytes` that were read from it. Returns
    /// the socket if the control plane takes no more for now.
    fn to_control(
        &mut self,
        header: HandoffHeader,
        socket: Self::Socket,
        bytes: &[u8],
    ) -> Result<(), Self::Socket>;

    /// Hands the socket off to another worker, with the `bytes` that were read from it. Returns the
    /// socket if that worker takes no more for now.
    fn to_worker(
        &mut self,
        worker: WorkerId,
        header: HandoffHeader,
        socket: Self::Socket,
        bytes: &[u8],
    ) -> Result<(), Self::Socket>;
}
