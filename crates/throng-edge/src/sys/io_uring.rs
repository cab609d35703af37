//! Many sends in one system call through io_uring, if the kernel has it and allows it.
//!
//! The instance only sends, and no request outlives a call: each has `MSG_DONTWAIT`, so that the
//! kernel completes it during its submission (io_uring_enter(2)), and all completions have arrived
//! when [`IoUring::write_each`] returns. [`IoUring::open`] verifies this on a
//! full socket; kernels before 6.1 fail to open.
//!
//! # Why `unsafe`
//!
//! An entry holds a descriptor number and a pointer to bytes. Both belong to the caller's write
//! requests, which are borrowed until `write_each` returns; no entry outlives it, because it
//! returns only when as many completions have arrived as entries were queued, and aborts the
//! process if the kernel breaks that promise.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};

use super::batch::{transfer_of, try_out};
use crate::net::{Transfer, WriteRequest};

/// The number of entries of one submission: enough for a slice.
const ENTRIES: u32 = 128;

pub(crate) struct IoUring {
    queues: io_uring::IoUring,
}

impl IoUring {
    /// Opens an instance and verifies that it completes sends during their submission. Call it on
    /// the thread that will use the instance.
    pub(crate) fn open() -> io::Result<IoUring> {
        let queues = io_uring::IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(ENTRIES)?;
        let mut io_uring = IoUring { queues };
        try_out(|requests, transfers| io_uring.write_each(requests, transfers))?;
        Ok(io_uring)
    }

    /// Writes each request as far as its socket takes it, in order, and appends the transfers.
    ///
    /// After an error, drop the instance. Requests without a transfer have not been sent.
    pub(crate) fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        for requests in requests.chunks(ENTRIES as usize) {
            self.write_some(requests, transfers)?;
        }
        Ok(())
    }

    /// Writes as many requests as fit into the submission queue.
    fn write_some(
        &mut self,
        requests: &[WriteRequest<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        let first = transfers.len();
        transfers.resize(first + requests.len(), Transfer::Gone);
        let mut queue = self.queues.submission();
        for (number, request) in requests.iter().enumerate() {
            // SAFETY: descriptor and bytes are borrowed, and `finish` does not return before the
            // kernel has done with them.
            let pushed = unsafe { queue.push(&send(request, number as u64)) };
            debug_assert!(pushed.is_ok(), "the queue is empty between calls");
        }
        drop(queue);
        let submit = |queues: &io_uring::IoUring, count| queues.submit_and_wait(count);
        let finished = self.finish(requests.len(), &mut transfers[first..], submit);
        finished.map_err(|(completed, error)| {
            transfers.truncate(first + completed);
            error
        })
    }

    /// Submits the queued entries and takes `count` completions. If the kernel takes no more
    /// entries, for example for lack of memory, returns the number that it has completed: the first
    /// ones, because it takes them in order. The others have not been submitted.
    fn finish(
        &mut self,
        count: usize,
        transfers: &mut [Transfer],
        mut submit: impl FnMut(&io_uring::IoUring, usize) -> io::Result<usize>,
    ) -> Result<(), (usize, io::Error)> {
        let mut completed = 0;
        while completed < count {
            let submitted = submit(&self.queues, count - completed);
            // Completions come in any order; their user data is the index of the transfer.
            for completion in self.queues.completion() {
                completed += 1;
                if let Some(transfer) = transfers.get_mut(completion.user_data() as usize) {
                    *transfer = transfer_of(completion.result());
                }
            }
            match submitted {
                Ok(_) => {}
                // A signal may interrupt the wait behind a successful submission: ask for the rest
                // again.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Incomplete requests are still in the submission queue: the kernel reads no buffer
                // any more.
                Err(error) if completed + self.queues.submission().len() == count => {
                    return Err((completed, error));
                }
                // The kernel still reads buffers that the caller would free.
                Err(error) => abort(&error),
            }
        }
        Ok(())
    }
}

fn send(request: &WriteRequest<'_, OwnedFd>, number: u64) -> squeue::Entry {
    let length = u32::try_from(request.bytes.len()).unwrap_or(u32::MAX);
    opcode::Send::new(types::Fd(request.socket.as_raw_fd()), request.bytes.as_ptr(), length)
        .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        .build()
        .user_data(number)
}

/// The kernel may still read bytes that are about to be freed: there is no safe way on.
fn abort(error: &io::Error) -> ! {
    eprintln!("error: a worker cannot continue: io_uring keeps requests and fails: {error}");
    std::process::abort();
}

/// An instance to test with. If a sandbox allows none, the tests fail, unless the environment says
/// that io_uring may be missing.
#[cfg(test)]
pub(crate) fn for_test(opened: io::Result<IoUring>) -> Option<IoUring> {
    const MAY_BE_MISSING: &str = "THRONG_TEST_WITHOUT_IO_URING";
    match opened {
        Ok(io_uring) => Some(io_uring),
        Err(error) if std::env::var_os(MAY_BE_MISSING).is_some_and(|value| value == "1") => {
            eprintln!("skipped, no io_uring: {error}");
            None
        }
        Err(error) => panic!("no io_uring ({error}); set {MAY_BE_MISSING}=1 to test without"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::tests::{self, pair, received, write_to};
    use super::*;

    /// `io_uring_enter(2)`: also take completions.
    const IORING_ENTER_GETEVENTS: u8 = 1;

    fn open() -> Option<IoUring> {
        for_test(IoUring::open())
    }

    fn write(
        io_uring: &mut IoUring,
    ) -> impl FnMut(&[WriteRequest<'_, OwnedFd>], &mut Vec<Transfer>) {
        |requests, transfers| io_uring.write_each(requests, transfers).unwrap()
    }

    #[test]
    fn each_socket_gets_its_bytes_however_many_there_are() {
        let Some(mut io_uring) = open() else { return };
        tests::each_socket_gets_its_bytes(ENTRIES as usize, &mut write(&mut io_uring));
    }

    #[test]
    fn full_and_dead_sockets_delay_no_other() {
        let Some(mut io_uring) = open() else { return };
        tests::full_and_dead_sockets_delay_no_other(&mut write(&mut io_uring));
    }

    /// A kernel without memory takes some entries, then fails.
    #[test]
    fn entries_refused_by_the_kernel_are_reported_as_unsent() {
        let Some(mut io_uring) = open() else { return };
        let pairs = [pair(), pair(), pair()];
        for (number, (near, _)) in pairs.iter().enumerate() {
            let request = WriteRequest { socket: near, bytes: b"once" };
            // SAFETY: `pairs` and the bytes live until the end of the test.
            unsafe { io_uring.queues.submission().push(&send(&request, number as u64)).unwrap() };
        }
        let mut calls = 0;
        let submit = |queues: &io_uring::IoUring, _| {
            calls += 1;
            if calls > 1 {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            let flags = libc::c_uint::from(IORING_ENTER_GETEVENTS);
            // SAFETY: there is no further argument.
            unsafe { queues.submitter().enter::<()>(2, 2, flags, None) }
        };
        let mut transfers = [Transfer::Gone; 3];
        let (completed, error) = io_uring.finish(3, &mut transfers, submit).unwrap_err();
        assert_eq!((completed, error.raw_os_error()), (2, Some(libc::EAGAIN)));
        assert_eq!(transfers[..2], [Transfer::Bytes(4); 2]);
        drop(io_uring);
        for (number, (_, far)) in pairs.iter().enumerate() {
            let expected = (number < 2).then_some(b"once".to_vec());
            assert_eq!(received(far), expected, "{number}");
        }
    }

    #[test]
    fn a_socket_may_take_a_part() {
        let Some(mut io_uring) = open() else { return };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = OwnedFd::from(near);
        let much = vec![b'x'; 64 << 20];
        let transfers = write_to(&mut write(&mut io_uring), &[(&near, &much)]);
        let [Transfer::Bytes(taken)] = transfers[..] else { panic!("it takes something") };
        assert!((1..much.len()).contains(&taken));
    }
}
