//! Sockets of the client and of the raw loop.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The backlog of a listener: as long as the kernel allows, which limits it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// Connections with the same source address. That is far below the number of local ports, so that
/// the kernel finds a free one at once.
pub(crate) const CONNECTIONS_PER_SOURCE_MAX: usize = 4_000;

/// The number of addresses that [`source_address`] returns.
const SOURCES_MAX: usize = 250 * 250;

/// A blocking listener on a free port of 127.0.0.1, and that port.
pub(crate) fn listener() -> io::Result<(OwnedFd, u16)> {
    let socket = stream_socket(SocketFlags::CLOEXEC)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

/// Starts to connect a non-blocking socket to `port` of 127.0.0.1. Its source address is bound, so
/// that it takes no port of 127.0.0.1, where a server may start to listen.
pub(crate) fn start_connect(source: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
    let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
    match rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// The source address of the connection with this index: 127.0.2.1 and up.
pub(crate) fn source_address(index: usize) -> Ipv4Addr {
    let block = index / CONNECTIONS_PER_SOURCE_MAX % SOURCES_MAX;
    let part = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 0, part(2 + block / 250), part(1 + block % 250))
}

/// Closes with a reset, so that no port stays in `TIME_WAIT` for the next run.
pub(crate) fn reset(socket: OwnedFd) {
    // On failure the port stays in `TIME_WAIT`.
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
}

/// Waits for events: none after `timeout` or a signal.
pub(crate) fn wait(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Duration,
) -> io::Result<()> {
    events.clear();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Registers a socket, edge-triggered, with `index` as its data.
pub(crate) fn register(
    epoll: &OwnedFd,
    socket: impl AsFd,
    index: usize,
    flags: epoll::EventFlags,
) -> io::Result<()> {
    let flags = flags | epoll::EventFlags::ET | epoll::EventFlags::RDHUP;
    Ok(epoll::add(epoll, socket, epoll::EventData::new_u64(index as u64), flags)?)
}

fn stream_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_change_with_the_block_and_stay_on_loopback() {
        assert_eq!(source_address(0), Ipv4Addr::new(127, 0, 2, 1));
        assert_eq!(source_address(CONNECTIONS_PER_SOURCE_MAX - 1), Ipv4Addr::new(127, 0, 2, 1));
        assert_eq!(source_address(CONNECTIONS_PER_SOURCE_MAX), Ipv4Addr::new(127, 0, 2, 2));
        assert_eq!(source_address(CONNECTIONS_PER_SOURCE_MAX * 250), Ipv4Addr::new(127, 0, 3, 1));
        assert!(source_address(usize::MAX).is_loopback());
    }
}
