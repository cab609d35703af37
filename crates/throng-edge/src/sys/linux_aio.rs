//! Many sends in one system call without io_uring: Linux AIO (io_submit(2)) is older, and most
//! containers allow it.
//!
//! A sender that makes a call for each socket loses its core on the return from each, to the reader
//! that the call has woken. With one call for all it gets through a slice first.
//!
//! A write to a non-blocking socket completes, or fails, during its submission: when `io_submit`
//! returns, all completions have arrived. [`LinuxAio::open`] verifies this on a full
//! socket.
//!
//! A control block cannot ask for `MSG_NOSIGNAL`: the process must ignore `SIGPIPE`, as Rust's
//! runtime does.
//!
//! # Why `unsafe`
//!
//! The C library has no functions for these calls, and a control block holds a descriptor number
//! and the address of bytes. Both belong to the caller's write requests, which are borrowed until
//! `write_each` returns; it returns only when as many completions have arrived as control blocks
//! were taken, and aborts the process if the kernel breaks that promise.

use std::ffi::{c_long, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::batch::{transfer_of, try_out};
use crate::net::{Transfer, WriteRequest};

/// The number of control blocks of one submission: enough for a slice.
const ENTRIES: usize = 128;

/// `IOCB_CMD_PWRITE` of linux/aio_abi.h; a socket ignores the offset.
const PWRITE: u16 = 1;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct ControlBlock {
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

const _: () = assert!(size_of::<ControlBlock>() == 64);

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Completion {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

const _: () = assert!(size_of::<Completion>() == 32);

/// One worker's AIO context, and memory for its control blocks and completions.
#[derive(Debug)]
pub(crate) struct LinuxAio {
    context: c_ulong,
    blocks: Box<[ControlBlock; ENTRIES]>,
    completions: Box<[Completion; ENTRIES]>,
}

impl LinuxAio {
    /// Opens a context and verifies that it completes writes during their submission.
    pub(crate) fn open() -> io::Result<LinuxAio> {
        let mut context: c_ulong = 0;
        // SAFETY: the pointer is to a live value of the size that the kernel writes.
        call(unsafe { libc::syscall(libc::SYS_io_setup, ENTRIES as c_long, &raw mut context) })?;
        let mut aio = LinuxAio {
            context,
            blocks: Box::new([ControlBlock::default(); ENTRIES]),
            completions: Box::new([Completion::default(); ENTRIES]),
        };
        try_out(|requests, transfers| {
            aio.write_each(requests, transfers);
            Ok(())
        })?;
        Ok(aio)
    }

    /// Writes each request as far as its socket takes it, in order, and appends the transfers.
    /// Requests without a transfer have not been sent.
    pub(crate) fn write_each(
        &mut self,
        requests: &[WriteRequest<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) {
        for requests in requests.chunks(ENTRIES) {
            if self.write_some(requests, transfers) < requests.len() {
                return;
            }
        }
    }

    /// Writes as many requests as there are control blocks. Returns the number written.
    fn write_some(
        &mut self,
        requests: &[WriteRequest<'_, OwnedFd>],
        transfers: &mut Vec<Transfer>,
    ) -> usize {
        for (number, (block, request)) in self.blocks.iter_mut().zip(requests).enumerate() {
            *block = ControlBlock {
                data: number as u64,
                opcode: PWRITE,
                descriptor: request.socket.as_raw_fd().cast_unsigned(),
                address: request.bytes.as_ptr() as u64,
                bytes: request.bytes.len() as u64,
                ..ControlBlock::default()
            };
        }
        let pointers: [*const ControlBlock; ENTRIES] =
            std::array::from_fn(|number| &raw const self.blocks[number]);
        let count = requests.len() as c_long;
        // SAFETY: `count` pointers are to blocks whose descriptors and bytes are borrowed, and
        // `finish` does not return before the kernel has done with them.
        let submitted = call(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, count, pointers.as_ptr())
        });
        // After an error the kernel has taken none: it lacks memory, or the first one is invalid.
        let submitted = submitted.unwrap_or(0);
        let first = transfers.len();
        transfers.resize(first + submitted, Transfer::Gone);
        self.finish(submitted, &mut transfers[first..]);
        submitted
    }

    /// Takes the completions of `count` control blocks.
    fn finish(&mut self, count: usize, transfers: &mut [Transfer]) {
        let mut completed = 0;
        while completed < count {
            let wanted = (count - completed) as c_long;
            let completions = self.completions.as_mut_ptr();
            let forever = std::ptr::null::<libc::timespec>();
            // SAFETY: there is room for `wanted` completions, and no timeout to read.
            let completions = call(unsafe {
                let number = libc::SYS_io_getevents;
                libc::syscall(number, self.context, wanted, wanted, completions, forever)
            });
            match completions {
                Ok(taken) => {
                    for completion in &self.completions[..taken] {
                        if let Some(transfer) = transfers.get_mut(completion.data as usize) {
                            *transfer = transfer_of(completion.result as i32);
                        }
                    }
                    completed += taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The kernel may still read buffers that the caller would free.
                    eprintln!("throng: a worker cannot continue: Linux AIO fails: {error}");
                    std::process::abort();
                }
            }
        }
    }
}

impl Drop for LinuxAio {
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
    use super::super::batch::tests::{self, pair, received, write_to};
    use super::*;

    #[test]
    fn each_socket_gets_its_bytes_however_many_there_are() {
        let mut aio = LinuxAio::open().unwrap();
        tests::each_socket_gets_its_bytes(ENTRIES, &mut |requests, transfers| {
            aio.write_each(requests, transfers);
        });
    }

    #[test]
    fn full_and_dead_sockets_delay_no_other() {
        let mut aio = LinuxAio::open().unwrap();
        tests::full_and_dead_sockets_delay_no_other(&mut |requests, transfers| {
            aio.write_each(requests, transfers);
        });
    }

    #[test]
    fn requests_that_cannot_be_submitted_are_reported_as_not_sent() {
        let mut aio = LinuxAio::open().unwrap();
        let (near, far) = pair();
        let no_file = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let requests = [(&near, &b"1"[..]), (&no_file.unwrap(), b"2")];
        let mut write = |requests: &[WriteRequest<'_, OwnedFd>], transfers: &mut Vec<Transfer>| {
            aio.write_each(requests, transfers);
        };
        let transfers = write_to(&mut write, &requests);
        assert_eq!(transfers, [Transfer::Bytes(1)]);
        assert_eq!(received(&far).unwrap(), b"1");
    }
}
