//! TLS below the workers: a [`Net`] on top of another one.
//!
//! A worker reads and writes content, whatever the connection is. For a plain one each call is
//! passed on. For one of TLS, records are opened in the worker's input buffer, and what is written
//! is sealed into a scratch on its way.
//!
//! | module | what it is |
//! |---|---|
//! | `connection` | a TLS connection without its socket, as it travels |
//! | `travel` | state that leaves with its socket, or comes with it |
//! | `read` | handshakes, and records from the peer |
//! | `batch` | content for many sockets, sealed together |
//! | `write` | content for one socket; the end of a connection |
//! | `plan` | the lists of a batch |
//! | `slots` | the state of each connection, by the number of its socket |
//! | `whole` | the receiving halves that have no compact form |
//! | `half` | what is half done |
//!
//! # What a connection costs
//!
//! A parked one has 64 + 80 bytes, on pages that no core dump contains, and 4 bytes that find
//! them; 112 more with a suite whose secrets are long (TLS 1.3 with AES-256). A plain connection
//! has the 4 bytes if there are TLS connections, too. The first part is the one cache line that a
//! delivery touches. Buffers exist only while something is half done.
//!
//! # Limits
//!
//! | limit | why | what happens |
//! |---|---|---|
//! | [`HANDSHAKES_PER_SLICE`] | one takes 0.1 ms (ECDSA) or 0.8 ms (RSA) | the next waits |
//! | `Limits::max_handshakes` | each takes 8 KB | others wait, and so does the accept queue |
//! | [`STALLED_TICKS`] | others wait for it | the handshake is given up |
//! | [`SCRATCH_BYTES_MAX`] | what is sealed should be in a cache | a batch goes in parts |
//!
//! The time of a handshake counts as part of the first request head's.
//!
//! # Invariants
//!
//! * A record's number is used up once one byte of it has left: what a socket does not take of such
//!   a record is kept, and goes before anything else. At most one record is kept for a connection,
//!   beside key updates and alerts.
//! * Before the first record of a peer is complete, it costs its bytes only.
//! * State leaves its slot before it leaves the worker. If the other thread does not take it, the
//!   same state comes back.

mod batch;
mod connection;
mod half;
mod plan;
mod read;
mod slots;
mod travel;
mod whole;
mod write;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_core::WorkerId;
use throng_tls::{Acceptor, CertifiedUser};

use crate::connection::Token;
use crate::counters::{Counter, Counters};
use crate::net::{HandoffHeader, Leaving, Net, Read, Transfer, WriteRequest};
pub(crate) use connection::Carried;
pub use connection::TlsConnection;
use half::{Begun, Late, Queued};
use plan::Batch;
use slots::Slots;

/// The number of handshakes that begin in a slice: about 1 ms of work with ECDSA keys.
const HANDSHAKES_PER_SLICE: u32 = 8;

/// While as many handshakes are under way as may be, those that take longer than this, in ticks,
/// are given up, unless what they wait for has come and was not read yet. A peer far away needs a
/// third of it.
const STALLED_TICKS: u32 = crate::worker::TICKS_PER_S;

/// The length at which the records in the scratch are written.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// A socket with a number that no other open socket of its [`Net`] has.
pub trait Numbered {
    /// A small number, which may be used again once the socket is closed.
    fn number(&self) -> u32;
}

impl Numbered for OwnedFd {
    fn number(&self) -> u32 {
        self.as_raw_fd().unsigned_abs()
    }
}

/// A [`Net`] with TLS, on top of one without.
#[derive(Debug)]
pub struct TlsNet<N: Net> {
    net: N,
    /// Begins handshakes; `None` if the server has no TLS.
    acceptor: Option<Acceptor>,
    counters: Arc<Counters>,
    slots: Slots,
    /// Sealed bytes that are not written yet. Empty between two calls.
    scratch: Vec<u8>,
    /// True if the scratch was used since the last tick.
    is_scratch_used: bool,
    batch: Batch,
    /// The number of handshakes that may still begin in this slice.
    handshakes_left: u32,
    /// The number of handshakes under way.
    shaking: u32,
    begun: Begun,
    /// Handshakes that wait for room.
    queued: Queued,
    late: Late,
    max_handshakes: u32,
    tick: u32,
}

impl<N: Net> TlsNet<N>
where
    N::Socket: Numbered,
{
    /// TLS on top of `net`, for at most `max_handshakes` handshakes at a time. Counts in
    /// `counters`, which are the worker's.
    pub fn new(
        net: N,
        acceptor: Option<Acceptor>,
        counters: Arc<Counters>,
        max_handshakes: u32,
    ) -> TlsNet<N> {
        TlsNet {
            net,
            acceptor,
            counters,
            slots: Slots::default(),
            scratch: Vec::new(),
            is_scratch_used: false,
            batch: Batch::default(),
            handshakes_left: HANDSHAKES_PER_SLICE,
            shaking: 0,
            begun: Begun::default(),
            queued: Queued::default(),
            late: Late::default(),
            max_handshakes,
            tick: 0,
        }
    }

    /// The net below.
    pub fn inner(&mut self) -> &mut N {
        &mut self.net
    }

    /// True if another TLS connection may be accepted now: there is room for its handshake.
    pub fn takes_handshakes(&self) -> bool {
        self.shaking < self.max_handshakes && self.queued.is_empty()
    }

    /// The handshakes that have ended, whatever their result.
    pub(crate) fn handshakes_ended(&self) -> u64 {
        self.counters.handshakes_ended()
    }

    /// The number of TLS connections.
    pub fn tls_connections(&self) -> usize {
        self.slots.len()
    }

    fn set_shaking(&mut self, count: u32) {
        self.shaking = count;
        self.counters.handshakes.store(count, Ordering::Relaxed);
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Releases the scratch after a tick without use, and gives up handshakes that stall while
    /// others wait.
    fn turn_tick(&mut self, tick: u32) {
        self.tick = tick;
        if !std::mem::take(&mut self.is_scratch_used) {
            self.scratch = Vec::new();
            self.batch = Batch::default();
        }
        self.give_up_stalled();
    }
}

impl<N: Net> Net for TlsNet<N>
where
    N::Socket: Numbered,
{
    type Socket = N::Socket;

    fn read(&mut self, socket: &N::Socket, buffer: &mut [u8]) -> Read {
        match self.slots.find(socket.number()) {
            None => self.net.read(socket, buffer),
            Some(slot) => self.read_tls(slot, socket, buffer),
        }
    }

    fn write(&mut self, socket: &N::Socket, slices: &[IoSlice<'_>]) -> Transfer {
        match self.slots.find(socket.number()) {
            None => self.net.write(socket, slices),
            Some(slot) => self.write_tls(slot, socket, slices),
        }
    }

    fn write_last(&mut self, socket: &N::Socket, bytes: &[u8]) -> Transfer {
        match self.slots.find(socket.number()) {
            None => self.net.write_last(socket, bytes),
            Some(slot) => self.write_tls(slot, socket, &[IoSlice::new(bytes)]),
        }
    }

    fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, N::Socket>],
        transfers: &mut Vec<Transfer>,
    ) {
        if self.slots.is_empty() {
            self.net.write_each(requests, transfers);
        } else {
            self.write_batch(requests, transfers);
        }
    }

    fn flush(&mut self, socket: &N::Socket) -> Result<(), Transfer> {
        match self.slots.find(socket.number()) {
            None => Ok(()),
            Some(slot) => self.flush_tls(slot, socket),
        }
    }

    fn held_bytes(&self, socket: &N::Socket) -> usize {
        let slot = self.slots.find(socket.number());
        slot.and_then(|slot| self.slots.half(slot)).map_or(0, half::Half::bytes)
    }

    fn holds_output(&self, socket: &N::Socket) -> bool {
        let slot = self.slots.find(socket.number());
        let half = slot.and_then(|slot| self.slots.half(slot));
        half.is_some_and(|half| !half.outbound.is_empty())
    }

    fn watch(&mut self, socket: &N::Socket, token: Token) -> bool {
        if let Some(slot) = self.slots.find(socket.number())
            && !self.slots.is_established(slot)
        {
            self.slots.half_or_new(slot).token = Some(token);
        }
        self.net.watch(socket, token)
    }

    fn watch_writable(&mut self, socket: &N::Socket, token: Token) -> bool {
        self.net.watch_writable(socket, token)
    }

    fn unacknowledged_bytes(&self, socket: &N::Socket) -> usize {
        let slot = self.slots.find(socket.number());
        let half = slot.and_then(|slot| self.slots.half(slot));
        let held = half.map_or(0, |half| half.outbound.rest().len());
        self.net.unacknowledged_bytes(socket) + held
    }

    fn keep_alive(&mut self, socket: &N::Socket) {
        self.net.keep_alive(socket);
    }

    fn bound_unread(&mut self, socket: &N::Socket) {
        self.net.bound_unread(socket);
    }

    fn bound_unsent(&mut self, socket: &N::Socket) {
        self.net.bound_unsent(socket);
    }

    fn peer(&self, socket: &N::Socket) -> Option<SocketAddr> {
        self.net.peer(socket)
    }

    fn certified_user(&self, socket: &N::Socket) -> Option<&CertifiedUser> {
        self.slots.user(self.slots.find(socket.number())?)
    }

    fn resume(&mut self, socket: &N::Socket) {
        self.net.resume(socket);
    }

    fn reset(&mut self, socket: &N::Socket) {
        self.net.reset(socket);
    }

    fn finish(&mut self, socket: &N::Socket) {
        if let Some(slot) = self.slots.find(socket.number()) {
            self.send_goodbye(slot, socket);
            self.drop_output(slot);
        }
        self.net.finish(socket);
    }

    fn close(&mut self, socket: N::Socket) {
        if let Some(slot) = self.slots.find(socket.number()) {
            self.send_goodbye(slot, &socket);
            self.forget(&socket);
        }
        self.net.close(socket);
    }

    fn to_control(
        &mut self,
        header: HandoffHeader,
        socket: N::Socket,
        bytes: &[u8],
    ) -> Result<(), N::Socket> {
        self.travel(header, socket, bytes, |net, header, socket, bytes| {
            net.to_control(header, socket, bytes)
        })
    }

    fn to_worker(
        &mut self,
        worker: WorkerId,
        header: HandoffHeader,
        socket: N::Socket,
        bytes: &[u8],
    ) -> Result<(), N::Socket> {
        self.travel(header, socket, bytes, |net, header, socket, bytes| {
            net.to_worker(worker, header, socket, bytes)
        })
    }

    fn opened(&mut self, socket: &N::Socket) {
        self.forget(socket);
    }

    fn begin_tls(&mut self, socket: &N::Socket, awaits_proxy_header: bool) -> bool {
        self.begin(socket, awaits_proxy_header)
    }

    fn proxy_header_ended(&mut self, socket: &N::Socket, rest: &[u8]) -> bool {
        self.end_passing(socket, rest)
    }

    fn arrived(
        &mut self,
        header: HandoffHeader,
        socket: &N::Socket,
        bytes: &mut [u8],
    ) -> Option<usize> {
        self.forget(socket);
        if header.is_tls { self.arrive(header.awaits_proxy_header, socket, bytes) } else { Some(0) }
    }

    fn refuse_handshake(&mut self, socket: &N::Socket) -> bool {
        self.slots.find(socket.number()).is_some_and(|slot| self.refuse(slot, socket))
    }

    fn may_leave(&self, socket: &N::Socket) -> bool {
        self.slots.find(socket.number()).is_none_or(|slot| self.can_travel(slot))
    }

    fn leave(&mut self, socket: &N::Socket) -> Leaving {
        self.pack(socket)
    }

    fn next_ready(&mut self) -> Option<Token> {
        self.late.pop().or_else(|| self.next_queued())
    }

    fn has_ready(&self) -> bool {
        !self.late.is_empty() || self.shaking < self.max_handshakes && !self.queued.is_empty()
    }

    fn begin_slice(&mut self) {
        self.handshakes_left = HANDSHAKES_PER_SLICE;
    }

    fn tick(&mut self, tick: u32) {
        self.turn_tick(tick);
        self.net.tick(tick);
    }
}
