//! A fake socket: two byte queues between a client and a worker or the control plane.
//!
//! The server's end behaves like a non-blocking TCP socket under edge-triggered epoll. An *edge* is
//! raised when bytes arrive, when the peer ends or resets, when the socket has room after a short
//! write, and when watching begins while the socket is ready. As in the kernel, an event reports
//! what is ready when it is delivered: one raised by bytes also reports that the socket is
//! writable.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use throng_edge::connection::Token;
use throng_edge::net::{Read, Transfer};

use crate::stamp::{Moment, Stamp};
use crate::tls_end::TlsEnd;

/// The capacity of a widened pipe.
const WIDE_BYTES: usize = 4096;

/// A pipe shared by its two ends.
pub type SharedPipe = Rc<RefCell<Pipe>>;

/// The queues, and the state of both ends.
#[derive(Debug)]
pub struct Pipe {
    pub(crate) client: usize,
    pub(crate) address: SocketAddr,
    stamp: Arc<Stamp>,
    /// Bytes for the server.
    inbound: VecDeque<u8>,
    /// Bytes for the client.
    outbound: VecDeque<u8>,
    /// The maximum length of `outbound`.
    capacity: usize,
    /// The socket is writable while at least this much of the capacity is free.
    low_water: usize,
    /// True if an edge is due as soon as the socket is writable.
    lacks_room: bool,
    is_peer_ended: bool,
    is_peer_gone: bool,
    is_reset: bool,
    /// True if the server sends no more.
    is_finished: bool,
    is_closed: bool,
    watch: Option<Watch>,
    /// When the server finished or closed its end, and the state of the pipe then.
    ended: Option<End>,
    /// When the server last read bytes.
    last_read_ms: u64,
    /// The number of bytes that the server has read.
    read_bytes: usize,
    /// When the server last wrote bytes.
    written_ms: u64,
    /// True if the server has turned on TCP keepalive.
    pub(crate) is_kept_alive: bool,
    is_full: bool,
    /// When a write was first short or blocked.
    full_since_ms: Option<u64>,
    /// When the server last wrote bytes, or the client last read some.
    moved_ms: u64,
    /// True if a hand-off failed, or a handshake was to be frozen, so that the server closes the
    /// connection without a response.
    pub(crate) handoff_failed: bool,
    /// The client's side of TLS, if the connection has that.
    pub(crate) tls: Option<Box<TlsEnd>>,
}

#[derive(Debug)]
struct Watch {
    token: Token,
    is_writable_too: bool,
    has_edge: bool,
}

/// The state of a pipe when the server ended its side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) at: Moment,
    /// How long ago the server had last read bytes.
    pub(crate) silent_ms: u64,
    /// The number of bytes that the server had read.
    pub(crate) read_bytes: usize,
    /// How long ago a write was first short or blocked, if ever.
    pub(crate) full_ms: Option<u64>,
    /// True if the last write was short or blocked.
    pub(crate) is_full: bool,
    /// How long ago bytes were last written or read.
    pub(crate) stuck_ms: u64,
}

/// An event of a socket: what is ready.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The token that the worker watches the socket with.
    pub token: Token,
    /// Bytes can be read, or the peer has ended or reset.
    pub(crate) is_readable: bool,
    /// The peer has ended its side or reset.
    pub is_ended: bool,
    /// Bytes can be written.
    pub(crate) is_writable: bool,
}

impl Pipe {
    /// An open pipe.
    pub fn new(client: usize, stamp: &Arc<Stamp>, capacity: usize, low_water: usize) -> Pipe {
        Pipe {
            client,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            stamp: Arc::clone(stamp),
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            capacity,
            low_water,
            lacks_room: false,
            is_peer_ended: false,
            is_peer_gone: false,
            is_reset: false,
            is_finished: false,
            is_closed: false,
            watch: None,
            ended: None,
            last_read_ms: stamp.now().now_ms,
            read_bytes: 0,
            written_ms: stamp.now().now_ms,
            is_kept_alive: false,
            is_full: false,
            full_since_ms: None,
            moved_ms: stamp.now().now_ms,
            handoff_failed: false,
            tls: None,
        }
    }

    /// The address that the server's end is connected to; `None` once the connection is reset, as
    /// in the kernel.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        (!self.is_reset).then_some(self.address)
    }

    fn raise_edge(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.has_edge = true;
        }
    }

    fn is_readable(&self) -> bool {
        !self.inbound.is_empty() || self.is_peer_ended || self.is_reset
    }

    fn has_room(&self) -> bool {
        self.is_reset || self.capacity.saturating_sub(self.outbound.len()) >= self.low_water
    }

    /// The current time in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.stamp.now().now_ms
    }

    /// The number of bytes that the server has read.
    pub(crate) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// True if the client has sent bytes that the server has not read.
    pub(crate) fn has_unread(&self) -> bool {
        !self.inbound.is_empty()
    }

    // The client's end.

    /// The client sends bytes. They are lost if the server has closed the socket.
    pub fn client_sends(&mut self, bytes: impl IntoIterator<Item = u8>) {
        if !self.is_closed && !self.is_reset {
            match &mut self.tls {
                Some(tls) => self.inbound.extend(tls.send(bytes)),
                None => self.inbound.extend(bytes),
            }
            self.raise_edge();
        }
    }

    /// The client begins with a TLS handshake.
    pub(crate) fn client_begins_tls(&mut self, (tls, hello): (TlsEnd, Vec<u8>)) {
        self.inbound.extend(hello);
        self.tls = Some(Box::new(tls));
    }

    /// The client reads at most `max_bytes` bytes.
    pub fn client_reads(&mut self, max_bytes: usize) -> Vec<u8> {
        let count = max_bytes.min(self.outbound.len());
        let bytes: Vec<u8> = self.outbound.drain(..count).collect();
        let bytes = self.tls.as_mut().map_or(bytes, |tls| tls.read(count));
        if count > 0 {
            self.moved_ms = self.stamp.now().now_ms;
        }
        if self.lacks_room && self.has_room() {
            self.lacks_room = false;
            self.raise_edge();
        }
        bytes
    }

    /// Gives the pipe a large capacity, so that a world comes to rest soon.
    pub(crate) fn widen(&mut self) {
        self.capacity = self.capacity.max(WIDE_BYTES);
        self.client_reads(0);
    }

    /// The client sends no more.
    pub(crate) fn client_ends(&mut self) {
        if let Some(tls) = &mut self.tls {
            self.inbound.extend(tls.end());
        }
        self.is_peer_ended = true;
        self.raise_edge();
    }

    /// The client closes its socket: the next write is answered with a reset. The bytes written
    /// stay here, so that they can be compared with the server's counters.
    pub(crate) fn client_vanishes(&mut self) {
        self.is_peer_gone = true;
        self.client_ends();
    }

    /// The client resets the connection. Unread bytes that it sent before stay readable with
    /// `keeps_inbound`.
    pub(crate) fn client_resets(&mut self, keeps_inbound: bool) {
        self.is_reset = true;
        if !keeps_inbound {
            self.inbound.clear();
        }
        self.raise_edge();
    }

    /// True if the client can read bytes.
    pub(crate) fn has_unread_outbound(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// The end of the server's side, once the client has read all bytes before it.
    pub(crate) fn end_seen(&self) -> Option<End> {
        self.ended.filter(|_| self.outbound.is_empty())
    }

    /// True if the server has closed its socket.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// True if the server has ended its side or closed its socket.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// When the server last wrote bytes.
    pub(crate) fn written_ms(&self) -> u64 {
        self.written_ms
    }

    /// True if a write was ever short or blocked.
    pub(crate) fn was_full(&self) -> bool {
        self.full_since_ms.is_some()
    }

    /// If the last write was short or blocked: the number of bytes that the client can read.
    pub(crate) fn stuck_bytes(&self) -> Option<usize> {
        let missing = self.tls.as_ref().map_or(0, |tls| tls.missing_bytes());
        self.is_full.then_some(self.outbound.len() + missing)
    }

    // The server's end.

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.outbound.len()
    }

    pub(crate) fn touch(&self) {
        self.stamp.touch(Some(self.client));
    }

    fn end(&mut self) {
        let at = self.stamp.now();
        self.ended.get_or_insert(End {
            at,
            silent_ms: at.now_ms - self.last_read_ms,
            read_bytes: self.read_bytes,
            full_ms: self.full_since_ms.map(|since_ms| at.now_ms - since_ms),
            is_full: self.is_full,
            stuck_ms: at.now_ms - self.moved_ms,
        });
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Read {
        self.touch();
        if !self.inbound.is_empty() {
            let most = self.tls.as_ref().map_or(usize::MAX, |tls| tls.read_bytes_max);
            let count = buffer.len().min(self.inbound.len()).min(most);
            for (to, from) in buffer.iter_mut().zip(self.inbound.drain(..count)) {
                *to = from;
            }
            self.last_read_ms = self.stamp.now().now_ms;
            self.read_bytes += count;
            if !self.inbound.is_empty() && count < buffer.len() {
                // As if the rest came just now.
                self.raise_edge();
            }
            return Read::Bytes(count);
        }
        if self.is_reset {
            return Read::Gone;
        }
        if self.is_peer_ended { Read::End } else { Read::Blocked }
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> Transfer {
        self.touch();
        assert!(!self.is_finished, "a write after finishing");
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        assert!(total > 0, "an empty write");
        if self.is_reset {
            return Transfer::Gone;
        }
        if self.is_peer_gone {
            self.is_reset = true;
            self.raise_edge();
            self.deliver(slices.iter().flat_map(|slice| slice.iter().copied()));
            return Transfer::Bytes(total);
        }
        let room = self.capacity.saturating_sub(self.outbound.len());
        self.is_full = room < total;
        if self.is_full {
            let now_ms = self.stamp.now().now_ms;
            self.lacks_room = true;
            self.full_since_ms.get_or_insert(now_ms);
        }
        if room == 0 {
            return Transfer::Blocked;
        }
        self.moved_ms = self.stamp.now().now_ms;
        self.written_ms = self.stamp.now().now_ms;
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied());
        self.deliver(bytes.take(room));
        Transfer::Bytes(room.min(total))
    }

    /// Bytes of the server are on their way. A client of TLS answers them on its own.
    fn deliver(&mut self, bytes: impl Iterator<Item = u8>) {
        let at = self.outbound.len();
        self.outbound.extend(bytes);
        let Some(tls) = &mut self.tls else { return };
        let answer = tls.take(self.outbound.range(at..).copied());
        if !answer.is_empty() && !self.is_peer_gone {
            self.inbound.extend(answer);
            self.raise_edge();
        }
    }

    /// The control plane writes by `write`, whatever the capacity: it awaits room on its own.
    pub(crate) fn set_capacity(&mut self, capacity: usize) -> usize {
        std::mem::replace(&mut self.capacity, capacity)
    }

    /// The control plane writes bytes, whatever the capacity: it awaits room on its own.
    pub(crate) fn write_anyway(&mut self, bytes: &[u8]) {
        self.outbound.extend(bytes);
    }

    pub(crate) fn watch(&mut self, token: Token, is_writable_too: bool) {
        let known = self.watch.as_ref().map(|watch| watch.is_writable_too);
        // The socket is watched already.
        if known.is_some() && !is_writable_too {
            return;
        }
        let has_edge = self.is_readable() || (is_writable_too && self.has_room());
        let had_edge = self.watch.as_ref().is_some_and(|watch| watch.has_edge);
        self.watch = Some(Watch { token, is_writable_too, has_edge: has_edge || had_edge });
    }

    pub(crate) fn unwatch(&mut self) {
        self.watch = None;
    }

    /// The server resets the connection: what the client has not read is lost.
    pub(crate) fn reset(&mut self) {
        self.is_reset = true;
        self.outbound.clear();
    }

    pub(crate) fn finish(&mut self) {
        assert!(!self.is_finished, "finished twice");
        self.is_finished = true;
        self.end();
    }

    pub(crate) fn has_edge(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.has_edge) && !self.is_closed
    }

    /// Delivers the edge as an event; `None` if nothing is ready any more.
    pub(crate) fn ready(&mut self) -> Option<Ready> {
        let (is_readable, has_room) = (self.is_readable(), self.has_room());
        let is_ended = self.is_peer_ended || self.is_reset;
        let watch = self.watch.as_mut()?;
        watch.has_edge = false;
        let is_writable = watch.is_writable_too && has_room;
        let ready = Ready { token: watch.token, is_readable, is_ended, is_writable };
        (is_readable || is_writable).then_some(ready)
    }
}

/// The server's end of a pipe. Dropping it closes the socket.
#[derive(Debug)]
pub struct FakeSocket(pub SharedPipe);

impl Drop for FakeSocket {
    fn drop(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.is_closed = true;
        pipe.watch = None;
        pipe.stamp.forget(pipe.client);
        pipe.end();
    }
}
