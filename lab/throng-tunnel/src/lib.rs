//! User-space TCP clients over a TUN device. The kernel holds only the server's half of each
//! connection, so one machine can hold about twice as many.
//! A client thread owns one [`Tunnel`] and names its connections by *position*: an index that maps
//! to a fixed local address and port. The tunnel does no timing of its own: callers pass the time
//! in and call [`Tunnel::receive`], [`Tunnel::flush`] and [`Tunnel::expire`] from their loop.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | this one | [`Tunnel`]: the device and the connections over it |
//! | `device` | the TUN device: packets to and from the kernel |
//! | `route` | the kernel's route to the device |
//! | `packet` | IPv4 and TCP headers, without I/O |
//! | `tcp` | one connection: its state machine |
//! | `stack` | all connections of a device: receiving; `sending`: the other direction |
//! | `timers` | retransmission timers |
//! | `addresses` | the clients' local addresses and their targets |
//!
//! # Invariants
//!
//! * An idle connection takes 12 bytes, besides its client.
//! * Data is acknowledged only once the client has it, so a server sees an ordinary peer.
//! * Devices are named `throng0` and up. Each owns one part of 198.18.0.0/15.

mod addresses;
mod device;
mod packet;
mod route;
mod stack;
mod tcp;
mod timers;

use std::os::fd::OwnedFd;
use std::time::Duration;

use device::{Device, READ_BYTES_MAX, SEGMENT_BYTES_MAX};
use stack::Stack;

pub use addresses::Targets;
pub use device::{TunnelError, reachable};
pub use route::RTO_MIN;
pub use stack::{Arrival, Unread};
pub use tcp::End;

/// The connections of one client thread, and their device.
pub struct Tunnel {
    device: Device,
    stack: Stack,
    /// The part of the total that [`retransmitted`](Self::retransmitted) has returned so far.
    reported: u64,
}

impl Tunnel {
    /// Opens a device for at most `clients` connections.
    pub fn new(targets: Targets, clients: usize) -> Result<Tunnel, TunnelError> {
        let reaches_loopback = targets.addresses.iter().any(|target| target.ip().is_loopback());
        let device = Device::open(reaches_loopback)?;
        let mut stack = Stack::new(device.addresses(), targets, SEGMENT_BYTES_MAX);
        stack.reserve(clients);
        Ok(Tunnel { device, stack, reported: 0 })
    }

    /// Checks that this process can open a tunnel to these targets, by opening and dropping one.
    pub fn probe(targets: Targets) -> Result<(), TunnelError> {
        Tunnel::new(targets, 0).map(drop)
    }

    /// A buffer large enough for [`receive`](Self::receive).
    pub fn receive_buffer() -> Vec<u8> {
        vec![0; READ_BYTES_MAX]
    }

    /// Starts to connect. An [`Arrival`] reports the outcome; without an answer,
    /// [`expire`](Self::expire) returns the position.
    pub fn open(&mut self, position: usize, now_ns: u64) {
        self.stack.open(index(position), now_ns, &mut self.device);
    }

    /// True if the position has a connection, established or in progress.
    pub fn is_open(&self, position: usize) -> bool {
        self.stack.is_open(index(position))
    }

    /// Sends bytes and returns how many were accepted. If not all, a later [`Arrival`] reports
    /// that the connection is writable.
    pub fn send(&mut self, position: usize, bytes: &[u8], now_ns: u64) -> usize {
        self.stack.send(index(position), bytes, now_ns, &mut self.device)
    }

    /// Closes the connection, if there is one.
    pub fn close(&mut self, position: usize, now_ns: u64) {
        self.stack.close(index(position), now_ns, &mut self.device);
    }

    /// Resets the connection, if there is one.
    pub fn reset(&mut self, position: usize) {
        self.stack.reset(index(position), &mut self.device);
    }

    /// Resets all connections.
    pub fn reset_all(&mut self) {
        (0..self.stack.len()).for_each(|position| self.reset(position));
    }

    /// Reads one packet from the device: `None` if there is none, `Some(None)` if it concerns no
    /// client.
    pub fn receive<'a>(
        &mut self,
        buffer: &'a mut [u8],
        now_ns: u64,
    ) -> Option<Option<Arrival<'a>>> {
        let packet = self.device.read(buffer)?;
        Some(self.stack.receive(packet, now_ns, &mut self.device))
    }

    /// Keeps received bytes of a client that has stopped reading, and shrinks its window.
    pub fn keep_unread(&mut self, position: usize, bytes: &[u8]) {
        self.stack.keep_unread(index(position), bytes);
    }

    /// Returns the bytes kept for a client that reads again, if there are any.
    pub fn take_unread(&mut self, position: usize) -> Option<Unread> {
        self.stack.take_unread(index(position), &mut self.device)
    }

    /// Sends the delayed acknowledgements.
    pub fn flush(&mut self) {
        self.stack.flush(&mut self.device);
    }

    /// Retransmits what has timed out. Returns the position of a connection that was given up;
    /// call until `None`.
    pub fn expire(&mut self, now_ns: u64) -> Option<usize> {
        self.stack.expire(now_ns, &mut self.device).map(|position| position as usize)
    }

    /// When [`expire`](Self::expire) has work to do next.
    pub fn next_ns(&self) -> Option<u64> {
        self.stack.next_ns()
    }

    /// Waits for a packet, `wake`, or the timeout. Returns whether `wake` is readable.
    pub fn wait(&self, wake: &OwnedFd, sleep: Duration) -> bool {
        self.device.wait(wake, sleep)
    }

    /// Packets lost or retransmitted by either side since the last call.
    pub fn retransmitted(&mut self) -> u64 {
        let all = self.stack.retransmitted + self.device.lost();
        all - std::mem::replace(&mut self.reported, all).min(all)
    }
}

/// Callers keep positions below 2^32.
fn index(position: usize) -> u32 {
    position as u32
}
