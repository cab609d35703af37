//! Connections over kernel sockets, watched by one edge-triggered epoll.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::shared::Shared;
use super::sources::ATTEMPTS_MAX;
use crate::failure::Failure;
use crate::marker::now_ns;

const EVENTS_MAX: usize = 512;

/// The event number of the waking descriptor. No client has it.
pub(super) const WAKE: u64 = u64::MAX;

/// The event number of the timer.
pub(super) const TIME: u64 = u64::MAX - 1;

/// The sockets of one thread's clients, by position.
pub(super) struct Sockets {
    shared: Arc<Shared>,
    /// The number of the thread.
    index: usize,
    epoll: OwnedFd,
    /// Wakes publishers: timeouts of epoll are whole milliseconds, and late. Both together would
    /// cost them a second timer of the kernel: 10 µs in a virtual machine.
    timer: Option<OwnedFd>,
    open: Vec<Option<OwnedFd>>,
    /// How often clients have failed, if that changes their target. Shorter than `open` where none
    /// has.
    failures: Vec<u32>,
}

impl Sockets {
    /// For at most `capacity` clients; `wake` makes an event with the number [`WAKE`].
    pub(super) fn new(
        shared: Arc<Shared>,
        index: usize,
        capacity: usize,
        wake: &OwnedFd,
    ) -> Result<Sockets, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, epoll::EventData::new_u64(WAKE), EventFlags::IN)?;
        let mut timer = None;
        if shared.publisher.is_some() {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timer.insert(timerfd_create(TimerfdClockId::Monotonic, flags)?);
            // Setting the timer again clears its readiness, so it is never read.
            let (data, flags) = (epoll::EventData::new_u64(TIME), EventFlags::IN | EventFlags::ET);
            epoll::add(&epoll, &*timer, data, flags)?;
        }
        // Pages become resident as clients are opened.
        let open = Vec::with_capacity(capacity);
        Ok(Sockets { shared, index, epoll, timer, open, failures: Vec::new() })
    }

    /// A buffer for the events of [`wait`](Self::wait).
    pub(super) fn events() -> Vec<epoll::Event> {
        Vec::with_capacity(EVENTS_MAX)
    }

    /// Waits for events, at most until this time.
    pub(super) fn wait(&self, events: &mut Vec<epoll::Event>, until_ns: u64) {
        events.clear();
        let mut timeout = None;
        if let Some(timer) = &self.timer {
            // Zero would disarm it.
            let it_value = timespec(until_ns.max(1));
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            let set = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
            debug_assert!(set.is_ok(), "{set:?}");
        } else {
            timeout = Some(timespec(until_ns.saturating_sub(now_ns())));
        }
        let space = rustix::buffer::spare_capacity(events);
        let waited = epoll::wait(&self.epoll, space, timeout.as_ref());
        debug_assert!(matches!(waited, Ok(_) | Err(Errno::INTR)), "{waited:?}");
    }

    /// Starts to connect; see [`ClientConnections::open`](super::network::ClientConnections::open).
    pub(super) fn open(&mut self, position: usize, request: &[u8]) -> Result<usize, Failure> {
        self.begin(position, request).map_err(Failure::from)
    }

    fn begin(&mut self, position: usize, request: &[u8]) -> Result<usize, Errno> {
        let socket = self.connect(position)?;
        if self.shared.publisher.is_some() {
            // Some systems lack it. Requests are single writes, so little is lost.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
        }
        let sent = if request.is_empty() { 0 } else { send_some(&socket, request)? };
        let data = epoll::EventData::new_u64(position as u64);
        // Without a request, being writable is being connected.
        epoll::add(&self.epoll, &socket, data, interest(sent == 0 || sent < request.len()))?;
        if position >= self.open.len() {
            self.open.resize_with(position + 1, || None);
        }
        self.open[position] = Some(socket);
        Ok(sent)
    }

    fn connect(&self, position: usize) -> Result<OwnedFd, Errno> {
        let shared = &self.shared;
        let target = self.target(position);
        let source_number = shared.source_number(self.index, position);
        let mut attempt = 0;
        loop {
            let source = shared.sources.of(source_number, attempt);
            attempt += 1;
            match connect(source, target) {
                Err(error)
                    if is_port_taken(error) && source.is_some() && attempt < ATTEMPTS_MAX => {}
                outcome => return outcome,
            }
        }
    }

    fn target(&self, position: usize) -> &SocketAddr {
        let failures = self.failures.get(position).copied().unwrap_or_default();
        self.shared.target(self.shared.number(self.index, position), failures as usize)
    }

    /// The client has failed: its next connection goes elsewhere, if there is another server.
    pub(super) fn fail_over(&mut self, position: usize) {
        if !self.shared.has_others() {
            return;
        }
        if position >= self.failures.len() {
            self.failures.resize(position + 1, 0);
        }
        self.failures[position] = self.failures[position].saturating_add(1);
    }

    pub(super) fn is_open(&self, position: usize) -> bool {
        self.of(position).is_some()
    }

    fn of(&self, position: usize) -> Option<&OwnedFd> {
        self.open.get(position)?.as_ref()
    }

    /// Sends bytes and returns how many were accepted: 0 if the connection is closed, in progress
    /// or full.
    pub(super) fn send(&self, position: usize, bytes: &[u8]) -> Result<usize, Failure> {
        let Some(socket) = self.of(position) else { return Ok(0) };
        send_some(socket, bytes).map_err(Failure::from)
    }

    /// Requests an event when the socket is writable.
    pub(super) fn watch_writable(&self, position: usize) -> Result<(), Failure> {
        let Some(socket) = self.of(position) else { return Ok(()) };
        let data = epoll::EventData::new_u64(position as u64);
        epoll::modify(&self.epoll, socket, data, interest(true)).map_err(Failure::from)
    }

    /// Receives bytes: `None` if there are none, 0 at the end of the connection.
    pub(super) fn receive(
        &self,
        position: usize,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Failure> {
        let Some(socket) = self.of(position) else { return Ok(None) };
        loop {
            match rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _)) => return Ok(Some(bytes)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The pending error of a socket.
    pub(super) fn failure(&self, position: usize) -> Option<Failure> {
        let error = match sockopt::socket_error(self.of(position)?) {
            Ok(Err(error)) | Err(error) => error,
            Ok(Ok(())) => return None,
        };
        Some(error.into())
    }

    /// Closes a socket. With a reset, no port stays in `TIME_WAIT` when clients reconnect.
    pub(super) fn close(&mut self, position: usize, with_reset: bool) {
        if let Some(socket) = self.open.get_mut(position).and_then(Option::take)
            && with_reset
        {
            // An error only means a slower close.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }

    /// Resets all sockets.
    pub(super) fn close_all(&mut self) {
        (0..self.open.len()).for_each(|position| self.close(position, true));
    }
}

/// Starts a non-blocking connect.
fn connect(source: Option<SocketAddr>, target: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match target {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(source) = source {
        if source.port() == 0 {
            // `connect` then chooses the local port, knowing the destination, so that each
            // destination has the whole range of ports. Otherwise `bind` would choose it, and the
            // source address would have one range for all destinations.
            let _ = setsockopt(&socket, IpBindAddressNoPort, &true);
        } else {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        rustix::net::bind(&socket, &source)?;
    }
    match rustix::net::connect(&socket, target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

fn timespec(ns: u64) -> Timespec {
    let time = Duration::from_nanos(ns);
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

fn interest(wants_to_send: bool) -> EventFlags {
    let out = if wants_to_send { EventFlags::OUT } else { EventFlags::empty() };
    EventFlags::IN | EventFlags::RDHUP | EventFlags::ET | out
}

/// Sends bytes and returns how many the socket accepted: none if it is not connected or full.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error),
    }
}

/// True if another source may have a free port.
fn is_port_taken(error: Errno) -> bool {
    matches!(error, Errno::ADDRNOTAVAIL | Errno::ADDRINUSE)
}
