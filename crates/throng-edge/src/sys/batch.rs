//! The common part of io_uring and Linux AIO, the two ways to write to many sockets in one call.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::net::{Transfer, WriteRequest};

/// Verifies that the kernel reports a full socket at once, instead of keeping the request until the
/// socket takes it. The callers rely on this for memory safety.
pub(super) fn try_out(
    mut write_each: impl FnMut(&[WriteRequest<'_, OwnedFd>], &mut Vec<Transfer>) -> io::Result<()>,
) -> io::Result<()> {
    let (socket, _peer) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    let bytes = [0; 64 << 10];
    let mut transfers = Vec::new();
    for _ in 0..64 {
        transfers.clear();
        write_each(&[WriteRequest { socket: &socket, bytes: &bytes }], &mut transfers)?;
        match transfers[..] {
            [Transfer::Bytes(_)] => {}
            [Transfer::Blocked] => return Ok(()),
            _ => break,
        }
    }
    Err(io::Error::other("the kernel does not report a full socket at once"))
}

/// The meaning of a completion's result: a number of bytes, or a negative error number.
pub(super) fn transfer_of(result: i32) -> Transfer {
    match result {
        0.. => Transfer::Bytes(result.unsigned_abs() as usize),
        _ => match Errno::from_raw_os_error(-result) {
            // After an interruption the socket is still writable: once the worker waits for that,
            // epoll reports it at once.
            Errno::AGAIN | Errno::INTR => Transfer::Blocked,
            _ => Transfer::Gone,
        },
    }
}

/// Tests that both ways must pass.
#[cfg(test)]
pub(super) mod tests {
    use rustix::net::{RecvFlags, recv};

    use super::*;

    /// Writes the requests, and appends the result of each.
    type WriteEach<'a> = &'a mut dyn FnMut(&[WriteRequest<'_, OwnedFd>], &mut Vec<Transfer>);

    pub(in crate::sys) fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    /// The bytes that wait at a socket; `None` if there are none.
    pub(in crate::sys) fn received(socket: &OwnedFd) -> Option<Vec<u8>> {
        let mut buffer = [0; 64];
        let (_, count) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
        Some(buffer[..count].to_vec())
    }

    pub(in crate::sys) fn write_to(
        write_each: WriteEach<'_>,
        requests: &[(&OwnedFd, &[u8])],
    ) -> Vec<Transfer> {
        let requests: Vec<_> =
            requests.iter().map(|&(socket, bytes)| WriteRequest { socket, bytes }).collect();
        let mut transfers = vec![Transfer::Gone];
        write_each(&requests, &mut transfers);
        assert_eq!(transfers.remove(0), Transfer::Gone, "earlier transfers stay");
        transfers
    }

    /// More sockets than one submission of `entries` holds.
    pub(in crate::sys) fn each_socket_gets_its_bytes(entries: usize, write_each: WriteEach<'_>) {
        let pairs: Vec<_> = (0..entries + 3).map(|_| pair()).collect();
        let mut bytes: Vec<_> =
            (0..pairs.len()).map(|number| format!("for {number}").into_bytes()).collect();
        // One gets nothing.
        bytes[1].clear();
        let requests: Vec<_> =
            pairs.iter().zip(&bytes).map(|((near, _), bytes)| (near, &bytes[..])).collect();
        for round in 0..2 {
            let transfers = write_to(write_each, &requests);
            for (number, (_, far)) in pairs.iter().enumerate() {
                let expected = Transfer::Bytes(bytes[number].len());
                assert_eq!(transfers[number], expected, "round {round}");
                let own = Some(&bytes[number]).filter(|bytes| !bytes.is_empty());
                assert_eq!(received(far).as_ref(), own);
            }
        }
    }

    pub(in crate::sys) fn full_and_dead_sockets_delay_no_other(write_each: WriteEach<'_>) {
        let ((full, _reader), (dead, gone), (fine, far)) = (pair(), pair(), pair());
        drop(gone);
        let much = vec![b'x'; 1 << 20];
        while write_to(write_each, &[(&full, &much)]) != [Transfer::Blocked] {}
        let transfers = write_to(write_each, &[(&full, b"1"), (&dead, b"2"), (&fine, b"3")]);
        assert_eq!(transfers, [Transfer::Blocked, Transfer::Gone, Transfer::Bytes(1)]);
        assert_eq!(received(&far).unwrap(), b"3");
    }
}
