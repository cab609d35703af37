//! All workers leave for another process, or return.
//!
//! The thread that conducts it sees these steps, and may turn back before each:
//!
//! 1. [`Edge::send_ahead`]: the workers send copies of sockets, while they serve.
//! 2. [`Edge::hold`]: no connection goes to the control plane any more, and no TLS handshake
//!    begins. Everything else goes on.
//! 3. [`Edge::halt`]: the workers stop, and finish what is under way between them.
//! 4. [`Edge::send_workers`]: they freeze, and send what they were, with copies of the other
//!    sockets.
//! 5. [`Edge::leave`]: their threads end. [`Edge::go_back`] instead: they thaw what they have
//!    frozen.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use throng_handover::channel::Channel;

use super::assembly::Order;
use super::edge::Edge;
use crate::net::HandoffHeader;

/// How long all workers may take to stop: a few slices.
const HALT_TIMEOUT: Duration = Duration::from_secs(10);

impl Edge {
    /// Lets each worker send copies of its sockets ahead through a channel of its own, while it
    /// serves. Returns the other ends of the channels, in order.
    pub fn send_ahead(&self) -> io::Result<Vec<OwnedFd>> {
        let pairs = self.queues.iter().map(|_| Channel::pair());
        let (near, far): (Vec<_>, Vec<_>) =
            pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        self.send_channels(HandoffHeader::CHANNEL_AHEAD, &near)?;
        self.succession.set_channels(near);
        Ok(far)
    }

    fn send_channels(&self, header: HandoffHeader, channels: &[OwnedFd]) -> io::Result<()> {
        for (sender, channel) in self.to_workers.senders().iter().zip(channels) {
            // Fails if so many connections are on their way to the worker that there is no room.
            sender.send(header, channel.as_fd(), &[])?;
        }
        Ok(())
    }

    /// Keeps connections from the control plane until [`Edge::go_back`]: what it would serve waits
    /// with the workers.
    pub fn hold(&self) {
        self.succession.hold(true);
    }

    /// Stops all workers, and lets them finish what is under way between them. Call
    /// [`Edge::send_ahead`] before.
    pub fn halt(&self) -> io::Result<()> {
        let assembly = &self.succession.assembly;
        assembly.open();
        self.succession.with_channels(|near| self.send_channels(HandoffHeader::CHANNEL, near))?;
        let workers = self.queues.len();
        if !assembly.all_wait(workers, HALT_TIMEOUT) {
            return Err(io::Error::other("a worker does not stop"));
        }
        assembly.order(Order::Settle);
        if !assembly.all_wait(workers, HALT_TIMEOUT) {
            return Err(io::Error::other("the workers do not come to rest"));
        }
        assembly.take_failure().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Lets the halted workers freeze and send what they are.
    pub fn send_workers(&self) {
        self.succession.freezing.begin_all();
        self.succession.assembly.order(Order::Send);
    }

    /// Waits until all workers have sent what they were, at most for `timeout`.
    pub fn await_workers(&self, timeout: Duration) -> io::Result<()> {
        let assembly = &self.succession.assembly;
        if !assembly.all_wait(self.queues.len(), timeout) {
            return Err(io::Error::other("a worker does not come to an end"));
        }
        assembly.take_failure().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Ends the workers, whose connections another process has.
    pub fn leave(&self) {
        self.succession.assembly.order(Order::Leave);
    }

    /// The workers go on, and what the control plane would serve still waits with them.
    pub fn go_on(&self) {
        self.succession.assembly.order(Order::Return);
    }

    /// The workers go on, as if nothing had been.
    pub fn go_back(&self) {
        self.succession.freezing.end_all();
        self.go_on();
        self.succession.set_channels(Vec::new());
        self.succession.hold(false);
    }
}
