//! Reads, and gives what came to whoever the state says.

use throng_core::Counter;
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::{self, Route};

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Flags, State};
use crate::net::{Net, Transfer};

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 4;

/// Heads and frames of one connection before others have their turn. Each may cost a write.
const STEPS_PER_TURN: u32 = 32;

/// Turns of connections that had more to read than one took, in one slice.
const TURNS_PER_SLICE: usize = 16;

/// At most this is read where a head is expected: what follows a head that is not for here has to
/// travel to the control plane with it.
const HEAD_READ_BYTES: usize = 16 << 10;

impl<N: Net> Worker<N> {
    /// The connection has something to read, or its peer has gone. `is_ended` says that the peer's
    /// end is there already, behind what can be read: no further event will tell.
    pub fn readable(&mut self, token: u64, is_ended: bool) {
        let Some(index) = self.index_of(token) else { return };
        // One that is in the list has its turn when it comes.
        if self.connections.get(index).is_none_or(|it| it.has(Flags::UNREAD)) {
            return;
        }
        match self.slice_bytes {
            0 => self.defer(index),
            _ => self.read(index, is_ended),
        }
        self.relieve();
    }

    /// Goes on with connections that had more to read than one turn took.
    pub(super) fn read_on(&mut self) {
        for _ in 0..self.unread.len().min(TURNS_PER_SLICE) {
            if self.slice_bytes == 0 {
                return;
            }
            let Some(token) = self.unread.pop_front() else { return };
            let Some(index) = self.index_of(token) else { continue };
            if let Some(connection) = self.connections.get_mut(index) {
                connection.flags.set(Flags::UNREAD, false);
            }
            self.begin_turn();
            self.input(index, &mut []);
            // An event may have come meanwhile: it may have been the peer's end.
            let has_turn = |it: &Connection<N::Socket>| !it.has(Flags::UNREAD);
            if self.index_of(token).is_some() && self.connections.get(index).is_some_and(has_turn) {
                self.read_more(index, true);
            }
        }
    }

    pub(super) fn begin_turn(&mut self) {
        self.steps = STEPS_PER_TURN;
    }

    /// Gives the connection a turn.
    pub(super) fn read(&mut self, index: u32, is_ended: bool) {
        self.begin_turn();
        self.read_more(index, is_ended);
    }

    fn read_more(&mut self, index: u32, is_ended: bool) {
        let Some(generation) = self.connections.get(index).map(|it| it.generation) else { return };
        let token = Self::token(index, generation);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut is_more = true;
        for _ in 0..READS_PER_TURN {
            let connection = self.index_of(token).and_then(|it| self.connections.get(it));
            let may_read = |it: &&Connection<N::Socket>| {
                !it.has(Flags::AWAITS_CONTROL) && !it.has(Flags::UNREAD)
            };
            let Some(connection) = connection.filter(may_read) else {
                is_more = false;
                break;
            };
            let room = match connection.state {
                State::Head => HEAD_READ_BYTES,
                _ => buffer.len(),
            };
            match self.net.read(&connection.socket, &mut buffer[..room]) {
                Transfer::Bytes(count) => {
                    self.input(index, &mut buffer[..count]);
                    // An edge-triggered event comes again with the next byte.
                    is_more = count == room || is_ended;
                }
                Transfer::Blocked => is_more = false,
                Transfer::End => {
                    self.peer_ended(index);
                    is_more = false;
                }
                Transfer::Gone => {
                    self.forget(index, CloseReason::Peer);
                    is_more = false;
                }
            }
            if !is_more {
                break;
            }
        }
        self.buffer = buffer;
        if is_more && self.index_of(token).is_some() {
            self.defer(index);
        }
    }

    /// Puts the connection into the list of those that have more to read.
    fn defer(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.has(Flags::UNREAD) {
            connection.flags.set(Flags::UNREAD, true);
            self.unread.push_back(Self::token(index, connection.generation));
        }
    }

    /// Bytes from the client, after those that were kept.
    pub(super) fn input(&mut self, index: u32, bytes: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !bytes.is_empty() {
            connection.flags.set(Flags::HEARD, true);
        }
        let generation = connection.generation;
        let kept = connection.io.as_mut().map(|io| std::mem::take(&mut io.inbound));
        let mut kept = kept.unwrap_or_default();
        let (rest, is_new) = if kept.is_empty() {
            let consumed = self.consume(index, bytes);
            (&bytes[consumed.min(bytes.len())..], true)
        } else {
            kept.extend_from_slice(bytes);
            let consumed = self.consume(index, &mut kept);
            (&kept[consumed.min(kept.len())..], consumed > 0 || bytes.is_empty())
        };
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.generation != generation {
            return;
        }
        if !rest.is_empty() {
            connection.io_mut().inbound = rest.to_vec();
            let is_awaited = connection.state == State::Head && !connection.has(Flags::BLOCKED);
            if is_new && is_awaited && connection.has(Flags::SERVED) {
                // It is idle no longer: from here on it may be slow.
                let head_timeout = Self::ticks(self.settings.head_timeout);
                connection.due = self.now.tick.saturating_add(head_timeout);
            }
        }
        let is_cut = !rest.is_empty() && self.steps == 0;
        self.shed(index);
        if is_cut {
            self.defer(index);
        }
    }

    /// Handles as much of `bytes` as is complete. Returns how much that was; all of it if the
    /// connection is gone.
    fn consume(&mut self, index: u32, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.steps > 0 {
            self.steps -= 1;
            let Some(connection) = self.connections.get(index) else { return bytes.len() };
            let step = match connection.state {
                State::Closing => return bytes.len(),
                // An answer is still being written: the next request waits.
                State::Head if connection.has(Flags::BLOCKED) => self.keep(index, &bytes[at..]),
                State::Head => self.head(index, &mut bytes[at..]),
                State::Polling => self.keep(index, &bytes[at..]),
                State::Parked if connection.has(Flags::WEBSOCKET) => {
                    self.frames(index, &mut bytes[at..])
                }
                // Nothing can be asked on a stream.
                State::Parked => return bytes.len(),
            };
            match step {
                0 => break,
                consumed => at += consumed,
            }
        }
        at
    }

    /// Leaves a pipelined request for later, within the limit of one head.
    fn keep(&mut self, index: u32, bytes: &[u8]) -> usize {
        if bytes.len() <= self.settings.max_head_bytes {
            return 0;
        }
        self.forget(index, CloseReason::Pipelining);
        bytes.len()
    }

    fn head(&mut self, index: u32, bytes: &mut [u8]) -> usize {
        let limits = Limits { head_bytes_max: self.settings.max_head_bytes };
        let (route, length) = match head::parse(bytes, limits) {
            Ok(Parsed::Incomplete) => return 0,
            Ok(Parsed::Complete { head, length }) => {
                let route = subscribe::route(&head);
                (route.map_err(|error| (error, self.reader_of(&head))), length)
            }
            Err(error) => {
                self.count(Counter::RefusedHead);
                self.log_error(index, bytes, error.code);
                self.refuse(index, &error, None);
                return bytes.len();
            }
        };
        match route {
            Ok(Route::Subscribe(request)) => match self.subscribe(index, &request, bytes) {
                true => length,
                false => bytes.len(),
            },
            Ok(Route::Other) => {
                self.give_to_control(index, bytes);
                bytes.len()
            }
            Err((error, origin)) => {
                self.count(Counter::RefusedSubscribe);
                self.log_error(index, bytes, error.code);
                self.refuse(index, &error, origin.as_deref());
                bytes.len()
            }
        }
    }

    /// The origin of the page that may read an error.
    fn reader_of(&self, head: &Head<'_>) -> Option<String> {
        let origin = str::from_utf8(head.header("origin")?).ok()?;
        self.settings.origin_policy().allows_page(origin, head.host()).then(|| origin.to_owned())
    }

    /// The client has ended its side. Whoever only listens is taken to be gone.
    fn peer_ended(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let is_answered = matches!(connection.state, State::Head | State::Closing);
        if is_answered && connection.has(Flags::BLOCKED) {
            // It has said all it has to say, and still reads the answer.
            connection.flags.set(Flags::PEER_ENDED, true);
            return;
        }
        if connection.state == State::Head && connection.has(Flags::SERVED) {
            // Many clients never use a connection twice, whatever they have said.
            self.poller_left = Some(self.now.tick);
        }
        let reason = match connection.state {
            State::Head if connection.has(Flags::SERVED) => CloseReason::Idle,
            State::Closing => CloseReason::Complete,
            _ => CloseReason::Peer,
        };
        self.forget(index, reason);
    }
}
