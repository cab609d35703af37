//! One publishing connection: queues messages, sends them, and reads the responses.
//!
//! # Invariants
//!
//! * The messages of a stream are sent in the order of their sequences.
//! * [`StreamCounters::published`] is called before the first byte of a message is sent, and
//!   [`StreamCounters::refused`] for each message that was sent and not accepted, or not answered.
//! * Every message that was due is counted once, as published or as a failure.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use super::counts::{PublishCounts, PublishFailure};
use super::output::{Output, POSITION};
use super::protocol::PublishProtocol;
use super::request::RequestBuilder;
use super::response::PublishResponse;
use super::schedule::ScheduledMessage;
use crate::failure::Failure;
use crate::marker::{Mark, now_ns};
use crate::streams::StreamCounters;
use crate::tls::{TlsConnections, TlsEnd, TlsFailure};

/// Messages that may wait to be sent. More would not be sent in any useful time.
const WAITING_MAX: usize = 1 << 17;

/// Bytes that may wait for the kernel. Above this, messages wait unrendered.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The pause after a failed connect.
const RETRY_NS: u64 = 100_000_000;

const RECEIVE_BYTES: usize = 16 * 1024;

/// The parts of a publishing thread that its connections use.
pub(super) struct ThreadResources<'a> {
    /// The epoll instance of the thread.
    pub epoll: &'a OwnedFd,
    /// The counters that tell clients what is published.
    pub counters: &'a StreamCounters,
    /// The counts of the thread.
    pub counts: &'a mut PublishCounts,
    /// Bytes of a payload.
    pub size: usize,
}

/// A message that was sent and not answered.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    stream: u32,
    sequence: u32,
    sent_ns: u64,
    /// Its end in the bytes that this connection has sent in total.
    end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    /// There is no socket; the next may be opened at this time.
    Down { retry_ns: u64 },
    /// The connect is in progress.
    Connecting { deadline_ns: u64 },
    /// The TLS handshake is in progress.
    Securing { deadline_ns: u64 },
    /// The WebSocket handshake is in progress.
    Greeting { deadline_ns: u64 },
    /// Messages can be sent.
    Ready,
}

/// One publishing connection.
pub(super) struct PublishConnection {
    /// Its index in its thread, which its events carry.
    token: u64,
    /// Its number in the run.
    number: usize,
    builder: Arc<RequestBuilder>,
    socket: Option<OwnedFd>,
    state: ConnectionState,
    /// How many connects were started; each tries the next address.
    connects: usize,
    output: Output,
    /// `None` without TLS.
    tls: Option<TlsConnections>,
    protocol: PublishProtocol,
    waiting: VecDeque<ScheduledMessage>,
    in_flight: VecDeque<InFlight>,
}

impl PublishConnection {
    /// A connection that is not open yet.
    pub(super) fn new(
        token: u64,
        number: usize,
        builder: Arc<RequestBuilder>,
    ) -> PublishConnection {
        let protocol = PublishProtocol::new(&builder, number);
        let tls = builder.tls.as_ref().map(|target| TlsConnections::new(Arc::clone(target), 1));
        PublishConnection {
            token,
            number,
            builder,
            socket: None,
            state: ConnectionState::Down { retry_ns: 0 },
            connects: 0,
            output: Output::default(),
            tls,
            protocol,
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
        }
    }

    /// True if a connect or handshake is in progress.
    pub(super) fn is_opening(&self) -> bool {
        matches!(
            self.state,
            ConnectionState::Connecting { .. }
                | ConnectionState::Securing { .. }
                | ConnectionState::Greeting { .. }
        )
    }

    /// Messages that wait to be sent or answered.
    pub(super) fn open_messages(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    /// Whether [`expire`](Self::expire) may have something to do.
    pub(super) fn is_watched(&self) -> bool {
        let is_stuck = self.state != ConnectionState::Ready && !self.waiting.is_empty();
        !self.in_flight.is_empty() || is_stuck || self.is_opening()
    }

    /// Queues a message that is due. The next [`pump`](Self::pump) sends it.
    pub(super) fn enqueue(&mut self, slot: ScheduledMessage, thread: &mut ThreadResources<'_>) {
        thread.counts.due += 1;
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(slot);
        } else {
            thread.counts.fail(PublishFailure::Behind, 1);
        }
    }

    /// Opens the connection, unless it is open.
    pub(super) fn open(&mut self, thread: &mut ThreadResources<'_>) {
        let now_ns = now_ns();
        if matches!(self.state, ConnectionState::Down { retry_ns } if retry_ns <= now_ns)
            && let Err(failure) = self.connect(thread, now_ns)
        {
            self.fail(PublishFailure::Connection(failure), thread);
        }
    }

    /// Sends as much as possible.
    pub(super) fn pump(&mut self, thread: &mut ThreadResources<'_>) {
        if !self.waiting.is_empty() {
            self.open(thread);
        }
        if self.state == ConnectionState::Ready {
            while self.in_flight.len() < self.protocol.max_in_flight(&self.builder)
                && self.output.len() < OUTPUT_BYTES_MAX
            {
                let Some(slot) = self.waiting.pop_front() else { break };
                self.start(slot, thread);
            }
        }
        if let Err(failure) = self.flush(thread) {
            self.fail(PublishFailure::Connection(failure), thread);
        }
    }

    /// Handles an event of the socket.
    pub(super) fn on_event(&mut self, flags: EventFlags, thread: &mut ThreadResources<'_>) {
        if matches!(self.state, ConnectionState::Connecting { .. }) {
            self.on_connected(thread);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
            && let Err(failure) = self.receive(thread)
        {
            self.fail(failure, thread);
        }
        self.pump(thread);
    }

    /// Fails what has timed out.
    pub(super) fn expire(&mut self, now_ns: u64, thread: &mut ThreadResources<'_>) {
        let timeout_ns = u64::try_from(self.builder.timeout.as_nanos()).unwrap_or(u64::MAX);
        match self.state {
            ConnectionState::Down { .. } => self.pump(thread),
            ConnectionState::Connecting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::ConnectTimeout), thread);
            }
            ConnectionState::Securing { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(TlsFailure::Timeout.into()), thread);
            }
            ConnectionState::Greeting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::HandshakeTimeout), thread);
            }
            ConnectionState::Ready => {
                let oldest = self.in_flight.front().map(|message| message.sent_ns);
                if oldest.is_some_and(|sent_ns| now_ns.saturating_sub(sent_ns) >= timeout_ns) {
                    self.fail(PublishFailure::Unanswered, thread);
                }
            }
            _ => {}
        }
    }

    /// Gives up all messages that are not published.
    pub(super) fn abandon(&mut self, thread: &mut ThreadResources<'_>) {
        thread.counts.fail(PublishFailure::Unsent, self.waiting.len() as u64);
        self.waiting.clear();
        if !self.in_flight.is_empty() {
            self.fail(PublishFailure::Unanswered, thread);
        }
    }

    fn connect(&mut self, thread: &ThreadResources<'_>, now_ns: u64) -> Result<(), Failure> {
        let nodes = &self.builder.nodes;
        let addresses = nodes.get(self.number % nodes.len().max(1)).map_or(&[][..], Vec::as_slice);
        let Some(address) = addresses.get(self.connects % addresses.len().max(1)) else {
            return Err(Errno::ADDRNOTAVAIL.into());
        };
        self.connects += 1;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        // Some systems lack it. Requests are single writes, so little is lost.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(thread.epoll, &socket, EventData::new_u64(self.token), flags)?;
        if let Some(tls) = &mut self.tls {
            tls.start(POSITION)?;
        }
        self.socket = Some(socket);
        self.protocol = PublishProtocol::new(&self.builder, self.number);
        self.state = ConnectionState::Connecting { deadline_ns: self.deadline_ns(now_ns) };
        Ok(())
    }

    fn on_connected(&mut self, thread: &mut ThreadResources<'_>) {
        let Some(socket) = &self.socket else { return };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                return self.fail(PublishFailure::Connection(error.into()), thread);
            }
        }
        if self.tls.is_some() {
            self.state = ConnectionState::Securing { deadline_ns: self.deadline_ns(now_ns()) };
        } else {
            self.greet();
        }
    }

    /// Begins with the protocol, now that bytes can be exchanged.
    fn greet(&mut self) {
        self.state = match &mut self.protocol {
            PublishProtocol::Http(_) => ConnectionState::Ready,
            PublishProtocol::WebSocket(websocket) => {
                websocket.write_handshake(self.output.buffer());
                ConnectionState::Greeting { deadline_ns: self.deadline_ns(now_ns()) }
            }
        };
    }

    /// Assigns the next sequence to a message, and appends it to the output.
    fn start(&mut self, slot: ScheduledMessage, thread: &mut ThreadResources<'_>) {
        let ScheduledMessage { intended_ns, stream } = slot;
        // No other connection publishes to this stream.
        let sequence = thread.counters.last_published(stream) + 1;
        thread.counters.published(stream, sequence);
        let mark = Mark { run: self.builder.run, stream, sequence, intended_ns };
        let mut payload = Vec::with_capacity(thread.size);
        mark.write_payload(thread.size, &mut payload);
        self.protocol.write_message(&self.builder, stream, &payload, self.output.buffer());
        let sent_ns = now_ns();
        thread.counts.send(intended_ns, sent_ns);
        let end = self.output.end();
        self.in_flight.push_back(InFlight { stream, sequence, sent_ns, end });
    }

    fn flush(&mut self, thread: &mut ThreadResources<'_>) -> Result<(), Failure> {
        if matches!(self.state, ConnectionState::Down { .. } | ConnectionState::Connecting { .. }) {
            return Ok(());
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        self.output.flush(socket, self.tls.as_mut())?;
        if let PublishProtocol::WebSocket(_) = self.protocol {
            // Frames get no response: what the kernel has accepted is published.
            let accepted = self.output.accepted();
            while self.in_flight.pop_front_if(|message| message.end <= accepted).is_some() {
                thread.counts.published += 1;
            }
        }
        Ok(())
    }

    fn receive(&mut self, thread: &mut ThreadResources<'_>) -> Result<(), PublishFailure> {
        let mut part = [0; RECEIVE_BYTES];
        while let Some(socket) = &self.socket {
            match rustix::net::recv(socket, &mut part, RecvFlags::empty()) {
                Ok((0, _)) => return self.on_end(thread),
                Ok((bytes, _)) if self.tls.is_some() => {
                    self.open_records(&part[..bytes], thread)?
                }
                Ok((bytes, _)) => self.take(&part[..bytes], thread)?,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(PublishFailure::Connection(error.into())),
            }
        }
        Ok(())
    }

    /// Opens records, and takes what they contain.
    fn open_records(
        &mut self,
        bytes: &[u8],
        thread: &mut ThreadResources<'_>,
    ) -> Result<(), PublishFailure> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut content = Vec::new();
        let arrived = tls.receive(POSITION, bytes, now_ns(), &mut content);
        if arrived.handshake.is_some() {
            self.greet();
        }
        if !content.is_empty() {
            self.take(&content, thread)?;
        }
        match arrived.end {
            None => Ok(()),
            Some(TlsEnd::Closed) => self.on_end(thread),
            Some(TlsEnd::Failed(failure)) => {
                // The server is told why, if that is possible at once.
                let _ = self.flush(thread);
                Err(PublishFailure::Connection(failure.into()))
            }
        }
    }

    fn take(
        &mut self,
        bytes: &[u8],
        thread: &mut ThreadResources<'_>,
    ) -> Result<(), PublishFailure> {
        match &mut self.protocol {
            PublishProtocol::Http(reader) => {
                let mut responses = Vec::new();
                let outcome = reader.receive(bytes, &mut responses);
                for response in responses {
                    self.on_response(response, thread)?;
                }
                outcome.map_err(|reason| PublishFailure::Connection(Failure::Protocol(reason)))
            }
            PublishProtocol::WebSocket(websocket) => {
                let became_ready = websocket.take(bytes, self.output.buffer());
                if became_ready.map_err(PublishFailure::Connection)? {
                    self.state = ConnectionState::Ready;
                }
                Ok(())
            }
        }
    }

    fn on_response(
        &mut self,
        response: PublishResponse,
        thread: &mut ThreadResources<'_>,
    ) -> Result<(), PublishFailure> {
        let Some(message) = self.in_flight.pop_front() else {
            let reason = Failure::Protocol("an unexpected response");
            return Err(PublishFailure::Connection(reason));
        };
        thread.counts.answer.record(now_ns().saturating_sub(message.sent_ns));
        if let Some(refusal) = response.refusal {
            thread.counters.refused(message.stream, message.sequence);
            thread.counts.fail(PublishFailure::Connection(refusal), 1);
        } else {
            thread.counts.published += 1;
        }
        if response.closes {
            self.close(PublishFailure::Connection(Failure::Closed(None)), 0, thread);
        }
        Ok(())
    }

    /// The server has closed. It may close an idle connection, which is reopened when needed.
    fn on_end(&mut self, thread: &mut ThreadResources<'_>) -> Result<(), PublishFailure> {
        if let PublishProtocol::Http(reader) = &mut self.protocol {
            if let Some(response) = reader.end() {
                self.on_response(response, thread)?;
            }
            if self.in_flight.is_empty() {
                self.close(PublishFailure::Connection(Failure::Closed(None)), 0, thread);
                return Ok(());
            }
        }
        let cut_off = self.tls.as_ref().and_then(|tls| tls.stream_end(POSITION));
        let failure = match (self.state, cut_off) {
            (ConnectionState::Ready | ConnectionState::Securing { .. }, Some(failure)) => {
                failure.into()
            }
            (ConnectionState::Ready, None) => Failure::Closed(None),
            _ => Failure::ClosedInHandshake,
        };
        Err(PublishFailure::Connection(failure))
    }

    /// The connection has failed. Unsent messages wait for the next one, unless it could not be
    /// opened in the first place.
    fn fail(&mut self, failure: PublishFailure, thread: &mut ThreadResources<'_>) {
        if self.state != ConnectionState::Ready {
            thread.counts.fail(failure.clone(), self.waiting.len() as u64);
            self.waiting.clear();
        }
        self.close(failure, now_ns() + RETRY_NS, thread);
    }

    /// Closes the socket. The fate of unanswered messages is unknown.
    fn close(&mut self, failure: PublishFailure, retry_ns: u64, thread: &mut ThreadResources<'_>) {
        thread.counts.unsure += self.in_flight.len() as u64;
        thread.counts.fail(failure, self.in_flight.len() as u64);
        for message in self.in_flight.drain(..) {
            thread.counters.refused(message.stream, message.sequence);
        }
        // Closing a socket removes it from the epoll instance.
        self.socket = None;
        self.state = ConnectionState::Down { retry_ns };
        self.output.clear();
        if let Some(tls) = &mut self.tls {
            tls.close(POSITION);
        }
    }

    fn deadline_ns(&self, now_ns: u64) -> u64 {
        let timeout_ns = u64::try_from(self.builder.timeout.as_nanos()).unwrap_or(u64::MAX);
        now_ns.saturating_add(timeout_ns)
    }
}
