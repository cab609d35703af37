//! Reads, and gives what came to whoever the state says.

use throng_core::Counter;
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::origin_allowed;
use throng_wire::refusal::ResponseOptions;
use throng_wire::subscribe::{self, Route};

use super::{HELD_BYTES_MAX, Worker};
use crate::connection::{Flags, State};
use crate::net::{Net, Transfer};

/// Reads of one connection before others have their turn.
const READS_PER_ROUND: usize = 4;

impl<N: Net> Worker<N> {
    /// The connection has something to read, or its peer has gone. `is_ended` says that the peer's
    /// end is there already, behind what can be read: no further event will tell.
    pub fn readable(&mut self, token: u64, is_ended: bool) {
        if let Some(index) = self.index_of(token) {
            self.read(index, is_ended);
        }
    }

    /// Goes on with connections that had more to read than one round took.
    pub(super) fn read_on(&mut self) {
        for token in std::mem::take(&mut self.unread) {
            self.readable(token, true);
        }
    }

    pub(super) fn read(&mut self, index: u32, is_ended: bool) {
        let Some(generation) = self.connections.get(index).map(|it| it.generation) else { return };
        let token = Self::token(index, generation);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut is_drained = false;
        for _ in 0..READS_PER_ROUND {
            if self.index_of(token).is_none() {
                is_drained = true;
                break;
            }
            let Some(connection) = self.connections.get(index) else { break };
            match self.net.read(&connection.socket, &mut buffer) {
                Transfer::Bytes(count) => {
                    self.input(index, &mut buffer[..count]);
                    // An edge-triggered event comes again with the next byte.
                    is_drained = count < buffer.len() && !is_ended;
                }
                Transfer::Blocked => is_drained = true,
                Transfer::End => {
                    self.peer_ended(index);
                    is_drained = true;
                }
                Transfer::Gone => {
                    self.forget(index, Counter::ClosedByPeer);
                    is_drained = true;
                }
            }
            if is_drained {
                break;
            }
        }
        self.buffer = buffer;
        if !is_drained {
            self.unread.push(token);
        }
    }

    /// Bytes from the client, after those that were kept.
    pub(super) fn input(&mut self, index: u32, bytes: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.set(Flags::HEARD, true);
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
        self.held_bytes -= connection.shed();
        self.count_held(index);
    }

    /// Counts what the connection holds of its own, and closes it if all together hold too much.
    fn count_held(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let is_websocket = connection.has(Flags::WEBSOCKET);
        let Some(io) = &mut connection.io else { return };
        let (before, now) = (io.counted_bytes, io.held_bytes());
        io.counted_bytes = now;
        self.held_bytes = self.held_bytes - before + now;
        let share = HELD_BYTES_MAX / self.figures.workers().len();
        if now <= before || self.held_bytes <= share {
            return;
        }
        if is_websocket {
            let sentence = "too much is half sent or not read yet; try again later";
            self.close_websocket(index, 1013, sentence, Counter::ClosedOverload);
        } else {
            self.forget(index, Counter::ClosedOverload);
        }
    }

    /// Handles as much of `bytes` as is complete. Returns how much that was; all of it if the
    /// connection is gone.
    fn consume(&mut self, index: u32, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
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
        if bytes.len() <= self.settings.head_bytes_max {
            return 0;
        }
        self.forget(index, Counter::ClosedForViolation);
        bytes.len()
    }

    fn head(&mut self, index: u32, bytes: &mut [u8]) -> usize {
        let limits = Limits { head_bytes_max: self.settings.head_bytes_max };
        let (route, length) = match head::parse(bytes, limits) {
            Ok(Parsed::Incomplete) => return 0,
            Ok(Parsed::Complete { head, length }) => {
                let route = subscribe::route(&head);
                (route.map_err(|refusal| (refusal, self.reader_of(&head))), length)
            }
            Err(refusal) => {
                self.count(Counter::RefusedHead);
                self.refuse(index, &refusal, &ResponseOptions::default());
                return bytes.len();
            }
        };
        match route {
            Ok(Route::Subscribe(request)) => {
                self.subscribe(index, &request);
                length
            }
            Ok(Route::Other) => {
                self.give_to_control(index, bytes);
                bytes.len()
            }
            Err((refusal, origin)) => {
                self.count(Counter::RefusedSubscribe);
                let allow_origin = origin.as_deref();
                let options = ResponseOptions { allow_origin, ..ResponseOptions::default() };
                self.refuse(index, &refusal, &options);
                bytes.len()
            }
        }
    }

    /// The origin of the page that may read a refusal.
    fn reader_of(&self, head: &Head<'_>) -> Option<String> {
        let origin = str::from_utf8(head.header("origin")?).ok()?;
        let is_allowed = origin_allowed(Some(origin), head.host(), &self.settings.allowed_origins);
        is_allowed.then(|| origin.to_owned())
    }

    fn give_to_control(&mut self, index: u32, bytes: &[u8]) {
        let Some(connection) = self.connections.remove(index) else { return };
        self.held_bytes -= connection.counted_bytes();
        self.publish_load();
        match self.net.to_control(connection.socket, bytes) {
            Ok(()) => self.count(Counter::HandedToControl),
            Err(socket) => {
                drop(socket);
                self.count(Counter::RefusedBusy);
                self.count(Counter::Closed);
            }
        }
    }

    /// The client has ended its side. Whoever only listens is taken to be gone.
    fn peer_ended(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let reason = match connection.state {
            State::Head if connection.has(Flags::SERVED) => Counter::ClosedIdle,
            State::Closing => Counter::Closed,
            _ => Counter::ClosedByPeer,
        };
        self.forget(index, reason);
    }
}
