//! The kernel's sockets as a worker's [`Net`].

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};
use throng_core::WorkerId;

use super::copies::Copies;
use super::epoll::Epoll;
use super::handoff::HandoffSender;
use super::io_uring::IoUring;
use super::linux_aio::LinuxAio;
use super::options;
use crate::connection::Token;
use crate::counters::{Counter, Counters};
use crate::net::{HandoffHeader, Net, Read, Transfer, WriteRequest};

/// The sockets of one worker thread.
pub(crate) struct KernelSockets {
    pub(crate) epoll: Epoll,
    /// Writes to many sockets in one call; `None` if the kernel or the settings do not allow it.
    pub(crate) io_uring: Option<IoUring>,
    /// The same without io_uring. If both are `None`, each write is a call of its own.
    pub(crate) aio: Option<LinuxAio>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) to_control: HandoffSender,
    /// While set, no connection goes to the control plane: it is about to leave for another
    /// process.
    pub(crate) is_held: Arc<AtomicBool>,
    /// KernelSockets of which another process has copies.
    pub(crate) copies: Copies,
    /// The channels to all workers, in order.
    pub(crate) to_workers: Vec<HandoffSender>,
}

/// Accepts the next connection of a listener; `None` while none waits.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN) => Ok(None),
        // The peer closed it before it was accepted.
        Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How long a connection has waited that was just accepted: since its peer last sent something.
pub(crate) fn waited(socket: &OwnedFd) -> Duration {
    options::silence(socket)
}

/// Waits until a connection waits at the listener, or the time is up, or a signal comes.
pub(crate) fn wait_readable(listener: &OwnedFd, time: Duration) {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // An error means a turn without a wait.
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
}

impl Net for KernelSockets {
    type Socket = OwnedFd;

    fn peer(&self, socket: &OwnedFd) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()
    }

    fn read(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> Read {
        loop {
            return match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Read::End,
                Ok((_, count)) => Read::Bytes(count),
                Err(Errno::AGAIN) => Read::Blocked,
                Err(Errno::INTR) => continue,
                Err(_) => Read::Gone,
            };
        }
    }

    fn write(&mut self, socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Transfer {
        send(|| match slices {
            [only] => rustix::net::send(socket, only, SEND),
            _ => {
                let mut control = SendAncillaryBuffer::default();
                rustix::net::sendmsg(socket, slices, &mut control, SEND)
            }
        })
    }

    fn write_last(&mut self, socket: &OwnedFd, bytes: &[u8]) -> Transfer {
        // The kernel keeps what does not fill a packet, and `close` or `shutdown` sends it.
        send(|| rustix::net::send(socket, bytes, SEND | SendFlags::MORE))
    }

    fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) {
        let first = transfers.len();
        let io_uring = self.io_uring.as_mut();
        let written = io_uring.map(|io_uring| io_uring.write_each(requests, transfers));
        self.counters.add(Counter::IoUringSends, (transfers.len() - first) as u64);
        if let Some(Err(error)) = written {
            // The requests without a transfer have not been submitted.
            self.io_uring = None;
            self.aio = LinuxAio::open().ok();
            self.counters.add(Counter::IoUringFailed, 1);
            let worker = std::thread::current();
            tracing::warn!(
                worker = worker.name(),
                %error,
                "io_uring failed: this worker's fan-outs do without now"
            );
        }
        // For one request a plain call is as cheap.
        if let Some(aio) = self.aio.as_mut().filter(|_| self.io_uring.is_none())
            && requests.len() > 1
        {
            aio.write_each(&requests[transfers.len() - first..], transfers);
        }
        for request in &requests[transfers.len() - first..] {
            transfers.push(self.write(request.socket, &[IoSlice::new(request.bytes)]));
        }
    }

    fn watch(&mut self, socket: &OwnedFd, token: Token) -> bool {
        self.epoll.add_connection(socket, token.bits()).is_ok()
    }

    fn watch_writable(&mut self, socket: &OwnedFd, token: Token) -> bool {
        self.epoll.add_writable(socket, token.bits()).is_ok()
    }

    fn unacknowledged_bytes(&self, socket: &OwnedFd) -> usize {
        options::unacknowledged_bytes(socket)
    }

    fn keep_alive(&mut self, socket: &OwnedFd) {
        // Fails only if the peer has gone already. The times of the probes are the listener's.
        let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    }

    fn bound_unread(&mut self, socket: &OwnedFd) {
        options::bound_unread(socket);
    }

    fn bound_unsent(&mut self, socket: &OwnedFd) {
        options::bound_unsent(socket);
    }

    fn resume(&mut self, _: &OwnedFd) {}

    fn reset(&mut self, socket: &OwnedFd) {
        // Fails only if the peer has gone already.
        let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }

    fn finish(&mut self, socket: &OwnedFd) {
        // Fails only if the peer has gone already.
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
    }

    fn close(&mut self, socket: OwnedFd) {
        if self.copies.remove(&socket) {
            let _ = self.epoll.remove(&socket);
            // Fails only if the peer has gone already.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    fn opened(&mut self, socket: &OwnedFd) {
        self.copies.remove(socket);
    }

    fn arrived(
        &mut self,
        header: HandoffHeader,
        socket: &OwnedFd,
        _bytes: &mut [u8],
    ) -> Option<usize> {
        self.copies.remove(socket);
        (!header.is_tls).then_some(0)
    }

    fn to_control(
        &mut self,
        header: HandoffHeader,
        socket: OwnedFd,
        bytes: &[u8],
    ) -> Result<(), OwnedFd> {
        self.copies.remove(&socket);
        // The socket stays open in the control plane: epoll would go on reporting it here.
        let _ = self.epoll.remove(&socket);
        if self.is_held.load(Ordering::SeqCst) {
            return Err(socket);
        }
        match self.to_control.send(header, socket.as_fd(), bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(socket),
        }
    }

    fn to_worker(
        &mut self,
        worker: WorkerId,
        header: HandoffHeader,
        socket: OwnedFd,
        bytes: &[u8],
    ) -> Result<(), OwnedFd> {
        self.copies.remove(&socket);
        // As above. Fails for a socket that was just accepted, which is not registered yet.
        let _ = self.epoll.remove(&socket);
        let sender = &self.to_workers[usize::from(worker.0)];
        match sender.send(header, socket.as_fd(), bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(socket),
        }
    }
}

const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Sends, again if a signal has interrupted it.
fn send(mut call: impl FnMut() -> rustix::io::Result<usize>) -> Transfer {
    loop {
        return match call() {
            Ok(count) => Transfer::Bytes(count),
            Err(Errno::AGAIN) => Transfer::Blocked,
            Err(Errno::INTR) => continue,
            Err(_) => Transfer::Gone,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::batch::tests::{pair, received};
    use crate::sys::{handoff, io_uring};

    /// An instance that takes entries only from the thread that has opened it, which has ended.
    fn failing_io_uring() -> Option<IoUring> {
        io_uring::for_test(std::thread::spawn(IoUring::open).join().unwrap())
    }

    #[test]
    fn a_socket_that_is_closed_ends_whatever_copies_there_are() {
        let mut sockets = sockets(None);
        let (socket, far) = pair();
        let copy = socket.try_clone().unwrap();
        sockets.copies.insert(std::os::fd::AsRawFd::as_raw_fd(&socket));
        sockets.close(socket);
        assert_eq!(rustix::io::read(&far, &mut [0; 8]), Ok(0), "the end of the stream");
        drop(copy);
    }

    #[test]
    fn the_last_bytes_come_with_the_end_of_the_stream() {
        let mut sockets = sockets(None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        let near = OwnedFd::from(near);
        assert_eq!(sockets.write_last(&near, b"goodbye"), Transfer::Bytes(7));
        // They wait for the end.
        far.set_nonblocking(true).unwrap();
        let early = std::io::Read::read(&mut far, &mut [0; 8]);
        assert_eq!(early.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        drop(near);
        far.set_nonblocking(false).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut far, &mut text).unwrap();
        assert_eq!(text, "goodbye");
    }

    fn sockets(io_uring: Option<IoUring>) -> KernelSockets {
        KernelSockets {
            epoll: Epoll::new().unwrap(),
            io_uring,
            aio: None,
            counters: Arc::default(),
            to_control: handoff::pair().unwrap().0,
            is_held: Arc::default(),
            copies: Copies::default(),
            to_workers: Vec::new(),
        }
    }

    #[test]
    fn a_failed_io_uring_is_replaced_without_loss() {
        let Some(io_uring) = failing_io_uring() else { return };
        let mut sockets = sockets(Some(io_uring));
        let counters = Arc::clone(&sockets.counters);
        let pairs = [pair(), pair(), pair()];
        for round in [b"1", b"2"] {
            let requests: Vec<_> =
                pairs.iter().map(|(socket, _)| WriteRequest { socket, bytes: round }).collect();
            let mut transfers = Vec::new();
            sockets.write_each(&requests, &mut transfers);
            assert_eq!(transfers, [Transfer::Bytes(1); 3]);
            assert_eq!(counters.get(Counter::IoUringFailed), 1);
        }
        for (_, far) in &pairs {
            assert_eq!(received(far).unwrap(), b"12");
        }
    }
}
