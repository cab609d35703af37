//! The connections of one client thread: connect, count deliveries, answer pings.
//!
//! All of it stays on one thread with a private descriptor table, which exchanges only numbers with
//! other threads ([`super`]). Deliveries are counted in bytes: a connection has a round's message
//! once it has received as many bytes as the message's frame has.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::target::Target;
use crate::raw_server::thread_cpu_ns;
use crate::{frame, net};

/// Connections of all threads that connect at the same time: enough to keep the server busy, and
/// far below the backlog of a listener.
const IN_FLIGHT_MAX: usize = 256;

/// The maximum time until all connections are subscribed.
const CONNECT_DEADLINE: Duration = Duration::from_secs(120);

/// The size of the receive buffer that all connections share: more than a round leaves in a socket.
const RECEIVE_BYTES: usize = 64 * 1024;

/// Events taken in one wait.
const EVENTS_MAX: usize = 512;

/// The interval at which a wait checks its deadline.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// Connections for a thread to add.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// How they become subscribers.
    pub(crate) target: Target,
    /// The number of the first connection. Numbers are unique over all threads.
    pub(crate) first: usize,
    /// The distance to the thread's next connection: the number of threads.
    pub(crate) step: usize,
    /// All numbers are below this.
    pub(crate) end: usize,
    /// Connection `i` goes to port `i % ports.len()`.
    pub(crate) ports: Arc<[u16]>,
}

/// The deliveries of a round on one thread.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// When each connection had the whole message.
    pub(crate) completed: Vec<Instant>,
    /// Connections without the whole message at the deadline.
    pub(crate) missing: usize,
    /// Connections that the server closed.
    pub(crate) closed: usize,
    /// Connections that received more than the message.
    pub(crate) surplus: usize,
    /// CPU time of the thread for it.
    pub(crate) cpu_ns: u64,
}

/// Heartbeats of parked connections, and the end of their parking.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// Connections that have had at least one heartbeat.
    pub(crate) pinged: AtomicUsize,
    /// Heartbeats of all connections.
    pub(crate) pings: AtomicUsize,
    /// Set to end the parking.
    pub(crate) stop: AtomicBool,
}

/// The connections of one thread.
pub(crate) struct Subscribers {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    received_bytes: usize,
    is_pinged: bool,
}

/// A connection that is not yet a subscriber.
struct Pending {
    request: Option<Vec<u8>>,
    received: Vec<u8>,
}

impl Subscribers {
    /// Starts without connections.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; RECEIVE_BYTES],
        })
    }

    /// Adds connections and waits until each is a subscriber.
    pub(crate) fn connect(&mut self, batch: &Batch) -> Result<()> {
        let deadline = Instant::now() + CONNECT_DEADLINE;
        let max_in_flight = (IN_FLIGHT_MAX / batch.step).max(1);
        let mut numbers = (batch.first..batch.end).step_by(batch.step);
        let mut pending: HashMap<usize, Pending> = HashMap::with_capacity(max_in_flight);
        loop {
            for number in numbers.by_ref().take(max_in_flight - pending.len()) {
                let position = self.start(batch, number)?;
                let request = batch.target.request(number);
                pending.insert(position, Pending { request, received: Vec::new() });
            }
            if pending.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let done = self.connections.len() - pending.len();
                bail!("{done} connections of {} are subscribed at the deadline", batch.end);
            }
            net::wait(&self.epoll, &mut self.events, WAIT_STEP)?;
            let events = std::mem::take(&mut self.events);
            for event in &events {
                let position = position(event)?;
                let Some(waiting) = pending.get_mut(&position) else {
                    // A heartbeat of a connection that is subscribed.
                    self.answer_pings(position)?;
                    continue;
                };
                if self.advance(position, event.flags, waiting, &batch.target)? {
                    pending.remove(&position);
                }
            }
            self.events = events;
        }
    }

    fn start(&mut self, batch: &Batch, number: usize) -> Result<usize> {
        let port = batch.ports[number % batch.ports.len()];
        let socket = net::start_connect(net::source_address(number), port)
            .with_context(|| format!("cannot start connection {number}"))?;
        let position = self.connections.len();
        net::register(&self.epoll, &socket, position, EventFlags::IN | EventFlags::OUT)?;
        self.connections.push(Connection { socket, received_bytes: 0, is_pinged: false });
        Ok(position)
    }

    /// Handles an event of a connection that is not subscribed. Returns whether it is now.
    fn advance(
        &mut self,
        position: usize,
        flags: EventFlags,
        pending: &mut Pending,
        target: &Target,
    ) -> Result<bool> {
        let socket = &self.connections[position].socket;
        if flags.intersects(EventFlags::ERR | EventFlags::HUP | EventFlags::RDHUP) {
            sockopt::socket_error(socket)?.context("a connection was refused")?;
            bail!("a connection was closed before it was subscribed");
        }
        if flags.contains(EventFlags::OUT)
            && let Some(request) = pending.request.take()
        {
            let sent = rustix::net::send(socket, &request, SendFlags::NOSIGNAL)?;
            ensure!(sent == request.len(), "only {sent} bytes of a request were taken");
        }
        if matches!(target, Target::Raw) {
            return Ok(flags.contains(EventFlags::OUT));
        }
        if !flags.contains(EventFlags::IN) {
            return Ok(false);
        }
        while let Some(bytes) = receive(socket, &mut self.buffer)? {
            ensure!(bytes > 0, "a connection was closed before it was subscribed");
            pending.received.extend_from_slice(&self.buffer[..bytes]);
        }
        let head_bytes =
            target.response_bytes(&pending.received).map_err(|error| anyhow!(error))?;
        Ok(head_bytes.is_some())
    }

    /// Starts a round: resets the counts of received bytes.
    pub(crate) fn reset_counts(&mut self) {
        for connection in &mut self.connections {
            connection.received_bytes = 0;
        }
    }

    /// Receives until every connection has `message_bytes` bytes or the deadline has passed.
    pub(crate) fn receive_round(
        &mut self,
        message_bytes: usize,
        deadline: Instant,
    ) -> Result<Part> {
        let before_ns = thread_cpu_ns();
        let mut part =
            Part { completed: Vec::with_capacity(self.connections.len()), ..Part::default() };
        while part.completed.len() < self.connections.len()
            && part.closed == 0
            && Instant::now() < deadline
        {
            net::wait(&self.epoll, &mut self.events, WAIT_STEP)?;
            for event in &self.events {
                let connection = &mut self.connections[position(event)?];
                drain(connection, &mut self.buffer, message_bytes, &mut part)?;
            }
        }
        part.missing = self.connections.len() - part.completed.len();
        part.cpu_ns = thread_cpu_ns().saturating_sub(before_ns);
        Ok(part)
    }

    /// Answers pings until [`Parking::stop`] is set.
    pub(crate) fn park(&mut self, parking: &Parking) -> Result<()> {
        while !parking.stop.load(Ordering::Relaxed) {
            net::wait(&self.epoll, &mut self.events, WAIT_STEP)?;
            let events = std::mem::take(&mut self.events);
            for event in &events {
                let position = position(event)?;
                let pings = self.answer_pings(position)?;
                parking.pings.fetch_add(pings, Ordering::Relaxed);
                let connection = &mut self.connections[position];
                if pings > 0 && !connection.is_pinged {
                    connection.is_pinged = true;
                    parking.pinged.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.events = events;
        }
        Ok(())
    }

    /// Answers the pings of one connection. Returns the number of its heartbeats.
    fn answer_pings(&mut self, position: usize) -> Result<usize> {
        let socket = &self.connections[position].socket;
        let mut answered = 0;
        while let Some(bytes) = receive(socket, &mut self.buffer)? {
            ensure!(bytes > 0, "the server closed a parked connection");
            let (pongs, count) = frame::pongs(&self.buffer[..bytes])
                .context("a parked connection received something else than a heartbeat")?;
            if !pongs.is_empty() {
                let sent = rustix::net::send(socket, &pongs, SendFlags::NOSIGNAL)?;
                ensure!(sent == pongs.len(), "only {sent} bytes of a pong were taken");
            }
            answered += count;
        }
        Ok(answered)
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        for connection in self.connections.drain(..) {
            net::reset(connection.socket);
        }
    }
}

fn position(event: &epoll::Event) -> Result<usize> {
    let data = event.data;
    Ok(usize::try_from(data.u64())?)
}

/// Receives once: `None` if nothing is there, 0 at the end of the connection.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    match rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()) {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error).context("a connection failed"),
    }
}

/// Reads and counts all bytes of one connection. A read that does not fill the buffer has emptied
/// the socket, and later bytes raise a new event.
fn drain(
    connection: &mut Connection,
    buffer: &mut [u8],
    message_bytes: usize,
    part: &mut Part,
) -> Result<()> {
    while let Some(bytes) = receive(&connection.socket, buffer)? {
        let before = connection.received_bytes;
        connection.received_bytes += bytes;
        if bytes == 0 {
            part.closed += 1;
        } else if before < message_bytes && connection.received_bytes >= message_bytes {
            part.completed.push(Instant::now());
        }
        if before <= message_bytes && connection.received_bytes > message_bytes {
            part.surplus += 1;
        }
        if bytes < buffer.len() {
            break;
        }
    }
    Ok(())
}
