//! What comes over a tunnel: packets, read until there are none, and what they mean for clients.

use super::network::Network;
use super::thread::Thread;
use crate::marker::now_ns;
use crate::tally::Failure;
use throng_tunnel::{Arrival, End};

/// Packets that are taken before commands and connects get their turn again.
const PACKETS_SLICE: usize = 512;

impl Thread {
    /// Takes the packets that wait, a slice at most, and acknowledges what they brought.
    pub(super) fn take_packets(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let now = now_ns();
        for _ in 0..PACKETS_SLICE {
            let Network::Tunnel(tunnel) = &mut self.network else { break };
            match tunnel.receive(&mut buffer, now) {
                None => break,
                Some(None) => {}
                Some(Some(arrival)) => self.arrived(&arrival),
            }
        }
        self.buffer = buffer;
        if let Network::Tunnel(tunnel) = &mut self.network {
            tunnel.flush();
        }
    }

    fn arrived(&mut self, arrival: &Arrival<'_>) {
        let position = arrival.position as usize;
        if arrival.is_writable {
            self.flush(position);
        }
        let is_blind = self.is_blind(position);
        if is_blind && let Network::Tunnel(tunnel) = &mut self.network {
            // A reset is heard also by who does not read.
            if !arrival.bytes.is_empty() {
                tunnel.keep_unread(position, arrival.bytes);
            }
        } else if !arrival.bytes.is_empty() && !self.received(position, arrival.bytes) {
            return;
        }
        match arrival.end {
            None => {}
            Some(End::Finished) if is_blind => {}
            Some(End::Finished) => self.end(position),
            Some(End::Reset) => self.fail(position, Failure::Reset),
            Some(End::Refused) => self.fail(position, Failure::Refused),
        }
    }

    /// A client reads again: it gets what came meanwhile.
    pub(super) fn release(&mut self, position: usize) {
        let Network::Tunnel(tunnel) = &mut self.network else { return };
        let Some(unread) = tunnel.take_unread(position) else { return };
        let goes_on = unread.bytes.is_empty() || self.received(position, &unread.bytes);
        if goes_on && unread.is_finished {
            self.end(position);
        }
    }

    /// Has sent again what was not acknowledged; connections that nobody answers fail.
    pub(super) fn expire(&mut self) {
        let now = now_ns();
        while let Network::Tunnel(tunnel) = &mut self.network
            && let Some(position) = tunnel.expire(now)
        {
            self.fail(position, Failure::ConnectTimeout);
        }
    }
}
