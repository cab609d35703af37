//! A worker's sockets, for real.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};
use throng_core::{Counter, Counters, WorkerId};

use super::hand_over::Entry;
use super::poll::Poll;
use super::ring::Ring;
use crate::net::{Net, Parcel, Transfer};

/// The sockets of one worker thread.
pub(crate) struct Sockets {
    pub(crate) poll: Poll,
    /// If there is none, each parcel is a call of its own.
    pub(crate) ring: Option<Ring>,
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
        if let Some(ring) = &mut self.ring
            && let Err(error) = ring.write_each(parcels, transfers)
        {
            // It did not begin with the rest, and cannot be relied on any more.
            self.ring = None;
            self.counters.add(Counter::RingFailed, 1);
            let worker = std::thread::current();
            tracing::warn!(
                worker = worker.name(),
                %error,
                "io_uring failed: this worker's fan-outs take a call for each subscriber now"
            );
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

    fn finish(&mut self, socket: &OwnedFd) {
        // A peer that is gone already needs no telling.
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
    }

    fn to_control(&mut self, socket: OwnedFd, bytes: &[u8]) -> Result<(), OwnedFd> {
        // The descriptor lives on in the control plane: it must not be reported here any more.
        let _ = self.poll.remove(&socket);
        match self.to_control.send(socket.as_fd(), bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(socket),
        }
    }

    fn to_worker(&mut self, worker: WorkerId, socket: OwnedFd) -> Result<(), OwnedFd> {
        match self.to_workers[usize::from(worker.0)].send(socket.as_fd(), &[]) {
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
        let ring = std::thread::spawn(Ring::open).join().unwrap();
        ring.inspect_err(|error| eprintln!("skipped, no io_uring: {error}")).ok()
    }

    #[test]
    fn a_ring_that_fails_is_given_up_and_counted_and_nothing_is_lost() {
        let Some(ring) = failing_ring() else { return };
        let counters = Arc::new(Counters::default());
        let mut sockets = Sockets {
            poll: Poll::new().unwrap(),
            ring: Some(ring),
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
