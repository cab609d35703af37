//! Bytes on their way to a publishing connection's socket.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;

/// The bytes that a connection has to send, and how many the kernel has accepted in total.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` the kernel has accepted.
    taken: usize,
    /// Bytes that the kernel accepted before the first of `bytes`.
    taken_before: u64,
}

impl Output {
    /// The buffer to append to.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes in the buffer, accepted ones included.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The position after the last byte, counted from the first byte that was ever appended.
    pub(super) fn end(&self) -> u64 {
        self.taken_before + self.bytes.len() as u64
    }

    /// The position up to which the kernel has accepted the bytes.
    pub(super) fn accepted(&self) -> u64 {
        self.taken_before + self.taken as u64
    }

    /// Sends until everything is accepted or the socket is full.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        while self.taken < self.bytes.len() {
            match rustix::net::send(socket, &self.bytes[self.taken..], SendFlags::NOSIGNAL) {
                Ok(bytes) => self.taken += bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.taken_before += self.taken as u64;
        self.taken = 0;
        self.bytes.clear();
        Ok(())
    }

    /// Drops what is not sent. The connection has ended.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }
}
