//! Bytes on their way to a publishing connection's socket.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::failure::Failure;
use crate::marker::now_ns;
use crate::tls::TlsConnections;

/// The position of a publishing connection in its own TLS.
pub(super) const POSITION: usize = 0;

/// Content that is sealed at a time. More could wait in sealed form, and would count as accepted
/// only when all of it is.
const SEALED_BYTES_MAX: usize = 16 * 1024;

/// The bytes that a connection has to send, and how many the kernel has accepted in total.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` the kernel has accepted, or TLS.
    taken: usize,
    /// The last bytes of those, whose records the kernel has not accepted completely.
    sealed: usize,
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
        self.taken_before + (self.taken - self.sealed) as u64
    }

    /// Sends until everything is accepted or the socket is full.
    pub(super) fn flush(
        &mut self,
        socket: &OwnedFd,
        tls: Option<&mut TlsConnections>,
    ) -> Result<(), Failure> {
        let is_full = match tls {
            Some(tls) => self.flush_sealed(socket, tls)?,
            None => self.flush_plain(socket)?,
        };
        if !is_full {
            self.taken_before += self.taken as u64;
            self.taken = 0;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Returns whether the socket is full.
    fn flush_plain(&mut self, socket: &OwnedFd) -> Result<bool, Failure> {
        while self.taken < self.bytes.len() {
            match send(socket, &self.bytes[self.taken..])? {
                0 => return Ok(true),
                sent => self.taken += sent,
            }
        }
        Ok(false)
    }

    /// Returns whether the socket is full, or the handshake is not done.
    fn flush_sealed(
        &mut self,
        socket: &OwnedFd,
        tls: &mut TlsConnections,
    ) -> Result<bool, Failure> {
        let carrier = |records: &[u8]| send(socket, records);
        if tls.flush(POSITION, now_ns(), carrier)? {
            return Ok(true);
        }
        self.sealed = 0;
        while self.taken < self.bytes.len() {
            let end = self.bytes.len().min(self.taken + SEALED_BYTES_MAX);
            let sent = tls.send(POSITION, &self.bytes[self.taken..end], now_ns(), carrier)?;
            self.taken += sent.taken;
            if sent.is_blocked {
                self.sealed = sent.taken;
            }
            if sent.is_blocked || sent.taken == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drops what is not sent. The connection has ended.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.taken, self.sealed) = (0, 0);
    }
}

/// Sends bytes and returns how many the socket accepted: none if it is full.
fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Failure> {
    loop {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => return Ok(sent),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
