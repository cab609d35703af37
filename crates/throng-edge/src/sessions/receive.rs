//! Reads, and passes the input to the handler of the connection's state. Goes on with connections
//! whose sockets take more.

use throng_core::Kind;
use throng_dialect::CloseReason;
use throng_wire::head::{self, ChunkedBody, Head, Limits, Parsed};
use throng_wire::name::CANARY;
use throng_wire::subscribe::{self, Request, Route};
use throng_wire::{ErrorCode, ErrorResponse, Target, proxied};

use super::error_response::Reader;
use crate::connection::{ConnectionId, Flags, State, Token};
use crate::counters::Counter;
use crate::net::{Net, Read};
use crate::sessions::Sessions;

/// The number of reads from one connection in a turn.
const READS_PER_TURN: usize = 4;

/// The number of deferred reads in one slice.
const TURNS_PER_SLICE: usize = 16;

/// The size of a read where a head is expected: a TLS record has to fit. Input behind a head for
/// the control plane is handed off with it, in one packet.
const HEAD_READ_BYTES: usize = 20 << 10;
const _: () = assert!(HEAD_READ_BYTES > throng_tls::RECORD_BYTES_MAX);

impl<N: Net> Sessions<N> {
    /// The connection has input, or its peer has gone. `is_ended` says that the peer has finished
    /// sending: the end is behind the input, and no further event reports it.
    pub fn readable(&mut self, token: Token, is_ended: bool) {
        // It may have ended since the event.
        let Some(id) = self.connections().find(token) else { return };
        if self[id].has(Flags::READ_DEFERRED) {
            return;
        }
        if self.budget().is_slice_spent() {
            self.defer_read(id);
        } else {
            self.turn(|sessions| sessions.read(id, is_ended));
        }
        self.evict_excess();
    }

    /// Goes on with connections that had more to read than one turn allowed.
    pub(crate) fn continue_reads(&mut self) {
        for _ in 0..self.deferred_reads().min(TURNS_PER_SLICE) {
            if self.budget().is_slice_spent() {
                return;
            }
            // All others have ended meanwhile.
            let Some(id) = self.next_read() else { return };
            self.turn(|sessions| sessions.read_again(id));
        }
    }

    fn read_again(&mut self, id: ConnectionId) {
        self.budget().begin_turn();
        self.hear_on(id);
        self.input_kept(id);
        if self.is_here(id) && !self[id].has(Flags::READ_DEFERRED) {
            // `readable` ignores events while a read is deferred: one may have been the end.
            self.read_more(id, true);
        }
    }

    /// Acts on input that the connection keeps from earlier reads.
    pub(crate) fn input_kept(&mut self, id: ConnectionId) {
        self.resume_reading(id);
        self.input(id, &mut []);
    }

    /// Gives the connection a turn: reads from it, and acts on the input.
    pub(crate) fn read(&mut self, id: ConnectionId, is_ended: bool) {
        self.budget().begin_turn();
        self.read_more(id, is_ended);
    }

    fn read_more(&mut self, id: ConnectionId, is_ended: bool) {
        let mut buffer = self.buffers().take_input();
        let mut is_more = true;
        for _ in 0..READS_PER_TURN {
            if !self.may_read(id) {
                is_more = false;
                break;
            }
            let connection = &self[id];
            let room = match connection.state() {
                State::Head => HEAD_READ_BYTES,
                _ => buffer.len(),
            };
            match self.read_into(id, &mut buffer[..room]) {
                Read::Bytes(count) => {
                    self.input(id, &mut buffer[..count]);
                    // A short read has emptied the socket, and the edge-triggered event comes again
                    // with the next byte (epoll(7)); but not with an end that was reported already.
                    is_more = count == room || is_ended;
                }
                Read::More(count) => self.input(id, &mut buffer[..count]),
                // The deferred turn reads on until the socket is empty, and finds the end.
                Read::Later => break,
                stop => {
                    self.stop_reading(id, stop);
                    is_more = false;
                }
            }
            if !is_more {
                break;
            }
        }
        self.buffers().return_input(buffer);
        if self.is_here(id) {
            if is_more {
                self.defer_read(id);
            }
            self.note_held(id);
        }
    }

    /// True if more may be read from a connection in its turn.
    fn may_read(&self, id: ConnectionId) -> bool {
        if !self.is_here(id) {
            return false;
        }
        let connection = &self[id];
        // Input after a command that waits for its answer stays in the kernel.
        let is_answered =
            connection.state() != State::Streaming || self.connections().pending(id).is_none();
        !connection.has(Flags::AWAITS_CONTROL)
            && !connection.has(Flags::READ_DEFERRED)
            && is_answered
    }

    /// Acts on a read that brought nothing.
    fn stop_reading(&mut self, id: ConnectionId, read: Read) {
        match read {
            Read::End => self.peer_ended(id),
            Read::Gone => self.condemn(id, CloseReason::Peer),
            Read::NotTls => {
                self.count(Counter::RefusedHead);
                self.refuse(id, &ErrorResponse::not_tls(), &Reader::default());
            }
            Read::Failed(flaw) => {
                if let Some(flaw) = flaw {
                    self.tell_flaw(id, flaw);
                }
                self.close_after(id, b"", CloseReason::TlsFailed);
            }
            Read::Bytes(_) | Read::More(_) | Read::Blocked | Read::Later => {}
        }
    }

    /// Handles input behind that which is kept. Keeps what is incomplete.
    pub(crate) fn input(&mut self, id: ConnectionId, bytes: &mut [u8]) {
        let connection = &mut self[id];
        if !bytes.is_empty() {
            connection.flags.set(Flags::HEARD, true);
        }
        let kept = connection.io.as_mut().map(|io| std::mem::take(&mut io.inbound));
        let mut kept = kept.unwrap_or_default();
        let (rest, is_new) = if kept.is_empty() {
            let consumed = self.consume(id, bytes);
            (&bytes[consumed.min(bytes.len())..], true)
        } else {
            kept.extend_from_slice(bytes);
            let consumed = self.consume(id, &mut kept);
            (&kept[consumed.min(kept.len())..], consumed > 0 || bytes.is_empty())
        };
        if !self.is_here(id) {
            return;
        }
        let connection = &mut self[id];
        if !rest.is_empty() {
            connection.io_mut().inbound = rest.to_vec();
            let is_awaited = connection.state() == State::Head && !connection.has(Flags::BLOCKED);
            if is_new && is_awaited && connection.has(Flags::SERVED) {
                // The first bytes of a next head: the connection is no longer idle.
                self[id].due = self.clock().deadline(self.settings.head_timeout);
            }
        }
        // No event will come for bytes that were read, so that they need a turn of their own.
        let is_cut = !rest.is_empty() && !self.budget().has_steps();
        self.connections_mut().trim_buffers(id);
        if is_cut {
            self.defer_read(id);
        }
    }

    /// Handles the complete part of `bytes`. Returns its length; all of it if the connection ends
    /// or was handed off.
    fn consume(&mut self, id: ConnectionId, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.budget().has_steps() {
            self.budget().take_step();
            let connection = &self[id];
            let step = match connection.state() {
                State::Closing | State::Condemned => return bytes.len(),
                // The answer before is not written yet: the next request waits.
                State::Head if connection.has(Flags::BLOCKED) => self.keep(id, &bytes[at..]),
                State::Head if connection.has(Flags::AWAITS_PROXY_HEADER) => {
                    self.proxy_header(id, &bytes[at..])
                }
                State::Head => self.head(id, &mut bytes[at..]),
                State::LongPolling | State::Waiting => self.keep(id, &bytes[at..]),
                // A command that waits for its answer goes before what follows on it.
                State::Streaming if self.connections().pending(id).is_some() => 0,
                State::Streaming if connection.is_websocket() => self.frames(id, &mut bytes[at..]),
                // A stream is the last response of its connection: input has no meaning.
                State::Streaming => return bytes.len(),
            };
            match step {
                0 => break,
                consumed => at += consumed,
            }
        }
        at
    }

    /// Keeps a pipelined request for later, up to the size of one head.
    fn keep(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        if bytes.len() <= self.settings.max_head_bytes {
            return 0;
        }
        self.condemn(id, CloseReason::Pipelining);
        bytes.len()
    }

    /// Acts on a request head. Returns how many bytes were handled; 0 if the head is incomplete.
    fn head(&mut self, id: ConnectionId, bytes: &mut [u8]) -> usize {
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let (head, length) = match head::parse(bytes, limits) {
            Ok(Parsed::Incomplete) => return 0,
            Ok(Parsed::Complete { head, length }) => (head, length),
            Err(error) => {
                // Nothing tells where a next request would begin, so that this is the last one.
                self.count(Counter::RefusedHead);
                self.log_error(id, bytes, None, &error);
                let reader = Reader { is_head: head::is_head(bytes), ..Reader::default() };
                self.refuse(id, &error, &reader);
                return bytes.len();
            }
        };
        let mut route = self.route(&head);
        let mut length = length;
        if route.as_ref().is_ok_and(|route| matches!(route, Route::Subscribe(_)))
            && head.is_chunked()
        {
            match head::chunked_body(&bytes[length..]) {
                ChunkedBody::Incomplete => return 0,
                ChunkedBody::Empty(body_bytes) => length += body_bytes,
                ChunkedBody::Other => route = Err(subscribe::has_body()),
            }
        }
        let is_canary = self.connections().is_canary(id);
        if let Ok(Route::Subscribe(request)) = &mut route
            && is_canary
        {
            // Its log has a name that no request can form.
            request.targets = vec![Target { kind: Kind::Internal, name: CANARY.to_owned() }];
        }
        if let Ok(Route::Subscribe(request)) = &route
            && !is_canary
            && !self.find_proxied_client(id, &head, request, bytes)
        {
            return bytes.len();
        }
        match route {
            Ok(Route::Subscribe(request)) if self.belongs_to_control(id, &request) => {
                self.hand_off_to_control(id, bytes);
                bytes.len()
            }
            Ok(Route::Subscribe(request)) => {
                if self.subscribe(id, &request, &head, bytes, length) {
                    length
                } else {
                    bytes.len()
                }
            }
            Ok(Route::Other) => {
                self.hand_off_to_control(id, bytes);
                bytes.len()
            }
            Err(error) => {
                let reader = self.reader_of(&head);
                self.count(match error.code {
                    ErrorCode::UpgradeRequired => Counter::RefusedUpgrade,
                    _ => Counter::RefusedSubscribe,
                });
                self.log_error(id, bytes, reader.request_id.as_deref(), &error);
                self.refuse(id, &error, &reader);
                bytes.len()
            }
        }
    }

    /// True if the control plane has to check first whether the request is allowed: it asks for the
    /// status samples, and the server has keys. The control plane hands it back as a viewer.
    fn belongs_to_control(&self, id: ConnectionId, request: &Request) -> bool {
        let is_viewer = self[id].has(Flags::VIEWER);
        request.is_status() && self.access.has_keys() && !is_viewer
    }

    /// The route of a request. The control plane checks its own requests.
    fn route(&self, head: &Head<'_>) -> Result<Route, ErrorResponse> {
        let route = throng_dialect::route(head)?;
        if self.settings.refuses_proxies && matches!(route, Route::Subscribe(_)) {
            proxied::refuse(head.header_names())?;
        }
        Ok(route)
    }

    /// The client has finished sending. Unless it reads an answer, it counts as gone: a half-closed
    /// connection cannot be told from one that a client has closed.
    fn peer_ended(&mut self, id: ConnectionId) {
        let connection = &mut self[id];
        let is_answered = matches!(connection.state(), State::Head | State::Closing);
        if is_answered && connection.has(Flags::BLOCKED) {
            // It still reads the answer; then the connection ends.
            connection.flags.set(Flags::PEER_ENDED, true);
            return;
        }
        let (state, is_served) = (connection.state(), connection.has(Flags::SERVED));
        if state == State::Head && is_served {
            // Many clients use a connection once, whatever their `Connection` header says: it polls
            // again on another one.
            self.note_poll_end();
        }
        let reason = match state {
            State::Head if is_served => CloseReason::Idle,
            State::Closing => CloseReason::Complete,
            _ => CloseReason::Peer,
        };
        self.condemn(id, reason);
    }

    /// The connection's socket may take more (`EPOLLOUT`).
    pub fn writable(&mut self, token: Token) {
        // It may have ended since the event.
        let Some(id) = self.connections().find(token) else { return };
        if self.budget().is_slice_spent() {
            return self.defer_delivery(id);
        }
        self.write_on(id);
    }

    /// Goes on with what the connection lacks.
    fn write_on(&mut self, id: ConnectionId) {
        self.turn(|sessions| sessions.flush_all(id));
        self.evict_excess();
    }

    /// Writes what waits, and acts on the connection once all of it is written.
    fn flush_all(&mut self, id: ConnectionId) {
        if !self.flush(id) {
            return;
        }
        self.budget().begin_turn();
        let connection = &mut self[id];
        connection.flags.set(Flags::BLOCKED, false);
        if connection.has(Flags::PEER_ENDED) {
            return self.condemn(id, CloseReason::Peer);
        }
        match connection.state() {
            State::Streaming => self.flush_subscriptions(id),
            State::Head => {
                // It has its answer, and is idle. Without one it has shaken hands, and the time of
                // its first head runs.
                if connection.has(Flags::SERVED) {
                    self[id].due = self.clock().deadline(self.settings.idle_timeout);
                }
                self.input_kept(id);
            }
            State::Closing => self.half_close(id),
            // Nothing was written.
            State::Waiting | State::Condemned => {}
            // A fan-out answers it, unless it has visited it before.
            State::LongPolling => {
                if self.newest_subscription(id).is_some_and(|own| self.is_in_order(id, own)) {
                    self.flush_in_order(id);
                }
            }
        }
        if self.is_here(id) {
            self.note_caught_up(id);
            self.count_held(id);
            self.connections_mut().trim_buffers(id);
        }
    }

    /// Goes on with connections whose deliveries were deferred.
    pub(crate) fn continue_deliveries(&mut self) {
        for _ in 0..self.deferred_deliveries() {
            if self.budget().is_slice_spent() {
                return;
            }
            // All others have ended meanwhile.
            let Some(id) = self.next_delivery() else { return };
            if self[id].has(Flags::BLOCKED) {
                self.write_on(id);
            } else {
                self.turn(|sessions| {
                    sessions.flush_subscriptions(id);
                    sessions.note_caught_up(id);
                });
            }
        }
    }
}
