//! The order in which a connection is written what its channels have for it, if it takes a part
//! each time: each write begins where the last one stopped, so that all of its channels have their
//! turns, however many messages some of them have.

use throng_core::{SubscriptionId, Waiting};

use super::Delivery;
use crate::connection::{ConnectionId, State};
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// The subscriptions of a connection, from the one on to which the last write did not come.
    pub(super) fn in_turn(&self, id: ConnectionId) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(id).collect();
        let next = self.next_turn(id);
        if let Some(at) = next.and_then(|next| all.iter().position(|&own| own == next)) {
            all.rotate_left(at);
        }
        all
    }

    /// Decides where the next write begins: with the first of these subscriptions that lacks
    /// something, but not again with one that had its turn and `has_begun`, unless it is the only
    /// one.
    pub(super) fn note_turn(
        &mut self,
        id: ConnectionId,
        written: &[SubscriptionId],
        has_begun: bool,
    ) {
        if written.len() < 2 && self.next_turn(id).is_none() {
            return;
        }
        let lacks_some =
            |it: &&SubscriptionId| !matches!(self.subscriptions.waiting(**it), Waiting::Nothing);
        let (first, others) = written.split_at(usize::from(has_begun).min(written.len()));
        let next = others.iter().chain(first).find(lacks_some).copied();
        if next.is_some() {
            self[id].io_mut().next_turn = next;
        } else if let Some(io) = &mut self[id].io {
            io.next_turn = None;
            self.connections_mut().trim_buffers(id);
        }
    }

    /// The same after a write of some subscriptions to a connection that kept up before.
    pub(super) fn note_first_turn(&mut self, id: ConnectionId, written: &[SubscriptionId]) {
        let connection = &self[id];
        if connection.state() == State::Streaming
            && (!connection.takes_messages() || connection.holds_for_acks())
            && self.next_turn(id).is_none()
        {
            self.note_turn(id, written, false);
        }
    }

    fn next_turn(&self, id: ConnectionId) -> Option<SubscriptionId> {
        self[id].io.as_ref()?.next_turn
    }
}
