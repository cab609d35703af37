//! A slice of the fan-outs under way: who is visited, and what they are written together.
//!
//! Most of a sweep is one message to connections that take it whole, or one answer to long-polls.
//! Those are handed to the [`Net`] together, which may have a way to write them in fewer calls;
//! whoever lacks more than one message or needs bytes of its own is served one by one.

use std::sync::Arc;

use throng_core::{Message, SubscriptionId, Waiting};

use super::deliver::Outcome;
use super::poll::Shared;
use super::{VISITS_PER_SLICE, VISITS_PER_SLICE_MIN, Worker};
use crate::connection::{Flags, Partial, State};
use crate::framing::Framing;
use crate::net::{Net, Parcel, Transfer};

/// Fewer than this are written one by one: hardly anything shares the call.
const TOGETHER_MIN: usize = 4;

/// Room of a worker that is used anew in each slice.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Subscriptions that are behind, and their connections.
    pub(super) visits: Vec<(SubscriptionId, u32)>,
    /// Those of them that are written together.
    together: Vec<(SubscriptionId, u32)>,
    /// Long-polls that share answers, and which of them.
    pub(super) polls: Vec<(u32, usize)>,
    pub(super) answers: Vec<Shared>,
    pub(super) transfers: Vec<Transfer>,
    outcomes: Vec<Outcome>,
}

impl<N: Net> Worker<N> {
    /// One slice of the fan-outs under way.
    pub(super) fn fan_out(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.begin_slice();
        let mut visits = self.visits_per_slice;
        loop {
            self.subscriptions.next_batch(&mut visits, &mut batch.visits);
            if batch.visits.is_empty() {
                break;
            }
            if batch.visits.len() >= TOGETHER_MIN {
                self.deliver_together(&mut batch);
                self.answer_together(&mut batch);
            }
            for (subscription, index) in batch.visits.drain(..) {
                if self.deliver(index, subscription) {
                    // Its rest is for another slice.
                    visits = 0;
                }
            }
        }
        // Where they are written much there are fewer of them in the next slice.
        self.visits_per_slice = match self.slice_bytes {
            0 => (self.visits_per_slice / 2).max(VISITS_PER_SLICE_MIN),
            _ => (self.visits_per_slice * 2).min(VISITS_PER_SLICE),
        };
        self.batch = batch;
    }

    /// Writes to those of the batch that lack one shared message, and takes them out of it.
    fn deliver_together(&mut self, batch: &mut Batch) {
        let Batch { visits, together, transfers, outcomes, .. } = batch;
        let simple = visits.iter().find_map(|&(id, index)| self.lacks_one(index, id));
        let Some(message) = simple.cloned() else { return };
        visits.retain(|&(subscription, index)| {
            let known = self.lacks_one(index, subscription);
            let is_shared = known.is_some_and(|it| Arc::ptr_eq(it, &message));
            if is_shared {
                together.push((subscription, index));
            }
            !is_shared
        });
        let Worker { connections, net, .. } = self;
        // `lacks_one` has found each of these connections, so that none is left out.
        let parcels = together.iter().filter_map(|&(_, index)| {
            let connection = connections.get(index)?;
            let is_chunked = connection.has(Flags::CHUNKED);
            let bytes = connection.framing.encode(&message, is_chunked);
            Some(Parcel { socket: &connection.socket, bytes })
        });
        let parcels: Vec<_> = parcels.collect();
        net.write_each(&parcels, transfers);
        let lengths = parcels.iter().map(|parcel| parcel.bytes.len());
        let written = lengths.zip(transfers.drain(..));
        outcomes.extend(written.map(|(length, transfer)| outcome(transfer, length, &message)));
        for ((subscription, index), outcome) in together.drain(..).zip(outcomes.drain(..)) {
            let is_blocked = outcome.is_blocked;
            self.conclude(index, subscription, outcome);
            if is_blocked {
                self.subscriptions.block(subscription);
            }
        }
    }

    /// The message that the subscription lacks, if it lacks just one, to be written as it is.
    fn lacks_one(&self, index: u32, subscription: SubscriptionId) -> Option<&Arc<Message>> {
        let connection = self.connections.get(index)?;
        let is_composed = connection.has(Flags::MULTIPLE)
            && matches!(connection.framing, Framing::Sse | Framing::SseEnvelope);
        if connection.has(Flags::BLOCKED) || connection.state != State::Parked || is_composed {
            return None;
        }
        let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
            return None;
        };
        let message = messages.next().filter(|_| messages.next().is_none())?;
        (message.excluded != Some(self.name_of(index))).then_some(message)
    }
}

/// What writing `length` bytes of a message came to.
fn outcome(transfer: Transfer, length: usize, message: &Arc<Message>) -> Outcome {
    let written = match transfer {
        Transfer::Bytes(written) => written,
        Transfer::Blocked => 0,
        Transfer::End | Transfer::Gone => return Outcome { is_gone: true, ..Outcome::default() },
    };
    let is_whole = written == length;
    let partial = (written > 0 && !is_whole)
        .then(|| Partial { message: Arc::clone(message), from: written as u32 });
    Outcome {
        // Of a part the rest belongs to the connection: the cursor is past it.
        advanced_to: (written > 0).then_some(message.id.offset),
        deliveries: u64::from(is_whole),
        sent_bytes: written as u64,
        partial,
        is_blocked: !is_whole,
        is_gone: false,
    }
}
