//! Many sends in one system call: io_uring, where the kernel has it and lets us.
//!
//! A ring is used for nothing but `send`, never waits for anything and never leaves anything
//! behind: each request carries `MSG_DONTWAIT`, so that the kernel answers it while it is being
//! submitted (io_uring_enter(2)), and when [`Ring::write_each`] returns, all answers are there.
//! [`Ring::open`] tries that out on a full socket before anybody relies on it; kernels before 6.1
//! are not asked.
//!
//! # Why `unsafe`
//!
//! A request holds a descriptor number and a pointer to bytes. Both belong to the caller's parcels,
//! which are borrowed until `write_each` returns; no request outlives it, because it returns only
//! when as many answers have come as requests were made, and ends the process if the kernel breaks
//! that promise.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::net::{Parcel, Transfer};

/// Requests of one submission: enough for a slice.
const ENTRIES: u32 = 128;

/// A submission queue and a completion queue of one worker's own.
pub(crate) struct Ring {
    ring: IoUring,
}

impl Ring {
    /// A ring that has been seen to work as it must; otherwise why there is none. To be called on
    /// the thread that will use it.
    pub(crate) fn open() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(ENTRIES)?;
        let mut ring = Ring { ring };
        try_out(|parcels, transfers| ring.write_each(parcels, transfers))?;
        Ok(ring)
    }

    /// Sends each parcel as far as its socket takes it, in order; appends what became of each.
    ///
    /// After an error the ring must be dropped, and nothing was done with the parcels that have no
    /// transfer.
    pub(crate) fn write_each(
        &mut self,
        parcels: &[Parcel<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        for parcels in parcels.chunks(ENTRIES as usize) {
            self.write_some(parcels, transfers)?;
        }
        Ok(())
    }

    /// As many as fit into the queue.
    fn write_some(
        &mut self,
        parcels: &[Parcel<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        let first = transfers.len();
        transfers.resize(first + parcels.len(), Transfer::Gone);
        let mut queue = self.ring.submission();
        for (nth, parcel) in parcels.iter().enumerate() {
            // SAFETY: descriptor and bytes are borrowed, and `finish` does not return before the
            // kernel has done with them.
            let pushed = unsafe { queue.push(&send(parcel, nth as u64)) };
            debug_assert!(pushed.is_ok(), "the queue is empty between calls");
        }
        drop(queue);
        let submit = |ring: &IoUring, count| ring.submit_and_wait(count);
        let finished = self.finish(parcels.len(), &mut transfers[first..], submit);
        finished.map_err(|(answered, error)| {
            transfers.truncate(first + answered);
            error
        })
    }

    /// Submits what is queued and takes the answers to `count` requests. If the kernel takes no
    /// more of them, for want of memory perhaps, returns how many it has answered: the first ones,
    /// as it takes them in order, and none is under way.
    fn finish(
        &mut self,
        count: usize,
        transfers: &mut [Transfer],
        mut submit: impl FnMut(&IoUring, usize) -> io::Result<usize>,
    ) -> Result<(), (usize, io::Error)> {
        let mut answered = 0;
        while answered < count {
            let submitted = submit(&self.ring, count - answered);
            for answer in self.ring.completion() {
                answered += 1;
                if let Some(transfer) = transfers.get_mut(answer.user_data() as usize) {
                    *transfer = transfer_of(answer.result());
                }
            }
            match submitted {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if answered + self.ring.submission().len() == count => {
                    return Err((answered, error));
                }
                Err(error) => abort(&error),
            }
        }
        Ok(())
    }
}

fn send(parcel: &Parcel<'_, OwnedFd>, nth: u64) -> squeue::Entry {
    let length = u32::try_from(parcel.bytes.len()).unwrap_or(u32::MAX);
    opcode::Send::new(types::Fd(parcel.socket.as_raw_fd()), parcel.bytes.as_ptr(), length)
        .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        .build()
        .user_data(nth)
}

/// A socket that takes no more must say so at once instead of keeping the request.
pub(super) fn try_out(
    mut write_each: impl FnMut(&[Parcel<'_, OwnedFd>], &mut Vec<Transfer>) -> io::Result<()>,
) -> io::Result<()> {
    let (one, _other) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    let bytes = [0; 64 << 10];
    let mut transfers = Vec::new();
    for _ in 0..64 {
        transfers.clear();
        write_each(&[Parcel { socket: &one, bytes: &bytes }], &mut transfers)?;
        match transfers[..] {
            [Transfer::Bytes(_)] => {}
            [Transfer::Blocked] => return Ok(()),
            _ => break,
        }
    }
    Err(io::Error::other("a full socket was not told from others"))
}

/// What the result of a request says: bytes, or an error below zero.
pub(super) fn transfer_of(result: i32) -> Transfer {
    match result {
        1.. => Transfer::Bytes(result.unsigned_abs() as usize),
        _ => match Errno::from_raw_os_error(-result) {
            // An interrupted one is told at once that its socket is writable.
            Errno::AGAIN | Errno::INTR => Transfer::Blocked,
            _ => Transfer::Gone,
        },
    }
}

/// Requests may be under way whose bytes are about to go: nothing safe is left to do.
fn abort(error: &io::Error) -> ! {
    eprintln!("error: a worker cannot go on: io_uring keeps requests and fails: {error}");
    std::process::abort();
}

/// A ring to test with. Where a sandbox has none the tests fail, unless they are told that it may
/// be missing: the server does without.
#[cfg(test)]
pub(crate) fn for_test(opened: io::Result<Ring>) -> Option<Ring> {
    const MAY_BE_MISSING: &str = "THRONG_TEST_WITHOUT_IO_URING";
    match opened {
        Ok(ring) => Some(ring),
        Err(error) if std::env::var_os(MAY_BE_MISSING).is_some_and(|value| value == "1") => {
            eprintln!("skipped, no io_uring: {error}");
            None
        }
        Err(error) => panic!("no io_uring ({error}); set {MAY_BE_MISSING}=1 to test without"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvFlags, recv};

    /// `io_uring_enter(2)`: also take answers.
    const IORING_ENTER_GETEVENTS: u8 = 1;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    fn write_each(ring: &mut Ring, parcels: &[(&OwnedFd, &[u8])]) -> Vec<Transfer> {
        let parcels: Vec<_> =
            parcels.iter().map(|&(socket, bytes)| Parcel { socket, bytes }).collect();
        let mut transfers = vec![Transfer::End];
        ring.write_each(&parcels, &mut transfers).unwrap();
        assert_eq!(transfers.remove(0), Transfer::End, "what was there stays");
        transfers
    }

    fn ring() -> Option<Ring> {
        for_test(Ring::open())
    }

    #[test]
    fn each_socket_gets_its_bytes_however_many_there_are() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..ENTRIES + 3).map(|_| pair()).collect();
        let bytes: Vec<_> = (0..pairs.len()).map(|nth| format!("for {nth}").into_bytes()).collect();
        let parcels: Vec<_> =
            pairs.iter().zip(&bytes).map(|((near, _), bytes)| (near, &bytes[..])).collect();
        for round in 0..2 {
            let transfers = write_each(&mut ring, &parcels);
            for (nth, (_, far)) in pairs.iter().enumerate() {
                assert_eq!(transfers[nth], Transfer::Bytes(bytes[nth].len()), "round {round}");
                let mut buffer = [0; 64];
                let (_, count) = recv(far, &mut buffer[..], RecvFlags::DONTWAIT).unwrap();
                assert_eq!(buffer[..count], bytes[nth][..]);
            }
        }
    }

    #[test]
    fn full_and_dead_sockets_keep_nobody_waiting() {
        let Some(mut ring) = ring() else { return };
        let ((full, _reader), (dead, gone), (fine, far)) = (pair(), pair(), pair());
        drop(gone);
        let much = vec![b'x'; 1 << 20];
        while write_each(&mut ring, &[(&full, &much)]) != [Transfer::Blocked] {}
        let transfers = write_each(&mut ring, &[(&full, b"1"), (&dead, b"2"), (&fine, b"3")]);
        assert_eq!(transfers, [Transfer::Blocked, Transfer::Gone, Transfer::Bytes(1)]);
        let mut buffer = [0; 8];
        assert_eq!(recv(&far, &mut buffer[..], RecvFlags::DONTWAIT).unwrap().1, 1);
    }

    /// A kernel without memory takes some requests, then says so.
    #[test]
    fn what_the_kernel_does_not_take_is_left_to_others() {
        let Some(mut ring) = ring() else { return };
        let pairs = [pair(), pair(), pair()];
        for (nth, (near, _)) in pairs.iter().enumerate() {
            let parcel = Parcel { socket: near, bytes: b"once" };
            // SAFETY: `pairs` and the bytes live until the end of the test, and the ring is full.
            unsafe { ring.ring.submission().push(&send(&parcel, nth as u64)).unwrap() };
        }
        let mut calls = 0;
        let submit = |ring: &IoUring, _| {
            calls += 1;
            if calls > 1 {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            let flags = libc::c_uint::from(IORING_ENTER_GETEVENTS);
            // SAFETY: there is no further argument.
            unsafe { ring.submitter().enter::<()>(2, 2, flags, None) }
        };
        let mut transfers = [Transfer::Gone; 3];
        let (answered, error) = ring.finish(3, &mut transfers, submit).unwrap_err();
        assert_eq!((answered, error.raw_os_error()), (2, Some(libc::EAGAIN)));
        assert_eq!(transfers[..2], [Transfer::Bytes(4); 2]);
        drop(ring);
        let mut buffer = [0; 8];
        for (nth, (_, far)) in pairs.iter().enumerate() {
            let received = recv(far, &mut buffer[..], RecvFlags::DONTWAIT).map(|(_, count)| count);
            assert_eq!(received.ok(), (nth < 2).then_some(4), "{nth}");
        }
    }

    #[test]
    fn a_socket_may_take_a_part() {
        let Some(mut ring) = ring() else { return };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = OwnedFd::from(near);
        let much = vec![b'x'; 64 << 20];
        let [Transfer::Bytes(taken)] = write_each(&mut ring, &[(&near, &much)])[..] else {
            panic!("it takes something")
        };
        assert!((1..much.len()).contains(&taken));
    }
}
