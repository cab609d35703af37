//! Sockets on their way between descriptor tables, with what was already read from them.
//!
//! A message of a sequenced-packet socket pair carries both: `SCM_RIGHTS` (unix(7)) makes the
//! kernel install the descriptor in the receiver's table. Both ends exist before any worker leaves
//! the process's table, so every thread can send to every other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt,
};

/// The most that travels with a socket: what one read can have brought.
const BYTES_MAX: usize = 128 << 10;

/// Messages under way before the sender is told that there is no room: enough for a burst, well
/// below the descriptors that may be in flight.
const BUFFER_BYTES: usize = 4 << 20;

/// Where sockets go in. May be used from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Entry(Arc<OwnedFd>);

/// Where they come out. Has one reader.
#[derive(Debug, Clone)]
pub(crate) struct Exit(Arc<OwnedFd>);

/// A new way over.
pub(crate) fn pair() -> io::Result<(Entry, Exit)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (entry, exit) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Beyond `wmem_max` only the privileged may go; the default will do.
    if sockopt::set_socket_send_buffer_size_force(&entry, BUFFER_BYTES).is_err() {
        sockopt::set_socket_send_buffer_size(&entry, BUFFER_BYTES)?;
    }
    Ok((Entry(Arc::new(entry)), Exit(Arc::new(exit))))
}

impl Entry {
    /// Sends `socket` and what was read from it, which may be nothing. The caller's own descriptor
    /// stays open.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        // A packet must not be empty, or it would look like the end: a byte leads it.
        let slices = [IoSlice::new(&[0]), IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &slices, &mut control, flags)?;
        Ok(())
    }
}

impl Exit {
    /// The next socket with what was read from it; `None` if there is none now.
    pub(crate) fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<Option<OwnedFd>> {
        buffer.resize(BYTES_MAX + 1, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        buffer.truncate(received);
        if received > 0 {
            buffer.remove(0);
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut sockets) = message
                && let Some(socket) = sockets.next()
            {
                return Ok(Some(socket));
            }
        }
        // The table was full: the kernel has closed the socket.
        Err(io::Error::other("a socket was lost on its way: no descriptor left for it"))
    }
}

impl AsFd for Exit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_crosses_with_its_bytes() {
        let (entry, exit) = pair().unwrap();
        let mut bytes = Vec::new();
        assert!(exit.receive(&mut bytes).unwrap().is_none());
        let (mut near, far) = UnixStream::pair().unwrap();
        entry.send(far.as_fd(), b"GET / HTTP/1.1\r\n").unwrap();
        entry.send(far.as_fd(), b"").unwrap();
        drop(far);
        let mut there = UnixStream::from(exit.receive(&mut bytes).unwrap().unwrap());
        assert_eq!(bytes, b"GET / HTTP/1.1\r\n");
        there.write_all(b"answer").unwrap();
        drop(there);
        drop(exit.receive(&mut bytes).unwrap().unwrap());
        assert!(bytes.is_empty());
        let mut answer = String::new();
        near.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_full_way_over_says_so_and_loses_nothing() {
        let (entry, exit) = pair().unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        let bytes = vec![7; BYTES_MAX];
        let mut sent = 0;
        while entry.send(far.as_fd(), &bytes).is_ok() {
            sent += 1;
            assert!(sent < 10_000, "there is no limit");
        }
        assert!(entry.send(far.as_fd(), &vec![7; BYTES_MAX + 1]).is_err(), "more than one read");
        let mut received = Vec::new();
        for _ in 0..sent {
            assert!(exit.receive(&mut received).unwrap().is_some());
            assert_eq!(received, bytes);
        }
        assert!(exit.receive(&mut received).unwrap().is_none());
    }
}
