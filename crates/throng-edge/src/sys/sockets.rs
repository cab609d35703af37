//! A worker's sockets, for real.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};
use throng_core::{Counter, Counters, Listener, WorkerId};

use super::aio::Aio;
use super::hand_over::Entry;
use super::options;
use super::poll::Poll;
use super::ring::Ring;
use crate::net::{HandOver, Net, Parcel, Transfer};

/// The sockets of one worker thread.
pub(crate) struct Sockets {
    pub(crate) poll: Poll,
    /// Where there is none, `aio` does what it would.
    pub(crate) ring: Option<Ring>,
    /// Where there is neither, each parcel is a call of its own.
    pub(crate) aio: Option<Aio>,
    /// The worker's.
    pub(crate) counters: Arc<Counters>,
    pub(crate) to_control: Entry,
    pub(crate) to_workers: Vec<Entry>,
}

/// The next waiting connection of a listener.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN) => Ok(None),
        // It was gone before it was taken.
        Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Net for Sockets {
    type Socket = OwnedFd;

    fn peer(&self, socket: &OwnedFd) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()
    }

    fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> Transfer {
        loop {
            return match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Transfer::End,
                Ok((_, count)) => Transfer::Bytes(count),
                Err(Errno::AGAIN) => Transfer::Blocked,
                Err(Errno::INTR) => continue,
                Err(_) => Transfer::Gone,
            };
        }
    }

    fn write(&mut self, socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Transfer {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let result = match slices {
                [only] => rustix::net::send(socket, only, flags),
                _ => {
                    let mut control = SendAncillaryBuffer::default();
                    rustix::net::sendmsg(socket, slices, &mut control, flags)
                }
            };
            return match result {
                Ok(count) => Transfer::Bytes(count),
                Err(Errno::AGAIN) => Transfer::Blocked,
                Err(Errno::INTR) => continue,
                Err(_) => Transfer::Gone,
            };
        }
    }

    fn write_each(&mut self, parcels: &[Parcel<'_, OwnedFd>], transfers: &mut Vec<Transfer>) {
        let first = transfers.len();
        let written = self.ring.as_mut().map(|ring| ring.write_each(parcels, transfers));
        self.counters.add(Counter::RingSends, (transfers.len() - first) as u64);
        if let Some(Err(error)) = written {
            // It did not begin with the rest, and cannot be relied on any more.
            self.ring = None;
            self.aio = Aio::open().ok();
            self.counters.add(Counter::RingFailed, 1);
            let worker = std::thread::current();
            tracing::warn!(
                worker = worker.name(),
                %error,
                "io_uring failed: this worker's fan-outs do without now"
            );
        }
        // A single one gains nothing by the detour.
        if let Some(aio) = self.aio.as_mut().filter(|_| self.ring.is_none())
            && parcels.len() > 1
        {
            aio.write_each(&parcels[transfers.len() - first..], transfers);
        }
        for parcel in &parcels[transfers.len() - first..] {
            transfers.push(self.write(parcel.socket, &[IoSlice::new(parcel.bytes)]));
        }
    }

    fn watch(&mut self, socket: &OwnedFd, token: u64) -> bool {
        self.poll.add_connection(socket, token).is_ok()
    }

    fn watch_writable(&mut self, socket: &OwnedFd, token: u64) -> bool {
        self.poll.add_writable(socket, token).is_ok()
    }

    fn unacknowledged_bytes(&self, socket: &OwnedFd) -> usize {
        options::unacknowledged_bytes(socket)
    }

    fn keep_alive(&mut self, socket: &OwnedFd) {
        // What could fail is a socket whose peer is gone already. Its times are the listener's.
        let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    }

    fn finish(&mut self, socket: &OwnedFd) {
        // A peer that is gone already needs no telling.
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
    }

    fn to_control(&mut self, socket: OwnedFd, bytes: &[u8]) -> Result<(), OwnedFd> {
        // The descriptor lives on in the control plane: it must not be reported here any more.
        let _ = self.poll.remove(&socket);
        match self.to_control.send(
            HandOver::between_planes(Listener::Public),
            socket.as_fd(),
            bytes,
        ) {
            Ok(()) => Ok(()),
            Err(_) => Err(socket),
        }
    }

    fn to_worker(
        &mut self,
        worker: WorkerId,
        socket: OwnedFd,
        bytes: &[u8],
    ) -> Result<(), OwnedFd> {
        // As above; one that has just been accepted is not watched yet.
        let _ = self.poll.remove(&socket);
        let entry = &self.to_workers[usize::from(worker.0)];
        match entry.send(HandOver::TO_WORKER, socket.as_fd(), bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, recv, socketpair};

    use super::*;
    use crate::sys::hand_over;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    /// A ring that takes requests from nobody but the thread that has opened it, which is gone.
    fn failing_ring() -> Option<Ring> {
        crate::sys::ring::for_test(std::thread::spawn(Ring::open).join().unwrap())
    }

    #[test]
    fn a_ring_that_fails_is_given_up_and_counted_and_nothing_is_lost() {
        let Some(ring) = failing_ring() else { return };
        let counters = Arc::new(Counters::default());
        let mut sockets = Sockets {
            poll: Poll::new().unwrap(),
            ring: Some(ring),
            aio: None,
            counters: Arc::clone(&counters),
            to_control: hand_over::pair().unwrap().0,
            to_workers: Vec::new(),
        };
        let pairs = [pair(), pair(), pair()];
        for round in [b"1", b"2"] {
            let parcels: Vec<_> =
                pairs.iter().map(|(socket, _)| Parcel { socket, bytes: round }).collect();
            let mut transfers = Vec::new();
            sockets.write_each(&parcels, &mut transfers);
            assert_eq!(transfers, [Transfer::Bytes(1); 3]);
            assert_eq!(counters.get(Counter::RingFailed), 1);
        }
        for (_, far) in &pairs {
            let mut buffer = [0; 8];
            let (_, count) = recv(far, &mut buffer[..], RecvFlags::DONTWAIT).unwrap();
            assert_eq!(buffer[..count], *b"12");
        }
    }
}
