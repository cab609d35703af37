//! One publishing connection: messages wait here for their turn, go out, and are answered.
//!
//! # Invariants
//!
//! * A stream's messages go out in the order of their sequences, over one connection.
//! * [`Board::published`] is told before a message's first byte is sent, [`Board::refused`] of each
//!   message that was sent and not taken, or not answered.
//! * Every message that was due is in the end counted once: as published, or as a failure.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::answer::{Answer, Answers};
use super::recipe::Recipe;
use super::schedule::Slot;
use super::tally::{PublishFailure, PublishTally, failure_of, record};
use super::websocket::{Heard, WebSocket};
use crate::clients::Board;
use crate::marker::{Mark, now_ns};
use crate::plan::PublishBy;
use crate::tally::Failure;

/// Messages that may wait on a connection for their turn: more will not be sent in any useful time.
const WAITING_MAX: usize = 1 << 17;

/// Bytes that may wait to be taken by the kernel: above it, messages wait as numbers instead.
const OUT_BYTES_MAX: usize = 1 << 20;

/// After a connect that failed, the next one waits so long.
const RETRY_NS: u64 = 100_000_000;

const RECEIVE_BYTES: usize = 16 * 1024;

/// What a connection needs of its thread.
pub struct Desk<'a> {
    /// Where sockets are registered.
    pub epoll: &'a OwnedFd,
    /// Tells clients what is published.
    pub board: &'a Board,
    /// Counts.
    pub tally: &'a mut PublishTally,
    /// Bytes of a payload.
    pub size: usize,
}

/// A message that was sent and not answered.
#[derive(Debug, Clone, Copy)]
struct Flight {
    stream: u32,
    sequence: u32,
    sent_ns: u64,
    /// Where it ends in all that this connection has sent.
    end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No socket; the next may be opened at this time.
    Down { retry_ns: u64 },
    /// The kernel connects.
    Connecting { deadline_ns: u64 },
    /// A WebSocket's handshake is not complete.
    Greeting { deadline_ns: u64 },
    /// Messages can be sent.
    Ready,
}

enum Speech {
    Http(Answers),
    WebSocket(WebSocket),
}

/// One publishing connection.
pub struct Connection {
    /// Its number in its thread, which its events carry.
    token: u64,
    /// Its number in the run.
    number: usize,
    recipe: Arc<Recipe>,
    socket: Option<OwnedFd>,
    stage: Stage,
    /// Connects so far: the next one takes the next address.
    connects: usize,
    out: Vec<u8>,
    /// Bytes of `out` that the kernel has taken.
    taken: usize,
    /// Bytes that the kernel has taken before those of `out`.
    taken_before: u64,
    speech: Speech,
    waiting: VecDeque<Slot>,
    flights: VecDeque<Flight>,
}

impl Connection {
    /// One that is not open yet.
    pub fn new(token: u64, number: usize, recipe: Arc<Recipe>) -> Connection {
        let speech = speech(&recipe, number);
        Connection {
            token,
            number,
            recipe,
            socket: None,
            stage: Stage::Down { retry_ns: 0 },
            connects: 0,
            out: Vec::new(),
            taken: 0,
            taken_before: 0,
            speech,
            waiting: VecDeque::new(),
            flights: VecDeque::new(),
        }
    }

    /// Whether it is not known yet whether messages can be sent.
    pub fn is_opening(&self) -> bool {
        matches!(self.stage, Stage::Connecting { .. } | Stage::Greeting { .. })
    }

    /// Messages that wait for their turn or for an answer.
    pub fn open_messages(&self) -> usize {
        self.waiting.len() + self.flights.len()
    }

    /// Whether [`expire`](Self::expire) has something to look after.
    pub fn is_watched(&self) -> bool {
        let is_stuck = self.stage != Stage::Ready && !self.waiting.is_empty();
        !self.flights.is_empty() || is_stuck || self.is_opening()
    }

    /// A message whose time has come; it goes out with the next [`pump`](Self::pump).
    pub fn enqueue(&mut self, slot: Slot, desk: &mut Desk<'_>) {
        desk.tally.due += 1;
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(slot);
        } else {
            desk.tally.fail(PublishFailure::Behind, 1);
        }
    }

    /// Opens the connection if it is not.
    pub fn open(&mut self, desk: &mut Desk<'_>) {
        let now_ns = now_ns();
        if matches!(self.stage, Stage::Down { retry_ns } if retry_ns <= now_ns)
            && let Err(error) = self.connect(desk, now_ns)
        {
            self.fail(PublishFailure::Connection(failure_of(error)), desk);
        }
    }

    /// Sends what can be sent.
    pub fn pump(&mut self, desk: &mut Desk<'_>) {
        if !self.waiting.is_empty() {
            self.open(desk);
        }
        if self.stage == Stage::Ready {
            while self.flights.len() < self.flights_max() && self.out.len() < OUT_BYTES_MAX {
                let Some(slot) = self.waiting.pop_front() else { break };
                self.start(slot, desk);
            }
        }
        if let Err(error) = self.flush(desk) {
            self.fail(PublishFailure::Connection(failure_of(error)), desk);
        }
    }

    /// The kernel says something about the socket.
    pub fn on_event(&mut self, flags: EventFlags, desk: &mut Desk<'_>) {
        if matches!(self.stage, Stage::Connecting { .. }) {
            self.on_connected(desk);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
            && let Err(failure) = self.receive(desk)
        {
            self.fail(failure, desk);
        }
        self.pump(desk);
    }

    /// Looks for what takes too long.
    pub fn expire(&mut self, now_ns: u64, desk: &mut Desk<'_>) {
        let timeout_ns = u64::try_from(self.recipe.timeout.as_nanos()).unwrap_or(u64::MAX);
        match self.stage {
            Stage::Down { .. } => self.pump(desk),
            Stage::Connecting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::ConnectTimeout), desk);
            }
            Stage::Greeting { deadline_ns } if deadline_ns <= now_ns => {
                self.fail(PublishFailure::Connection(Failure::HandshakeTimeout), desk);
            }
            Stage::Ready => {
                let oldest = self.flights.front().map(|flight| flight.sent_ns);
                if oldest.is_some_and(|sent_ns| now_ns.saturating_sub(sent_ns) >= timeout_ns) {
                    self.fail(PublishFailure::Unanswered, desk);
                }
            }
            _ => {}
        }
    }

    /// Gives up whatever is not published yet.
    pub fn abandon(&mut self, desk: &mut Desk<'_>) {
        desk.tally.fail(PublishFailure::Unsent, self.waiting.len() as u64);
        self.waiting.clear();
        if !self.flights.is_empty() {
            self.fail(PublishFailure::Unanswered, desk);
        }
    }

    fn connect(&mut self, desk: &Desk<'_>, now_ns: u64) -> Result<(), Errno> {
        let addresses = &self.recipe.addresses;
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
        epoll::add(desk.epoll, &socket, EventData::new_u64(self.token), flags)?;
        self.socket = Some(socket);
        self.speech = speech(&self.recipe, self.number);
        self.stage = Stage::Connecting { deadline_ns: self.deadline_ns(now_ns) };
        Ok(())
    }

    fn on_connected(&mut self, desk: &mut Desk<'_>) {
        let Some(socket) = &self.socket else { return };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                return self.fail(PublishFailure::Connection(failure_of(error)), desk);
            }
        }
        self.stage = match &mut self.speech {
            Speech::Http(_) => Stage::Ready,
            Speech::WebSocket(websocket) => {
                websocket.write_handshake(&mut self.out);
                Stage::Greeting { deadline_ns: self.deadline_ns(now_ns()) }
            }
        };
    }

    /// Gives a message its sequence and appends it to what goes out.
    fn start(&mut self, slot: Slot, desk: &mut Desk<'_>) {
        let Slot { intended_ns, stream } = slot;
        // Only this connection publishes to this stream.
        let sequence = desk.board.last_published(stream) + 1;
        desk.board.published(stream, sequence);
        let mark = Mark { run: self.recipe.run, stream, sequence, intended_ns };
        let mut payload = Vec::with_capacity(desk.size);
        mark.write_payload(desk.size, &mut payload);
        match &mut self.speech {
            Speech::Http(_) => self.recipe.write_request(stream, &payload, &mut self.out),
            Speech::WebSocket(websocket) => {
                websocket.write_message(stream, &payload, &mut self.out);
            }
        }
        let sent_ns = now_ns();
        desk.tally.send(intended_ns, sent_ns);
        let end = self.taken_before + self.out.len() as u64;
        self.flights.push_back(Flight { stream, sequence, sent_ns, end });
    }

    fn flush(&mut self, desk: &mut Desk<'_>) -> Result<(), Errno> {
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
        if let Speech::WebSocket(_) = self.speech {
            // Nobody answers: what the kernel has is published.
            while self.flights.pop_front_if(|flight| flight.end <= taken).is_some() {
                desk.tally.published += 1;
            }
        }
        Ok(())
    }

    fn receive(&mut self, desk: &mut Desk<'_>) -> Result<(), PublishFailure> {
        let mut part = [0; RECEIVE_BYTES];
        while let Some(socket) = &self.socket {
            match rustix::net::recv(socket, &mut part, RecvFlags::empty()) {
                Ok((0, _)) => return self.on_end(desk),
                Ok((bytes, _)) => self.hear(&part[..bytes], desk)?,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(PublishFailure::Connection(failure_of(error))),
            }
        }
        Ok(())
    }

    fn hear(&mut self, bytes: &[u8], desk: &mut Desk<'_>) -> Result<(), PublishFailure> {
        match &mut self.speech {
            Speech::Http(reader) => {
                let mut answers = Vec::new();
                let outcome = reader.receive(bytes, &mut answers);
                for answer in answers {
                    self.on_answer(answer, desk)?;
                }
                outcome.map_err(|reason| PublishFailure::Connection(Failure::Protocol(reason)))
            }
            Speech::WebSocket(websocket) => {
                let heard = websocket.hear(bytes, &mut self.out);
                match heard.map_err(PublishFailure::Connection)? {
                    Heard::Ready => self.stage = Stage::Ready,
                    Heard::Nothing => {}
                }
                Ok(())
            }
        }
    }

    fn on_answer(&mut self, answer: Answer, desk: &mut Desk<'_>) -> Result<(), PublishFailure> {
        let Some(flight) = self.flights.pop_front() else {
            let reason = Failure::Protocol("an answer that nobody asked for");
            return Err(PublishFailure::Connection(reason));
        };
        record(&mut desk.tally.answer, now_ns().saturating_sub(flight.sent_ns));
        if let Some(refusal) = answer.refusal {
            desk.board.refused(flight.stream, flight.sequence);
            desk.tally.fail(PublishFailure::Connection(refusal), 1);
        } else {
            desk.tally.published += 1;
        }
        if answer.closes {
            self.close(PublishFailure::Connection(Failure::Closed(None)), 0, desk);
        }
        Ok(())
    }

    /// The server has closed: an idle connection may be, and is opened again when it is needed.
    fn on_end(&mut self, desk: &mut Desk<'_>) -> Result<(), PublishFailure> {
        if let Speech::Http(reader) = &mut self.speech {
            if let Some(answer) = reader.end() {
                self.on_answer(answer, desk)?;
            }
            if self.flights.is_empty() {
                self.close(PublishFailure::Connection(Failure::Closed(None)), 0, desk);
                return Ok(());
            }
        }
        let failure = match self.stage {
            Stage::Ready => Failure::Closed(None),
            _ => Failure::ClosedInHandshake,
        };
        Err(PublishFailure::Connection(failure))
    }

    /// The connection has failed. A message that was not sent goes out with the next connection;
    /// but if there could be none, it has failed as well.
    fn fail(&mut self, failure: PublishFailure, desk: &mut Desk<'_>) {
        if self.stage != Stage::Ready {
            desk.tally.fail(failure.clone(), self.waiting.len() as u64);
            self.waiting.clear();
        }
        self.close(failure, now_ns() + RETRY_NS, desk);
    }

    /// Closes the socket. Nobody knows what became of the messages that were not answered.
    fn close(&mut self, failure: PublishFailure, retry_ns: u64, desk: &mut Desk<'_>) {
        desk.tally.unsure += self.flights.len() as u64;
        desk.tally.fail(failure, self.flights.len() as u64);
        for flight in self.flights.drain(..) {
            desk.board.refused(flight.stream, flight.sequence);
        }
        // Closing a socket takes it out of the epoll set.
        self.socket = None;
        self.stage = Stage::Down { retry_ns };
        self.out.clear();
        self.taken = 0;
    }

    fn flights_max(&self) -> usize {
        match self.speech {
            Speech::Http(_) => self.recipe.pipeline.max(1),
            Speech::WebSocket(_) => usize::MAX,
        }
    }

    fn deadline_ns(&self, now_ns: u64) -> u64 {
        let timeout_ns = u64::try_from(self.recipe.timeout.as_nanos()).unwrap_or(u64::MAX);
        now_ns.saturating_add(timeout_ns)
    }
}

fn speech(recipe: &Arc<Recipe>, number: usize) -> Speech {
    match recipe.by {
        PublishBy::Http { .. } => Speech::Http(Answers::refused_by(recipe.refused.as_deref())),
        PublishBy::WebSocket { .. } => {
            Speech::WebSocket(WebSocket::new(Arc::clone(recipe), number))
        }
    }
}
