//! Reads packets from a tunnel and handles their events.

use super::network::Carrier;
use super::thread::ClientThread;
use crate::failure::Failure;
use crate::marker::now_ns;
use throng_tunnel::{Arrival, End};

/// Packets handled before commands and connects have their turn.
const PACKETS_SLICE: usize = 512;

impl ClientThread {
    /// Reads waiting packets, at most one slice, and sends the acknowledgements.
    pub(super) fn take_packets(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let now = now_ns();
        for _ in 0..PACKETS_SLICE {
            let Carrier::Tunnel(tunnel) = &mut self.network.carrier else { break };
            match tunnel.receive(&mut buffer, now) {
                None => break,
                Some(None) => {}
                Some(Some(arrival)) => self.arrived(&arrival),
            }
        }
        self.buffer = buffer;
        if let Carrier::Tunnel(tunnel) = &mut self.network.carrier {
            tunnel.flush();
        }
    }

    fn arrived(&mut self, arrival: &Arrival<'_>) {
        let position = arrival.position as usize;
        if arrival.is_writable {
            self.flush(position);
        }
        let is_paused = self.is_paused(position);
        if is_paused && let Carrier::Tunnel(tunnel) = &mut self.network.carrier {
            // A client that does not read still notices a reset.
            if !arrival.bytes.is_empty() {
                tunnel.keep_unread(position, arrival.bytes);
            }
        } else if !arrival.bytes.is_empty() && !self.received(position, arrival.bytes) {
            return;
        }
        match arrival.end {
            None => {}
            Some(End::Finished) if is_paused => {}
            Some(End::Finished) => self.end(position),
            Some(End::Reset) => self.fail(position, Failure::Reset),
            Some(End::Refused) => self.fail(position, Failure::Refused),
        }
    }

    /// Delivers what arrived while the client did not read.
    pub(super) fn release(&mut self, position: usize) {
        let Carrier::Tunnel(tunnel) = &mut self.network.carrier else { return };
        let Some(unread) = tunnel.take_unread(position) else { return };
        let goes_on = unread.bytes.is_empty() || self.received(position, &unread.bytes);
        if goes_on && unread.is_finished {
            self.end(position);
        }
    }

    /// Retransmits what has timed out, and fails connections that were given up.
    pub(super) fn expire(&mut self) {
        let now = now_ns();
        while let Carrier::Tunnel(tunnel) = &mut self.network.carrier
            && let Some(position) = tunnel.expire(now)
        {
            self.fail(position, Failure::ConnectTimeout);
        }
    }
}
