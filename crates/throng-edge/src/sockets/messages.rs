//! Writes messages that many connections share, to one connection or to many in one call.

use std::sync::Arc;

use throng_core::Message;
use throng_dialect::Encoding;

use super::Sockets;
use super::budget::Budget;
use super::outcome::{self, Outcome};
use super::own_metrics::OwnMetrics;
use crate::close_reason::CloseReason;
use crate::compression::COST_FACTOR;
use crate::connection::{Connection, ConnectionId, Flags};
use crate::counters::Counter;
use crate::net::{Net, Transfer, WriteRequest};

/// The costs of a write beside its bytes.
pub(crate) struct Costs<'a> {
    budget: &'a mut Budget,
    metrics: &'a OwnMetrics,
}

impl Costs<'_> {
    /// Counts what was compressed, if anything, and charges it to the slice.
    pub(crate) fn compressed(&mut self, bytes: usize) {
        if bytes > 0 {
            self.budget.charge_slice(bytes.saturating_mul(COST_FACTOR));
            self.metrics.add(Counter::MessagesCompressed, 1);
        }
    }

    pub(crate) fn is_slice_spent(&self) -> bool {
        self.budget.is_slice_spent()
    }
}

impl<N: Net> Sockets<N> {
    /// Writes messages to one connection in one call, as `encode` frames them; up to the first that
    /// it leaves for the next call.
    pub(crate) fn write_messages<'m>(
        &mut self,
        id: ConnectionId,
        messages: impl Iterator<Item = &'m Arc<Message>>,
        is_for: impl Fn(&Message) -> bool,
        mut encode: impl FnMut(&'m Message, &mut Costs<'_>) -> Option<(Encoding, &'m [u8])>,
    ) -> Outcome {
        let mut costs = Costs { budget: &mut self.budget, metrics: &self.metrics };
        let socket = &self.connections[id].socket;
        outcome::write(&mut self.net, socket, messages, is_for, |it| encode(it, &mut costs))
    }

    /// Writes to several connections in one call: to the one of each item the bytes that `bytes`
    /// finds for it. Appends the results to `transfers`.
    pub(crate) fn write_each<'b, T>(
        &mut self,
        items: &[T],
        id_of: impl Fn(&T) -> ConnectionId,
        transfers: &mut Vec<Transfer>,
        mut bytes: impl FnMut(&T, &Connection<N::Socket>, &mut Costs<'_>) -> &'b [u8],
    ) {
        let Sockets { net, connections, budget, metrics, .. } = self;
        let mut costs = Costs { budget, metrics };
        let request = |item: &T| {
            let connection = &connections[id_of(item)];
            WriteRequest { socket: &connection.socket, bytes: bytes(item, connection, &mut costs) }
        };
        let requests: Vec<_> = items.iter().map(request).collect();
        net.write_each(&requests, transfers);
        debug_assert_eq!(items.len(), transfers.len());
    }

    /// Counts the messages that were written, and keeps the rest of a partly written one.
    pub(crate) fn conclude_write(&mut self, id: ConnectionId, outcome: Outcome) {
        let connection = &mut self.connections[id];
        let is_written = outcome.sent_bytes > 0 || connection.has(Flags::WRITTEN);
        connection.flags.set(Flags::WRITTEN, is_written);
        if outcome.partial.is_some() {
            connection.io_mut().partial = outcome.partial;
        }
        self.metrics.add(connection.delivery_counter(), outcome.deliveries);
        self.metrics.add(Counter::SentBytes, outcome.sent_bytes);
        self.budget.charge_slice(outcome.sent_bytes as usize);
        if outcome.is_gone {
            self.condemn(id, CloseReason::Peer);
        } else if outcome.is_blocked {
            self.block(id);
        }
    }
}
