//! Listening sockets: one per worker, all on the same port (`SO_REUSEPORT`). The kernel spreads
//! connections over all of them, or over those that [`steer`] names.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, sockopt};

use super::options::{self, optional};

/// The number of connections that may wait to be accepted. The kernel limits it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// The number of unsent bytes that the kernel may hold for one connection before it counts as
/// blocked. Further messages stay in the replay buffer, shared, instead of being copied into the
/// socket.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// A connection that sends nothing can be accepted after this time, in seconds. Until then the
/// kernel keeps only a request socket for it.
const DEFER_ACCEPT_S: u32 = 1;

/// A peer that acknowledges nothing for the heartbeat interval and this time is gone. Up to an
/// interval passes before a heartbeat is written to it, which may be late: so a dead peer is found
/// within two intervals and 20 s.
const USER_TIMEOUT_SLACK: Duration = Duration::from_secs(15);

/// The least time without an acknowledgement after which a peer is gone: for frequent heartbeats,
/// and for none.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(20);

/// The time between two probes of a silent peer. After the second one the peer is gone, once
/// `TCP_USER_TIMEOUT` is over (tcp(7)).
const KEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Without heartbeats, a peer that is silent for this time is probed.
const KEEP_IDLE_WITHOUT_HEARTBEAT: Duration = Duration::from_secs(120);

/// The kernel's maximum of `TCP_KEEPIDLE`.
const KEEP_IDLE_MAX: Duration = Duration::from_secs(32_767);

/// Keeps a port: no other program can bind it while this value exists. It does not listen.
#[derive(Debug)]
pub(crate) struct PortReservation {
    socket: OwnedFd,
    address: SocketAddr,
}

impl PortReservation {
    /// Takes the port. Fails if it is in use: with `SO_REUSEPORT` alone, a second server of the
    /// same user would silently share connections with the first.
    pub(crate) fn take(address: SocketAddr) -> io::Result<PortReservation> {
        let probe = socket(address)?;
        bind(&probe, &address)?;
        // Without `SO_REUSEPORT` this fails if another socket listens on the port.
        let address = SocketAddr::try_from(getsockname(&probe)?).map_err(|_| {
            io::Error::other("the address of the socket is not an internet address")
        })?;
        rustix::net::listen(&probe, 1)?;
        drop(probe);
        let reserved = socket(address)?;
        share_port(&reserved)?;
        bind(&reserved, &address)?;
        Ok(PortReservation { socket: reserved, address })
    }

    /// The reservation of another process, which it has passed.
    pub(crate) fn passed(socket: OwnedFd) -> io::Result<PortReservation> {
        let address = SocketAddr::try_from(getsockname(&socket)?)
            .map_err(|_| io::Error::other("a reserved port has no internet address"))?;
        Ok(PortReservation { socket, address })
    }

    /// The address with the port that the kernel has chosen if the settings say 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl AsFd for PortReservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[derive(Debug)]
pub(crate) enum Port {
    /// Workers listen on it.
    Own(PortReservation),
    /// The service manager listens on it, and has passed its socket.
    Passed(Arc<OwnedFd>, SocketAddr),
}

impl Port {
    /// The address with the port that the kernel has chosen if the settings say 0.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Port::Own(reservation) => reservation.address(),
            Port::Passed(_, address) => *address,
        }
    }

    /// The socket that the service manager has passed.
    pub(crate) fn passed(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Port::Own(_) => None,
            Port::Passed(listener, _) => Some(listener),
        }
    }
}

/// Prepares a listener that the service manager has opened. Its connections have the same options
/// as with [`open`].
pub(crate) fn adopt(listener: TcpListener, heartbeat: Duration) -> io::Result<Port> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = OwnedFd::from(listener);
    rustix::io::fcntl_setfd(&listener, FdFlags::CLOEXEC)?;
    set_options(&listener, heartbeat);
    listen(&listener)?;
    Ok(Port::Passed(Arc::new(listener), address))
}

/// A listener of one worker, which shares its port with the others.
pub(crate) fn open(address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    let listener = prepare(address, heartbeat)?;
    listen(&listener)?;
    Ok(listener)
}

/// As [`open`], but it does not listen yet: no connection comes until [`listen`].
pub(crate) fn prepare(address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    let listener = socket(address)?;
    share_port(&listener)?;
    set_options(&listener, heartbeat);
    bind(&listener, &address)?;
    Ok(listener)
}

/// A listener that does not share its port.
pub(crate) fn open_alone(address: SocketAddr, heartbeat: Duration) -> io::Result<OwnedFd> {
    let listener = socket(address)?;
    set_options(&listener, heartbeat);
    bind(&listener, &address)?;
    listen(&listener)?;
    Ok(listener)
}

pub(crate) fn listen(listener: &OwnedFd) -> io::Result<()> {
    Ok(rustix::net::listen(listener, BACKLOG)?)
}

/// Ends a listener, whatever other processes have copies of it.
pub(crate) fn end(listener: &OwnedFd) {
    // Fails only for one that does not listen.
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
}

/// Sets all options of connections on their listener: accepted sockets inherit them, so that an
/// accept needs no further system call.
///
/// All of them are improvements. Some systems do not have them (gVisor, WSL 1) or do not allow them
/// (a seccomp filter), and the server goes on without.
fn set_options(listener: &OwnedFd, heartbeat: Duration) {
    optional("TCP_NODELAY", sockopt::set_tcp_nodelay(listener, true));
    let user_timeout_ms = user_timeout_ms(heartbeat);
    optional("TCP_USER_TIMEOUT", sockopt::set_tcp_user_timeout(listener, user_timeout_ms));
    if heartbeat.is_zero() {
        // Nothing is ever written to a silent peer: only probes find that it has gone.
        optional("SO_KEEPALIVE", sockopt::set_socket_keepalive(listener, true));
        let idle = KEEP_IDLE_WITHOUT_HEARTBEAT;
        optional("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(listener, idle));
    } else {
        // The times of probes for the connections that `Net::keep_alive` turns them on for.
        let idle = heartbeat.clamp(Duration::from_secs(1), KEEP_IDLE_MAX);
        optional("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(listener, idle));
        optional("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(listener, KEEP_INTERVAL));
    }
    let low_water = options::set_not_sent_low_water(listener, UNSENT_BYTES_MAX);
    optional("TCP_NOTSENT_LOWAT", low_water);
    optional("TCP_DEFER_ACCEPT", options::set_defer_accept(listener, DEFER_ACCEPT_S));
}

fn user_timeout_ms(heartbeat: Duration) -> u32 {
    let timeout = heartbeat.saturating_add(USER_TIMEOUT_SLACK).max(USER_TIMEOUT_MIN);
    // The kernel reads it as an `int`.
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32)
}

/// Makes the kernel give new connections only to the listeners `to`, which are numbered in the
/// order in which they were opened. Connections that wait at other listeners stay there.
pub(crate) fn steer(listener: &OwnedFd, to: &Range<usize>) -> io::Result<()> {
    options::set_reuseport_range(listener, to.start as u32, to.len() as u32)
}

/// The number of connections that wait to be accepted.
pub(crate) fn queued(listener: &OwnedFd) -> u32 {
    options::queued(listener)
}

/// Lets several sockets listen on one port. Without it only one worker could: there is no server.
fn share_port(socket: &OwnedFd) -> io::Result<()> {
    let shared = sockopt::set_socket_reuseport(socket, true);
    shared.map_err(|error| {
        io::Error::other(format!("the socket option SO_REUSEPORT is needed, and fails: {error}"))
    })
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Without it, a port can be taken again only a minute after its last connection has ended.
    optional("SO_REUSEADDR", sockopt::set_socket_reuseaddr(&socket, true));
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // All addresses are those of IPv4, too, whatever `net.ipv6.bindv6only` says.
        optional("IPV6_V6ONLY", sockopt::set_ipv6_v6only(&socket, false));
    }
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
    fn the_accept_queue_shows_its_length_and_age() {
        let listener = open_alone(any_port(), Duration::ZERO).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let _clients: Vec<_> = (0..3)
            .map(|_| {
                let mut client = TcpStream::connect(address).unwrap();
                std::io::Write::write_all(&mut client, b"x").unwrap();
                client
            })
            .collect();
        while queued(&listener) < 3 {
            std::thread::yield_now();
        }
        let first = crate::sys::sockets::accept(&listener).unwrap().expect("it waits");
        assert_eq!(queued(&listener), 2);
        let least = Duration::from_millis(20);
        while crate::sys::sockets::waited(&first) < least {
            std::thread::yield_now();
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
