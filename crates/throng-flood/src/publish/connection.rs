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
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::counts::{PublishCounts, PublishFailure, record};
use super::request::RequestBuilder;
use super::response::{Response, Responses};
use super::schedule::Slot;
use super::websocket::{Received, WebSocket};
use crate::failure::Failure;
use crate::marker::{Mark, now_ns};
use crate::plan::PublishBy;
use crate::streams::StreamCounters;

/// Messages that may wait to be sent. More would not be sent in any useful time.
const WAITING_MAX: usize = 1 << 17;

/// Bytes that may wait for the kernel. Above this, messages wait unrendered.
const OUT_BYTES_MAX: usize = 1 << 20;

/// The pause after a failed connect.
const RETRY_NS: u64 = 100_000_000;

const RECEIVE_BYTES: usize = 16 * 1024;

/// What a connection needs of its thread.
pub struct Context<'a> {
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
enum Stage {
    /// There is no socket; the next may be opened at this time.
    Down { retry_ns: u64 },
    /// The connect is in progress.
    Connecting { deadline_ns: u64 },
    /// The WebSocket handshake is in progress.
    Greeting { deadline_ns: u64 },
    /// Messages can be sent.
    Ready,
}

enum Protocol {
    Http(Responses),
    WebSocket(WebSocket),
}

/// One publishing connection.
pub struct Connection {
    /// Its index in its thread, which its events carry.
    token: u64,
    /// Its number in the run.
    number: usize,
    builder: Arc<RequestBuilder>,
    socket: Option<OwnedFd>,
    stage: Stage,
    /// How many connects were started; each tries the next address.
    connects: usize,
    out: Vec<u8>,
    /// Bytes of `out` that the kernel has accepted.
    taken: usize,
    /// Bytes that the kernel accepted before those of `out`.
    taken_before: u64,
    protocol: Protocol,
    waiting: VecDeque<Slot>,
    in_flight: VecDeque<InFlight>,
}

impl Connection {
    /// A connection that is not open yet.
    pub fn new(token: u64, number: usize, builder: Arc<RequestBuilder>) -> Connection {
        let protocol = protocol(&builder, number);
        Connection {
            token,
            number,
            builder,
            socket: None,
            stage: Stage::Down { retry_ns: 0 },
            connects: 0,
            out: Vec::new(),
            taken: 0,
            taken_before: 0,
            protocol,
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
        }
    }

    /// Whether a connect or handshake is in progress.
    pub fn is_opening(&self) -> bool {
        matches!(self.stage, Stage::Connecting { .. } | Stage::Greeting { .. })
    }

    /// Messages that wait to be sent or answered.
    pub fn open_messages(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    /// Whether [`expire`](Self::expire) may have something to do.
    pub fn is_watched(&self) -> bool {
        let is_stuck = self.stage != Stage::Ready && !self.waiting.is_empty();
        !self.in_flight.is_empty() || is_stuck || self.is_opening()
    }

    /// Queues a message that is due. The next [`pump`](Self::pump) sends it.
    pub fn enqueue(&mut self, slot: Slot, context: &mut Context<'_>) {
        context.counts.due += 1;
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(slot);
        } else {
            context.counts.fail(PublishFailure::Behind, 1);
        }
    }

    /// Opens the connection, unless it is open.
    pub fn open(&mut self, context: &mut Context<'_>) {
        let now_ns = now_ns();
        if matches!(self.stage, Stage::Down { retry_ns } if retry_ns <= now_ns)
            && let Err(error) = self.connect(context, now_ns)
        {
            self.fail(PublishFailure::Connection(error.into()), context);
        }
    }

    /// Sends as much as possible.
    pub fn pump(&mut self, context: &mut Context<'_>) {
        if !self.waiting.is_empty() {
            self.open(context);
        }
        if self.stage == Stage::Ready {
            while self.in_flight.len() < self.flights_max() && self.out.len() < OUT_BYTES_MAX {
                let Some(slot) = self.waiting.pop_front() else { break };
                self.start(slot, context);
            }
        }
        if let Err(error) = self.flush(context) {
            self.fail(PublishFailure::Connection(error.into()), context);
        }
    }

    /// Handles an event of the socket.
    pub fn on_event(&mut self, flags: EventFlags, context: &mut Context<'_>) {
        if matches!(self.stage, Stage::Connecting { .. }) {
            self.on_connected(context);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
            && let Err(failure) = self.receive(context)
        {
            self.fail(failure, context);
        }
        self.pump(context);
    }

    /// Fails what has timed out.
    pub fn expire(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let timeout_ns = u64::try_from(self.builder.timeout.as_nanos()).unwrap_or(u64::MAX);
        match self.stage {
            Stage::Down { .. } => self.pump(context),
            Stage::Connecting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::ConnectTimeout), context);
            }
            Stage::Greeting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::HandshakeTimeout), context);
            }
            Stage::Ready => {
                let oldest = self.in_flight.front().map(|message| message.sent_ns);
                if oldest.is_some_and(|sent_ns| now_ns.saturating_sub(sent_ns) >= timeout_ns) {
                    self.fail(PublishFailure::Unanswered, context);
                }
            }
            _ => {}
        }
    }

    /// Gives up all messages that are not published.
    pub fn abandon(&mut self, context: &mut Context<'_>) {
        context.counts.fail(PublishFailure::Unsent, self.waiting.len() as u64);
        self.waiting.clear();
        if !self.in_flight.is_empty() {
            self.fail(PublishFailure::Unanswered, context);
        }
    }

    fn connect(&mut self, context: &Context<'_>, now_ns: u64) -> Result<(), Errno> {
        let addresses = &self.builder.addresses;
        let Some(address) = addresses.get(self.connects % addresses.len().max(1)) else {
            return Err(Errno::ADDRNOTAVAIL);
        };
        self.connects += 1;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(context.epoll, &socket, EventData::new_u64(self.token), flags)?;
        self.socket = Some(socket);
        self.protocol = protocol(&self.builder, self.number);
        self.stage = Stage::Connecting { deadline_ns: self.deadline_ns(now_ns) };
        Ok(())
    }

    fn on_connected(&mut self, context: &mut Context<'_>) {
        let Some(socket) = &self.socket else { return };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                return self.fail(PublishFailure::Connection(error.into()), context);
            }
        }
        self.stage = match &mut self.protocol {
            Protocol::Http(_) => Stage::Ready,
            Protocol::WebSocket(websocket) => {
                websocket.write_handshake(&mut self.out);
                Stage::Greeting { deadline_ns: self.deadline_ns(now_ns()) }
            }
        };
    }

    /// Assigns the next sequence to a message, and appends it to the output.
    fn start(&mut self, slot: Slot, context: &mut Context<'_>) {
        let Slot { intended_ns, stream } = slot;
        // No other connection publishes to this stream.
        let sequence = context.counters.last_published(stream) + 1;
        context.counters.published(stream, sequence);
        let mark = Mark { run: self.builder.run, stream, sequence, intended_ns };
        let mut payload = Vec::with_capacity(context.size);
        mark.write_payload(context.size, &mut payload);
        match &mut self.protocol {
            Protocol::Http(_) => self.builder.write_request(stream, &payload, &mut self.out),
            Protocol::WebSocket(websocket) => {
                websocket.write_message(stream, &payload, &mut self.out);
            }
        }
        let sent_ns = now_ns();
        context.counts.send(intended_ns, sent_ns);
        let end = self.taken_before + self.out.len() as u64;
        self.in_flight.push_back(InFlight { stream, sequence, sent_ns, end });
    }

    fn flush(&mut self, context: &mut Context<'_>) -> Result<(), Errno> {
        if matches!(self.stage, Stage::Down { .. } | Stage::Connecting { .. }) {
            return Ok(());
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        while self.taken < self.out.len() {
            match rustix::net::send(socket, &self.out[self.taken..], SendFlags::NOSIGNAL) {
                Ok(bytes) => self.taken += bytes,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let taken = self.taken_before + self.taken as u64;
        if self.taken == self.out.len() {
            self.taken_before = taken;
            self.taken = 0;
            self.out.clear();
        }
        if let Protocol::WebSocket(_) = self.protocol {
            // Frames get no response: what the kernel has accepted is published.
            while self.in_flight.pop_front_if(|message| message.end <= taken).is_some() {
                context.counts.published += 1;
            }
        }
        Ok(())
    }

    fn receive(&mut self, context: &mut Context<'_>) -> Result<(), PublishFailure> {
        let mut part = [0; RECEIVE_BYTES];
        while let Some(socket) = &self.socket {
            match rustix::net::recv(socket, &mut part, RecvFlags::empty()) {
                Ok((0, _)) => return self.on_end(context),
                Ok((bytes, _)) => self.take(&part[..bytes], context)?,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(PublishFailure::Connection(error.into())),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Result<(), PublishFailure> {
        match &mut self.protocol {
            Protocol::Http(reader) => {
                let mut responses = Vec::new();
                let outcome = reader.receive(bytes, &mut responses);
                for response in responses {
                    self.on_response(response, context)?;
                }
                outcome.map_err(|reason| PublishFailure::Connection(Failure::Protocol(reason)))
            }
            Protocol::WebSocket(websocket) => {
                let heard = websocket.take(bytes, &mut self.out);
                match heard.map_err(PublishFailure::Connection)? {
                    Received::Ready => self.stage = Stage::Ready,
                    Received::Nothing => {}
                }
                Ok(())
            }
        }
    }

    fn on_response(
        &mut self,
        response: Response,
        context: &mut Context<'_>,
    ) -> Result<(), PublishFailure> {
        let Some(message) = self.in_flight.pop_front() else {
            let reason = Failure::Protocol("an unexpected response");
            return Err(PublishFailure::Connection(reason));
        };
        record(&mut context.counts.answer, now_ns().saturating_sub(message.sent_ns));
        if let Some(refusal) = response.refusal {
            context.counters.refused(message.stream, message.sequence);
            context.counts.fail(PublishFailure::Connection(refusal), 1);
        } else {
            context.counts.published += 1;
        }
        if response.closes {
            self.close(PublishFailure::Connection(Failure::Closed(None)), 0, context);
        }
        Ok(())
    }

    /// The server has closed. It may close an idle connection, which is reopened when needed.
    fn on_end(&mut self, context: &mut Context<'_>) -> Result<(), PublishFailure> {
        if let Protocol::Http(reader) = &mut self.protocol {
            if let Some(response) = reader.end() {
                self.on_response(response, context)?;
            }
            if self.in_flight.is_empty() {
                self.close(PublishFailure::Connection(Failure::Closed(None)), 0, context);
                return Ok(());
            }
        }
        let failure = match self.stage {
            Stage::Ready => Failure::Closed(None),
            _ => Failure::ClosedInHandshake,
        };
        Err(PublishFailure::Connection(failure))
    }

    /// The connection has failed. Unsent messages wait for the next one, unless it could not be
    /// opened in the first place.
    fn fail(&mut self, failure: PublishFailure, context: &mut Context<'_>) {
        if self.stage != Stage::Ready {
            context.counts.fail(failure.clone(), self.waiting.len() as u64);
            self.waiting.clear();
        }
        self.close(failure, now_ns() + RETRY_NS, context);
    }

    /// Closes the socket. The fate of unanswered messages is unknown.
    fn close(&mut self, failure: PublishFailure, retry_ns: u64, context: &mut Context<'_>) {
        context.counts.unsure += self.in_flight.len() as u64;
        context.counts.fail(failure, self.in_flight.len() as u64);
        for message in self.in_flight.drain(..) {
            context.counters.refused(message.stream, message.sequence);
        }
        // Closing a socket removes it from the epoll instance.
        self.socket = None;
        self.stage = Stage::Down { retry_ns };
        self.out.clear();
        self.taken = 0;
    }

    fn flights_max(&self) -> usize {
        match self.protocol {
            Protocol::Http(_) => self.builder.pipeline.max(1),
            Protocol::WebSocket(_) => usize::MAX,
        }
    }

    fn deadline_ns(&self, now_ns: u64) -> u64 {
        let timeout_ns = u64::try_from(self.builder.timeout.as_nanos()).unwrap_or(u64::MAX);
        now_ns.saturating_add(timeout_ns)
    }
}

fn protocol(builder: &Arc<RequestBuilder>, number: usize) -> Protocol {
    match builder.by {
        PublishBy::Http { .. } => Protocol::Http(Responses::refused_by(builder.refused.as_deref())),
        PublishBy::WebSocket { .. } => {
            Protocol::WebSocket(WebSocket::new(Arc::clone(builder), number))
        }
    }
}
