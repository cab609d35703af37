//! Content for many sockets, sealed together.
//!
//! A slice of a fan-out writes the same message to about a hundred sockets. A first pass touches
//! the state of each connection, so that the processor fetches all of them at once, a second one
//! seals, and then all records go to the net below in one call.

use std::ops::Range;

use throng_tls::{CONTENT_BYTES_MAX, RecordFate, SealedRecord};

use super::plan::WritePlan;
use super::slots::Slot;
use super::{Numbered, SCRATCH_BYTES_MAX, TlsNet};
use crate::counters::Counter;
use crate::net::{Net, Transfer, WriteRequest};

impl<N: Net> TlsNet<N>
where
    N::Socket: Numbered,
{
    /// Writes each request; see [`Net::write_each`].
    pub(super) fn write_batch(
        &mut self,
        requests: &[WriteRequest<'_, N::Socket>],
        transfers: &mut Vec<Transfer>,
    ) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.plans.clear();
        for request in requests {
            let plan = self.plan(request);
            batch.plans.push(plan);
        }
        let (mut requests, mut plans) = (requests, &mut batch.plans[..]);
        while !requests.is_empty() {
            let count = self.seal_some(requests, plans);
            let (now, later) = requests.split_at(count);
            let (planned, planned_later) = plans.split_at_mut(count);
            self.write_sealed(now, planned, &mut batch.transfers, transfers);
            (requests, plans) = (later, planned_later);
        }
        self.batch = batch;
    }

    /// Says how to write a request, or writes it if it cannot share a call with others.
    fn plan(&mut self, request: &WriteRequest<'_, N::Socket>) -> WritePlan {
        let Some(slot) = self.slots.find(request.socket.number()) else { return WritePlan::Plain };
        if self.slots.hot(slot).is_ready() && request.bytes.len() <= CONTENT_BYTES_MAX {
            return WritePlan::Ready(slot);
        }
        let slices = [std::io::IoSlice::new(request.bytes)];
        WritePlan::Written(self.write_tls(slot, request.socket, &slices))
    }

    /// Seals records for the first requests, as many as the scratch is for. Returns how many
    /// requests can be written now.
    fn seal_some(
        &mut self,
        requests: &[WriteRequest<'_, N::Socket>],
        plans: &mut [WritePlan],
    ) -> usize {
        let TlsNet { slots, scratch, .. } = self;
        scratch.clear();
        self.is_scratch_used = true;
        for (at, (request, plan)) in requests.iter().zip(plans.iter_mut()).enumerate() {
            let &mut WritePlan::Ready(slot) = plan else { continue };
            if scratch.len() >= SCRATCH_BYTES_MAX {
                return at;
            }
            let start = scratch.len();
            let outgoing = slots.hot(slot).outgoing.as_mut();
            let sealed = outgoing.map(|outgoing| outgoing.seal([request.bytes], scratch));
            // It was ready, and no two requests are for one socket.
            *plan = match sealed {
                Some(Ok(sealed)) => WritePlan::Sealed(slot, sealed, start..scratch.len()),
                _ => WritePlan::Written(Transfer::Gone),
            };
        }
        requests.len()
    }

    /// Writes the requests, and settles their records.
    fn write_sealed(
        &mut self,
        requests: &[WriteRequest<'_, N::Socket>],
        plans: &mut [WritePlan],
        written: &mut Vec<Transfer>,
        transfers: &mut Vec<Transfer>,
    ) {
        let TlsNet { net, scratch, .. } = self;
        let mut below = Vec::with_capacity(requests.len());
        for (&WriteRequest { socket, bytes }, plan) in requests.iter().zip(plans.iter()) {
            match plan {
                WritePlan::Plain => below.push(WriteRequest { socket, bytes }),
                WritePlan::Sealed(_, _, range) => {
                    below.push(WriteRequest { socket, bytes: &scratch[range.clone()] });
                }
                WritePlan::Ready(_) | WritePlan::Written(_) => {}
            }
        }
        written.clear();
        net.write_each(&below, written);
        let mut written = written.drain(..);
        let mut records = 0;
        for plan in plans {
            let plan = std::mem::replace(plan, WritePlan::Plain);
            let transfer = match plan {
                WritePlan::Written(transfer) => transfer,
                WritePlan::Plain => written.next().unwrap_or(Transfer::Gone),
                WritePlan::Ready(_) => {
                    unreachable!("`seal_some` has counted up to the first of these")
                }
                WritePlan::Sealed(slot, sealed, range) => {
                    let transfer = written.next().unwrap_or(Transfer::Gone);
                    let transfer = self.settle(slot, sealed, range, transfer);
                    records +=
                        u64::from(matches!(transfer, Transfer::Bytes(_) | Transfer::Held(_)));
                    transfer
                }
            };
            transfers.push(transfer);
        }
        self.counters.add(Counter::TlsRecords, records);
    }

    /// Says what became of a record in the scratch, and keeps what is left of it.
    fn settle(
        &mut self,
        slot: Slot,
        sealed: SealedRecord,
        range: Range<usize>,
        transfer: Transfer,
    ) -> Transfer {
        let content_bytes = sealed.content_bytes();
        let Some(outgoing) = self.slots.hot(slot).outgoing.as_mut() else { return Transfer::Gone };
        let count = match transfer {
            Transfer::Bytes(count) | Transfer::Held(count) => count,
            Transfer::Blocked => 0,
            Transfer::Gone => {
                outgoing.keep(sealed);
                return Transfer::Gone;
            }
        };
        match outgoing.settle(sealed, count) {
            RecordFate::Whole => Transfer::Bytes(content_bytes),
            RecordFate::NotAtAll => Transfer::Blocked,
            RecordFate::Part { rest_bytes } => {
                let rest = &self.scratch[range.end - rest_bytes..range.end];
                self.slots.half_or_new(slot).outbound.push(rest);
                Transfer::Held(content_bytes)
            }
        }
    }
}
