//! A fake socket: two byte queues between a client and whoever serves it.
//!
//! The server's end behaves like a non-blocking TCP socket under edge-triggered epoll: an *edge* is
//! raised when bytes arrive, when the peer goes, when room is made after a write that was not taken
//! whole, and when watching begins while something is ready. What is ready is looked up when the
//! edge is delivered, as the kernel does, so that an event about bytes also says "writable" if the
//! socket is.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use throng_edge::connection::Token;
use throng_edge::net::Transfer;

use crate::stamp::{Moment, Stamp};

/// What fits into a widened pipe.
const WIDE_BYTES: usize = 4096;

/// A pipe shared by its two ends.
pub type SharedPipe = Rc<RefCell<Pipe>>;

/// The queues and what became of the ends.
#[derive(Debug)]
pub struct Pipe {
    /// The client's number.
    pub client: usize,
    stamp: Arc<Stamp>,
    inbound: VecDeque<u8>,
    outbound: VecDeque<u8>,
    /// Bytes that the server's end takes before the client reads.
    capacity: usize,
    /// The server hears of room when there is so much.
    low_water: usize,
    lacks_room: bool,
    is_peer_ended: bool,
    is_peer_gone: bool,
    is_reset: bool,
    is_finished: bool,
    is_closed: bool,
    watch: Option<Watch>,
    /// When and how the server finished or closed its end.
    ended: Option<End>,
    /// When the server last read something.
    heard_ms: u64,
    /// Bytes that the server has read.
    read_bytes: usize,
    /// When the server last wrote something.
    written_ms: u64,
    /// The server asked the kernel to look after a silent peer.
    pub is_kept_alive: bool,
    /// The last write did not fit.
    is_full: bool,
    /// When something first did not fit.
    full_since_ms: Option<u64>,
    /// When something was last written or taken.
    taken_ms: u64,
    /// The way to the control plane was full when it was to be handed over.
    pub was_turned_away: bool,
}

#[derive(Debug)]
struct Watch {
    token: Token,
    is_writable_too: bool,
    has_edge: bool,
}

/// The end of the server's side.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The moment of the end.
    pub at: Moment,
    /// For how long the server had read nothing.
    pub silent_ms: u64,
    /// Bytes that the server had read.
    pub read_bytes: usize,
    /// How long ago something first did not fit, if ever.
    pub full_ms: Option<u64>,
    /// Whether something did not fit to the end.
    pub is_full: bool,
    /// For how long nothing has been written or taken.
    pub stuck_ms: u64,
}

/// What is ready on a socket.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// What the worker watches the socket as.
    pub token: Token,
    /// Something can be read, or the peer has gone.
    pub is_readable: bool,
    /// The peer has ended its side, or is gone.
    pub is_ended: bool,
    /// Something can be written.
    pub is_writable: bool,
}

impl Pipe {
    /// An open pipe.
    pub fn new(client: usize, stamp: &Arc<Stamp>, capacity: usize, low_water: usize) -> Pipe {
        Pipe {
            client,
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
            heard_ms: stamp.now().now_ms,
            read_bytes: 0,
            written_ms: stamp.now().now_ms,
            is_kept_alive: false,
            is_full: false,
            full_since_ms: None,
            taken_ms: stamp.now().now_ms,
            was_turned_away: false,
        }
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
    pub fn now_ms(&self) -> u64 {
        self.stamp.now().now_ms
    }

    /// Bytes that the server has read.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Whether the server has not read all that was sent.
    pub fn has_unread(&self) -> bool {
        !self.inbound.is_empty()
    }

    // The client's end.

    /// Bytes from the client.
    pub fn client_sends(&mut self, bytes: impl IntoIterator<Item = u8>) {
        if !self.is_closed && !self.is_reset {
            self.inbound.extend(bytes);
            self.raise_edge();
        }
    }

    /// Bytes for the client, at most so many.
    pub fn client_reads(&mut self, bytes_max: usize) -> Vec<u8> {
        let count = bytes_max.min(self.outbound.len());
        let bytes = self.outbound.drain(..count).collect();
        if count > 0 {
            self.taken_ms = self.stamp.now().now_ms;
        }
        if self.lacks_room && self.has_room() {
            self.lacks_room = false;
            self.raise_edge();
        }
        bytes
    }

    /// From now on more fits: a world that comes to rest would otherwise take for ever.
    pub fn widen(&mut self) {
        self.capacity = self.capacity.max(WIDE_BYTES);
        self.client_reads(0);
    }

    /// The client sends no more.
    pub fn client_ends(&mut self) {
        self.is_peer_ended = true;
        self.raise_edge();
    }

    /// The client has closed its socket: whatever is written to it from now on is answered with a
    /// reset. What the socket took stays here, so that it can be held against what is counted.
    pub fn client_vanishes(&mut self) {
        self.is_peer_gone = true;
        self.client_ends();
    }

    /// The client resets the connection. What it sent before may or may not have been read.
    pub fn client_resets(&mut self, keeps_inbound: bool) {
        self.is_reset = true;
        if !keeps_inbound {
            self.inbound.clear();
        }
        self.raise_edge();
    }

    /// Whether bytes wait for the client.
    pub fn has_news(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// When the server ended, once the client has read everything before.
    pub fn end_seen(&self) -> Option<End> {
        self.ended.filter(|_| self.outbound.is_empty())
    }

    /// Whether the server has dropped its end.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the server has ended its side or dropped its end.
    pub fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// When the server last wrote something.
    pub fn written_ms(&self) -> u64 {
        self.written_ms
    }

    /// Whether the server has ever had more than fitted.
    pub fn was_full(&self) -> bool {
        self.full_since_ms.is_some()
    }

    /// Bytes that wait for the client while the server has more, if it has.
    pub fn stuck_bytes(&self) -> Option<usize> {
        self.is_full.then_some(self.outbound.len())
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
            silent_ms: at.now_ms - self.heard_ms,
            read_bytes: self.read_bytes,
            full_ms: self.full_since_ms.map(|since_ms| at.now_ms - since_ms),
            is_full: self.is_full,
            stuck_ms: at.now_ms - self.taken_ms,
        });
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Transfer {
        self.touch();
        if !self.inbound.is_empty() {
            let count = buffer.len().min(self.inbound.len());
            for (to, from) in buffer.iter_mut().zip(self.inbound.drain(..count)) {
                *to = from;
            }
            self.heard_ms = self.stamp.now().now_ms;
            self.read_bytes += count;
            return Transfer::Bytes(count);
        }
        if self.is_reset {
            return Transfer::Gone;
        }
        if self.is_peer_ended { Transfer::End } else { Transfer::Blocked }
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> Transfer {
        self.touch();
        assert!(!self.is_finished, "a write after the end");
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        assert!(total > 0, "an empty write");
        if self.is_reset {
            return Transfer::Gone;
        }
        if self.is_peer_gone {
            self.is_reset = true;
            self.raise_edge();
            self.outbound.extend(slices.iter().flat_map(|slice| slice.iter().copied()));
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
        self.taken_ms = self.stamp.now().now_ms;
        self.written_ms = self.stamp.now().now_ms;
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied());
        self.outbound.extend(bytes.take(room));
        Transfer::Bytes(room.min(total))
    }

    /// What the control plane writes; it waits for room in its own way.
    pub(crate) fn write_anyway(&mut self, bytes: &[u8]) {
        self.outbound.extend(bytes);
    }

    pub(crate) fn watch(&mut self, token: Token, is_writable_too: bool) {
        let known = self.watch.as_ref().map(|watch| watch.is_writable_too);
        // Adding what is there already changes nothing.
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

    pub(crate) fn finish(&mut self) {
        assert!(!self.is_finished, "finished twice");
        self.is_finished = true;
        self.end();
    }

    pub(crate) fn has_edge(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.has_edge) && !self.is_closed
    }

    /// Delivers the edge.
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

/// The server's end, closed when it is dropped.
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
