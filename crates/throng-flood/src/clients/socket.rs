//! The few system calls on sockets.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::late_port::choose_port_late;
use super::sources::Source;
use crate::tally::Failure;

/// Starts to connect; the socket does not block.
pub(super) fn connect(source: Option<Source>, target: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match target {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(source) = source {
        if source.is_port_free() {
            // A kernel without it gives each source address one range for all destinations.
            let _ = choose_port_late(&socket);
        } else {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        rustix::net::bind(&socket, &source.address)?;
    }
    match rustix::net::connect(&socket, target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Whether another source may have a port left.
pub(super) fn is_port_taken(error: Errno) -> bool {
    matches!(error, Errno::ADDRNOTAVAIL | Errno::ADDRINUSE)
}

/// Registers a socket under a number, edge-triggered.
pub(super) fn register(
    epoll: &OwnedFd,
    socket: impl AsFd,
    number: u32,
    wants_to_send: bool,
) -> Result<(), Errno> {
    epoll::add(epoll, socket, epoll::EventData::new_u64(number.into()), interest(wants_to_send))
}

/// Asks to be told also when there is room to send.
pub(super) fn watch_room(epoll: &OwnedFd, socket: impl AsFd, number: u32) -> Result<(), Errno> {
    epoll::modify(epoll, socket, epoll::EventData::new_u64(number.into()), interest(true))
}

fn interest(wants_to_send: bool) -> EventFlags {
    let out = if wants_to_send { EventFlags::OUT } else { EventFlags::empty() };
    EventFlags::IN | EventFlags::RDHUP | EventFlags::ET | out
}

/// Closes with a reset, so that no port lingers in `TIME_WAIT` when clients come back.
pub(super) fn reset(socket: OwnedFd) {
    // A refusal only means a slower close.
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
}

/// Why an attempt to connect, or a connection, has failed.
pub(super) fn failure(error: Errno) -> Failure {
    match error {
        Errno::CONNREFUSED => Failure::Refused,
        Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Failure::Reset,
        Errno::TIMEDOUT => Failure::ConnectTimeout,
        Errno::MFILE | Errno::NFILE => Failure::NoDescriptors,
        error if is_port_taken(error) => Failure::NoPorts,
        error => Failure::Os(error.raw_os_error()),
    }
}
