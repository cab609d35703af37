//! Listening sockets: one per worker on the same port, among which the kernel spreads connections,
//! or some of which take them all.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, sockopt};

use super::options;

/// Connections that may wait to be accepted. The kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// Unsent bytes that the kernel may hold for one connection. Beyond it the message stays in the
/// log, shared, instead of being copied into the socket.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// A connection that sends nothing is handed out after this long; until then it costs the kernel a
/// request socket only.
const DEFER_ACCEPT_S: u32 = 1;

/// A peer that acknowledges nothing for the heartbeat's interval and this long is gone. With the
/// interval until something is written to it, and what heartbeats may be late, that is less than
/// two intervals and 20 s.
const USER_TIMEOUT_SLACK: Duration = Duration::from_secs(15);

/// Or for this long, where the heartbeat is more frequent, or there is none.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(20);

/// From one probe of a silent peer to the next. After the second the peer is gone, once the user
/// timeout is over.
const KEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A peer that is silent for this long is probed where there is no heartbeat.
const KEEP_IDLE_WITHOUT_HEARTBEAT: Duration = Duration::from_secs(120);

/// The kernel takes no more seconds.
const KEEP_IDLE_MAX: Duration = Duration::from_secs(32_767);

/// A port that is taken: nobody else can bind it while this is there. It does not listen.
#[derive(Debug)]
pub(crate) struct PortReservation {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl PortReservation {
    /// Takes the port. It must not be in use: a second server would share connections with the
    /// first.
    pub(crate) fn take(address: SocketAddr) -> io::Result<PortReservation> {
        let probe = socket(address)?;
        bind(&probe, &address)?;
        // Without `SO_REUSEPORT` this fails where somebody listens.
        let address = SocketAddr::try_from(getsockname(&probe)?).map_err(|_| {
            io::Error::other("the address of the socket is not an internet address")
        })?;
        listen(&probe, 1)?;
        drop(probe);
        let reserved = socket(address)?;
        sockopt::set_socket_reuseport(&reserved, true)?;
        bind(&reserved, &address)?;
        Ok(PortReservation { _socket: reserved, address })
    }

    /// The address with the real port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A listener of one worker, which shares its port with those of the others.
pub(crate) fn open(address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    let listener = socket(address)?;
    sockopt::set_socket_reuseport(&listener, true)?;
    start(listener, address, heartbeat)
}

/// A listener that has its port to itself.
pub(crate) fn open_alone(address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    start(socket(address)?, address, heartbeat)
}

/// All options are set here: accepted sockets inherit them, so that accepting costs no further
/// call.
fn start(listener: OwnedFd, address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    sockopt::set_tcp_nodelay(&listener, true)?;
    sockopt::set_tcp_user_timeout(&listener, user_timeout_ms(heartbeat))?;
    if heartbeat.is_zero() {
        // Nothing else would find out that a silent peer is gone.
        sockopt::set_socket_keepalive(&listener, true)?;
        sockopt::set_tcp_keepidle(&listener, KEEP_IDLE_WITHOUT_HEARTBEAT)?;
    } else {
        // For those that are to be probed: see `Net::keep_alive`.
        let idle = heartbeat.clamp(Duration::from_secs(1), KEEP_IDLE_MAX);
        sockopt::set_tcp_keepidle(&listener, idle)?;
        sockopt::set_tcp_keepintvl(&listener, KEEP_INTERVAL)?;
    }
    options::set_not_sent_low_water(&listener, UNSENT_BYTES_MAX)?;
    options::set_defer_accept(&listener, DEFER_ACCEPT_S)?;
    bind(&listener, &address)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn user_timeout_ms(heartbeat: Duration) -> u32 {
    let timeout = heartbeat.saturating_add(USER_TIMEOUT_SLACK).max(USER_TIMEOUT_MIN);
    // The kernel takes it for an `int`.
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32)
}

/// From now on only those listeners of the port take new connections, numbered in the order in
/// which they were opened. Connections that others have waiting stay theirs.
pub(crate) fn steer(listener: &OwnedFd, to: &Range<usize>) -> io::Result<()> {
    options::set_reuseport_range(listener, to.start as u32, to.len() as u32)
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    fn any_port() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    /// How many of the clients each listener has.
    fn accept_all(listeners: &[OwnedFd], clients: &[TcpStream]) -> Vec<usize> {
        for client in clients {
            std::io::Write::write_all(&mut &*client, b"x").unwrap();
        }
        let accept = |listener| {
            std::iter::from_fn(|| crate::sys::sockets::accept(listener).unwrap()).count()
        };
        let mut accepted = vec![0; listeners.len()];
        while accepted.iter().sum::<usize>() < clients.len() {
            for (count, listener) in accepted.iter_mut().zip(listeners) {
                *count += accept(listener);
            }
            std::thread::yield_now();
        }
        accepted
    }

    #[test]
    fn a_port_is_taken_once() {
        let first = PortReservation::take(any_port()).unwrap();
        let address = first.address();
        assert_ne!(address.port(), 0);
        let _listener = open(address, Duration::from_secs(25)).unwrap();
        let error = PortReservation::take(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn some_listeners_take_all_that_comes() {
        let reservation = PortReservation::take(any_port()).unwrap();
        let address = reservation.address();
        let listeners = [(); 4].map(|()| open(address, Duration::ZERO).unwrap());
        for chosen in [1..3, 3..4, 0..2] {
            steer(&listeners[0], &chosen).unwrap();
            let clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
            let accepted = accept_all(&listeners, &clients);
            for (nth, count) in accepted.into_iter().enumerate() {
                assert_eq!(count > 0, chosen.contains(&nth), "listener {nth} of {chosen:?}");
            }
        }
    }

    #[test]
    fn listeners_share_the_port_and_its_connections() {
        let reservation = PortReservation::take(any_port()).unwrap();
        let address = reservation.address();
        let listeners = [(); 2].map(|()| open(address, Duration::ZERO).unwrap());
        let clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accepted = accept_all(&listeners, &clients);
        assert!(accepted.iter().all(|&count| count > 0), "the kernel spreads them by address");
    }
}
