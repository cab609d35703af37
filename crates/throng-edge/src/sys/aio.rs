//! Many sends in one system call without io_uring: Linux AIO (io_submit(2)), which is older and
//! which containers mostly allow.
//!
//! What a send costs beside itself is the way back from the kernel: there the reader that it has
//! woken takes the core. In one call the sender gets through a slice first.
//!
//! A write to a non-blocking socket is done, or refused, while it is being submitted: when
//! `io_submit` returns, so have all answers. [`Aio::open`] tries that out on a full socket before
//! anybody relies on it.
//!
//! A request cannot ask for `MSG_NOSIGNAL`: the process must ignore `SIGPIPE`, as Rust has it do.
//!
//! # Why `unsafe`
//!
//! The C library has no functions for these calls, and a request holds a descriptor number and the
//! address of bytes. Both belong to the caller's parcels, which are borrowed until `write_each`
//! returns; it returns only when as many answers have come as requests were taken, and ends the
//! process if the kernel breaks that promise.

use std::ffi::{c_long, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::ring::{transfer_of, try_out};
use crate::net::{Parcel, Transfer};

/// Requests of one submission: enough for a slice.
const ENTRIES: usize = 128;

/// `IOCB_CMD_PWRITE` of linux/aio_abi.h; a socket ignores the offset.
const PWRITE: u16 = 1;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    address: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Answer {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

const _: () = assert!(size_of::<Answer>() == 32);

/// A context of one worker's own, and room for its requests.
#[derive(Debug)]
pub(crate) struct Aio {
    context: c_ulong,
    requests: Box<[Request; ENTRIES]>,
    answers: Box<[Answer; ENTRIES]>,
}

impl Aio {
    /// A context that has been seen to work as it must; otherwise why there is none.
    pub(crate) fn open() -> io::Result<Aio> {
        let mut context: c_ulong = 0;
        // SAFETY: the pointer is to a live value of the size that the kernel writes.
        call(unsafe { libc::syscall(libc::SYS_io_setup, ENTRIES as c_long, &raw mut context) })?;
        let mut aio = Aio {
            context,
            requests: Box::new([Request::default(); ENTRIES]),
            answers: Box::new([Answer::default(); ENTRIES]),
        };
        try_out(|parcels, transfers| {
            aio.write_each(parcels, transfers);
            Ok(())
        })?;
        Ok(aio)
    }

    /// Sends each parcel as far as its socket takes it, in order; appends what became of each.
    /// Nothing was done with parcels that have no transfer.
    pub(crate) fn write_each(
        &mut self,
        parcels: &[Parcel<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) {
        for parcels in parcels.chunks(ENTRIES) {
            if self.write_some(parcels, transfers) < parcels.len() {
                return;
            }
        }
    }

    /// As many as there are requests. Returns how many of them were done.
    fn write_some(
        &mut self,
        parcels: &[Parcel<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> usize {
        for (nth, (request, parcel)) in self.requests.iter_mut().zip(parcels).enumerate() {
            *request = Request {
                data: nth as u64,
                opcode: PWRITE,
                descriptor: parcel.socket.as_raw_fd().cast_unsigned(),
                address: parcel.bytes.as_ptr() as u64,
                bytes: parcel.bytes.len() as u64,
                ..Request::default()
            };
        }
        let pointers: [*const Request; ENTRIES] =
            std::array::from_fn(|nth| &raw const self.requests[nth]);
        let count = parcels.len() as c_long;
        // SAFETY: so many pointers are to requests whose descriptors and bytes are borrowed, and
        // `finish` does not return before the kernel has done with them.
        let submitted = call(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, count, pointers.as_ptr())
        });
        // None were taken for want of memory, or the first one is no good.
        let submitted = submitted.unwrap_or(0);
        let first = transfers.len();
        transfers.resize(first + submitted, Transfer::Gone);
        self.finish(submitted, &mut transfers[first..]);
        submitted
    }

    /// Takes the answers to `count` requests.
    fn finish(&mut self, count: usize, transfers: &mut [Transfer]) {
        let mut answered = 0;
        while answered < count {
            let wanted = (count - answered) as c_long;
            let answers = self.answers.as_mut_ptr();
            let forever = std::ptr::null::<libc::timespec>();
            // SAFETY: there is room for so many answers, and no time to read.
            let came = call(unsafe {
                let number = libc::SYS_io_getevents;
                libc::syscall(number, self.context, wanted, wanted, answers, forever)
            });
            match came {
                Ok(came) => {
                    for answer in &self.answers[..came] {
                        if let Some(transfer) = transfers.get_mut(answer.data as usize) {
                            *transfer = transfer_of(answer.result as i32);
                        }
                    }
                    answered += came;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("throng: a worker cannot go on: Linux AIO fails: {error}");
                    std::process::abort();
                }
            }
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and no request is under way.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn call(result: c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    }

    fn write_each(aio: &mut Aio, parcels: &[(&OwnedFd, &[u8])]) -> Vec<Transfer> {
        let parcels: Vec<_> =
            parcels.iter().map(|&(socket, bytes)| Parcel { socket, bytes }).collect();
        let mut transfers = vec![Transfer::End];
        aio.write_each(&parcels, &mut transfers);
        assert_eq!(transfers.remove(0), Transfer::End, "what was there stays");
        transfers
    }

    #[test]
    fn each_socket_gets_its_bytes_however_many_there_are() {
        let mut aio = Aio::open().unwrap();
        let pairs: Vec<_> = (0..ENTRIES + 3).map(|_| pair()).collect();
        let bytes: Vec<_> = (0..pairs.len()).map(|nth| format!("for {nth}").into_bytes()).collect();
        let parcels: Vec<_> =
            pairs.iter().zip(&bytes).map(|((near, _), bytes)| (near, &bytes[..])).collect();
        for round in 0..2 {
            let transfers = write_each(&mut aio, &parcels);
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
        let mut aio = Aio::open().unwrap();
        let ((full, _reader), (dead, gone), (fine, far)) = (pair(), pair(), pair());
        drop(gone);
        let much = vec![b'x'; 1 << 20];
        while write_each(&mut aio, &[(&full, &much)]) != [Transfer::Blocked] {}
        let transfers = write_each(&mut aio, &[(&full, b"1"), (&dead, b"2"), (&fine, b"3")]);
        assert_eq!(transfers, [Transfer::Blocked, Transfer::Gone, Transfer::Bytes(1)]);
        let mut buffer = [0; 8];
        assert_eq!(recv(&far, &mut buffer[..], RecvFlags::DONTWAIT).unwrap().1, 1);
    }

    #[test]
    fn what_cannot_be_submitted_is_left_to_others() {
        let mut aio = Aio::open().unwrap();
        let (near, far) = pair();
        let no_file = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let transfers = write_each(&mut aio, &[(&near, b"1"), (&no_file.unwrap(), b"2")]);
        assert_eq!(transfers, [Transfer::Bytes(1)]);
        let mut buffer = [0; 8];
        assert_eq!(recv(&far, &mut buffer[..], RecvFlags::DONTWAIT).unwrap().1, 1);
    }
}
