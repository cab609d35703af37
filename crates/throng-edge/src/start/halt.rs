//! All workers leave for another process, or return.
//!
//! The thread that conducts it sees these steps, and may turn back before each:
//!
//! 1. [`Edge::hold`]: no connection goes to the control plane any more, and no TLS handshake
//!    begins. Everything else goes on.
//! 2. [`Edge::halt`]: the workers stop, and finish what is under way between them.
//! 3. [`Edge::send_workers`]: they freeze, and send what they were, each through a channel of its
//!    own, with copies of the sockets.
//! 4. [`Edge::leave`]: their threads end. [`Edge::go_back`] instead: they thaw what they have
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
    /// Keeps connections from the control plane until [`Edge::go_back`]: what it would serve waits
    /// with the workers.
    pub fn hold(&self) {
        self.succession.hold(true);
    }

    /// Stops all workers, and lets them finish what is under way between them. Returns their
    /// channels to the other process, in order.
    pub fn halt(&self) -> io::Result<Vec<OwnedFd>> {
        let assembly = &self.succession.assembly;
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in &self.queues {
            let (mine, its) = Channel::pair()?;
            near.push(mine);
            far.push(its);
        }
        assembly.open();
        for (sender, channel) in self.to_workers.senders().iter().zip(&near) {
            // So many connections are on their way to the worker that there is no room.
            sender.send(HandoffHeader::CHANNEL, channel.as_fd(), &[])?;
        }
        let workers = self.queues.len();
        if !assembly.all_wait(workers, HALT_TIMEOUT) {
            return Err(io::Error::other("a worker does not stop"));
        }
        assembly.order(Order::Settle);
        if !assembly.all_wait(workers, HALT_TIMEOUT) {
            return Err(io::Error::other("the workers do not come to rest"));
        }
        assembly.take_failure().map_or(Ok(far), |why| Err(io::Error::other(why)))
    }

    /// Lets the halted workers freeze and send what they are.
    pub fn send_workers(&self) {
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
        self.go_on();
        self.succession.hold(false);
    }
}
