//! Content for one socket, and the end of a connection.

use std::io::IoSlice;

use throng_tls::{Alert, End, Incoming, Outgoing, RecordFate, SealError};

use super::half::Outbound;
use super::slots::Slot;
use super::{Numbered, TlsNet};
use crate::counters::Counter;
use crate::net::{Net, Transfer};

impl<N: Net> TlsNet<N>
where
    N::Socket: Numbered,
{
    /// Writes content, in records of up to 2^14 bytes. A record follows only once the one before
    /// was taken whole.
    pub(super) fn write_tls(
        &mut self,
        slot: Slot,
        socket: &N::Socket,
        slices: &[IoSlice<'_>],
    ) -> Transfer {
        if self.slots.half(slot).is_some_and(|half| half.is_passing) {
            return self.net.write(socket, slices);
        }
        if let Err(transfer) = self.flush_tls(slot, socket) {
            return transfer;
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut taken = 0;
        while taken < total {
            match self.write_record(slot, socket, slices, taken) {
                Transfer::Bytes(count) => taken += count,
                Transfer::Held(count) => return Transfer::Held(taken + count),
                Transfer::Blocked if taken > 0 => return Transfer::Bytes(taken),
                other => return other,
            }
        }
        Transfer::Bytes(taken)
    }

    /// Seals a record with the content from `from` on, and writes it. If the key wears out, or the
    /// peer has asked for it, a key update goes before it.
    fn write_record(
        &mut self,
        slot: Slot,
        socket: &N::Socket,
        slices: &[IoSlice<'_>],
        from: usize,
    ) -> Transfer {
        let mut records = std::mem::take(&mut self.scratch);
        records.clear();
        self.is_scratch_used = true;
        let outgoing = self.slots.hot(slot).outgoing.as_ref();
        let is_update =
            outgoing.is_some_and(|outgoing| outgoing.check() == Err(SealError::KeyUpdateDue));
        if is_update {
            let seal = |outgoing: &mut Outgoing, incoming: &mut Incoming| {
                incoming.seal_key_update(outgoing, &mut records).is_ok()
            };
            if self.slots.with_both(slot, seal) != Some(true) {
                return Transfer::Gone;
            }
        }
        let update_bytes = records.len();
        let Some(outgoing) = self.slots.hot(slot).outgoing.as_mut() else { return Transfer::Gone };
        // Fails once an alert was sent, or if a key of TLS 1.2 is worn out: only the end is left.
        let Ok(sealed) = outgoing.seal(behind(slices, from), &mut records) else {
            return Transfer::Gone;
        };
        let content_bytes = sealed.content_bytes();
        let written = match self.net.write(socket, &[IoSlice::new(&records)]) {
            Transfer::Bytes(count) | Transfer::Held(count) => count,
            Transfer::Blocked => 0,
            Transfer::Gone => {
                outgoing.keep(sealed);
                return Transfer::Gone;
            }
        };
        let fate = outgoing.settle(sealed, written.saturating_sub(update_bytes));
        let (transfer, rest) = match fate {
            RecordFate::Whole => (Transfer::Bytes(content_bytes), &[][..]),
            RecordFate::Part { .. } => (Transfer::Held(content_bytes), &records[written..]),
            // The key update stays: its number is used up.
            RecordFate::NotAtAll => {
                (Transfer::Blocked, &records[written.min(update_bytes)..update_bytes])
            }
        };
        if !rest.is_empty() {
            self.slots.half_or_new(slot).outbound.push(rest);
        }
        self.counters.add(Counter::TlsKeyUpdates, u64::from(is_update));
        self.counters.add(Counter::TlsRecords, u64::from(fate != RecordFate::NotAtAll));
        self.scratch = records;
        transfer
    }

    /// Writes what waits for the socket.
    pub(super) fn flush_tls(&mut self, slot: Slot, socket: &N::Socket) -> Result<(), Transfer> {
        while let Some(half) = self.slots.half_mut(slot).filter(|half| !half.outbound.is_empty()) {
            match self.net.write(socket, &[IoSlice::new(half.outbound.rest())]) {
                Transfer::Bytes(count) | Transfer::Held(count) => half.outbound.advance(count),
                other => return Err(other),
            }
        }
        self.slots.trim(slot);
        Ok(())
    }

    /// Drops what waits for the socket, of which the sending side is shut down.
    pub(super) fn drop_output(&mut self, slot: Slot) {
        if let Some(half) = self.slots.half_mut(slot) {
            half.outbound = Outbound::default();
            self.slots.trim(slot);
        }
    }

    /// Tells the peer that nothing more is sent, or what it did wrong if that was not told yet.
    /// Nothing is told behind a record of which the socket took only a part: the caller gives up
    /// what it has, and must not be wrong about that.
    pub(super) fn send_goodbye(&mut self, slot: Slot, socket: &N::Socket) {
        let half = self.slots.half(slot);
        if half.is_some_and(|half| !half.outbound.is_empty()) {
            // Sealed and dropped: nothing can be sealed after it.
            self.scratch.clear();
            if let Some(outgoing) = self.slots.hot(slot).outgoing.as_mut() {
                let _ = outgoing.seal_alert(Alert::CloseNotify, &mut self.scratch);
            }
            return;
        }
        let failure = match half.and_then(|half| half.end) {
            Some(End::Failed(alert)) => Some(alert),
            // It listens no more.
            Some(End::PeerFailed(_)) => return,
            Some(End::Closed) | None => None,
        };
        // Behind an alert, and before the handshake is done, there is none.
        let is_sent = self.send_alert(slot, socket, failure.unwrap_or(Alert::CloseNotify));
        if is_sent && failure.is_some() {
            self.count(Counter::TlsAlertsSent);
        }
    }
}

/// The slices without their first `from` bytes.
fn behind<'a>(slices: &'a [IoSlice<'_>], from: usize) -> impl Iterator<Item = &'a [u8]> {
    let mut left = from;
    slices.iter().map(move |slice| {
        let skipped = left.min(slice.len());
        left -= skipped;
        &slice[skipped..]
    })
}
