//! Clients without sockets: TCP of our own over a TUN device, so that of a connection only the
//! server's half is in the kernel.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | this one | a tunnel: the device and the connections over it |
//! | `device` | the TUN device: packets to and from the kernel |
//! | `route` | the kernel's route to it |
//! | `packet` | IPv4 and TCP headers, without I/O |
//! | `tcp` | one connection: what a segment does to it |
//! | `stack` | all connections of a device: what comes in; `sending`: what goes out |
//! | `timers` | when something is sent again |
//! | `ends` | the clients' addresses, and whom they connect to |
//!
//! # Invariants
//!
//! * A parked connection takes 12 bytes beside its client.
//! * The server sees an ordinary peer: what it sends is acknowledged when its client has it.
//! * Devices are named `throng0` and up, and have each its own part of 198.18.0.0/15.

mod device;
mod ends;
mod packet;
mod route;
mod stack;
mod tcp;
mod timers;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::marker::now_ns;
use device::{Device, READ_BYTES_MAX, SEGMENT_BYTES_MAX};
use stack::Stack;

pub use device::{TunnelError, reachable};
pub use ends::Targets;
pub use route::PATIENCE;
pub use stack::{Arrival, Held};
pub use tcp::End;

/// The connections of one thread's clients, and their device.
pub struct Tunnel {
    device: Device,
    stack: Stack,
    /// What was told of [`repeated`](Self::repeated) before.
    told: u64,
}

impl Tunnel {
    /// Opens a device for so many clients at most.
    pub fn new(targets: Targets, clients: usize) -> Result<Tunnel, TunnelError> {
        let reaches_loopback = targets.addresses.iter().any(|target| target.ip().is_loopback());
        let device = Device::open(reaches_loopback)?;
        let mut stack = Stack::new(device.addresses(), targets, SEGMENT_BYTES_MAX);
        stack.reserve(clients);
        Ok(Tunnel { device, stack, told: 0 })
    }

    /// Whether this process may have a tunnel to these targets; makes a device, and lets it go.
    pub fn probe(targets: Targets) -> Result<(), TunnelError> {
        Tunnel::new(targets, 0).map(drop)
    }

    /// A buffer for [`receive`](Self::receive).
    pub fn buffer() -> Vec<u8> {
        vec![0; READ_BYTES_MAX]
    }

    /// Begins to connect. An [`Arrival`] says how that went; if there is no answer, none does.
    pub fn open(&mut self, position: usize, now_ns: u64) {
        self.stack.open(place(position), now_ns, &mut self.device);
    }

    /// Whether there is a connection, or one on its way.
    pub fn is_open(&self, position: usize) -> bool {
        self.stack.is_open(place(position))
    }

    /// Sends; returns how many bytes were taken. If not all, an [`Arrival`] says when there is
    /// room.
    pub fn send(&mut self, position: usize, bytes: &[u8]) -> usize {
        self.stack.send(place(position), bytes, now_ns(), &mut self.device)
    }

    /// Closes the client's connection, if it has one.
    pub fn close(&mut self, position: usize, with_reset: bool) {
        match with_reset {
            true => self.stack.reset(place(position), &mut self.device),
            false => self.stack.close(place(position), now_ns(), &mut self.device),
        }
    }

    /// Resets all connections.
    pub fn close_all(&mut self) {
        (0..self.stack.len()).for_each(|position| self.close(position, true));
    }

    /// Takes the next packet, if there is one; what it means for a client, if anything.
    pub fn receive<'a>(
        &mut self,
        buffer: &'a mut [u8],
        now_ns: u64,
    ) -> Option<Option<Arrival<'a>>> {
        let packet = self.device.read(buffer)?;
        Some(self.stack.receive(packet, now_ns, &mut self.device))
    }

    /// Keeps what has arrived for a client that does not read.
    pub fn hold(&mut self, position: usize, bytes: &[u8]) {
        self.stack.hold(place(position), bytes);
    }

    /// What has been kept for a client that reads again.
    pub fn release(&mut self, position: usize) -> Option<Held> {
        self.stack.release(place(position), &mut self.device)
    }

    /// Acknowledges what has been received since the last time.
    pub fn flush(&mut self) {
        self.stack.flush(&mut self.device);
    }

    /// Sends again what has not been acknowledged for too long. Returns a client whose server does
    /// not answer any more; to be called until there is none.
    pub fn expire(&mut self, now_ns: u64) -> Option<usize> {
        self.stack.expire(now_ns, &mut self.device).map(|position| position as usize)
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub fn next_ns(&self) -> Option<u64> {
        self.stack.next_ns()
    }

    /// Sleeps until something arrives, at most so long; whether `wake` has something to read.
    pub fn wait(&self, wake: &OwnedFd, sleep: Duration) -> bool {
        self.device.wait(wake, sleep)
    }

    /// Packets that were lost, or sent again, by either side since the last time.
    pub fn repeated(&mut self) -> u64 {
        let all = self.stack.repeated + self.device.lost();
        all - std::mem::replace(&mut self.told, all).min(all)
    }
}

/// Positions of a thread's clients are below 2^32, as fleets check.
fn place(position: usize) -> u32 {
    position as u32
}
