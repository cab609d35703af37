//! Receipts of publications, checked against what the clients' sockets have taken.
//!
//! When a receipt ends, the clients read all that their sockets have taken: a message counts as
//! written exactly if it is whole in there. A client that followed the channel again since the
//! publication may have the message from either subscription; all others tell.

use std::sync::atomic::Ordering;

use throng_core::Delivered;

use super::World;
use super::receipt_desk::Open;
use crate::{Check, ensure};

impl World {
    /// Sometimes ends a receipt whose time is over.
    pub(super) fn end_some_receipt(&mut self) -> Check {
        let Some(open) = self.receipts.take_some() else { return Ok(()) };
        let is_complete = open.is_complete.load(Ordering::Relaxed);
        let delivered = self.check_receipt(&open)?;
        self.notes.saw(match delivered.behind {
            0 => "receipt: complete",
            _ if delivered.written > 0 => "receipt: some are behind",
            _ => "receipt: all are behind",
        });
        let is_known = delivered.behind == delivered.unknown;
        ensure!(is_complete == is_known, "complete: {is_complete}, of {delivered:?}");
        Ok(())
    }

    /// Ends all receipts. The world is at rest, so that nothing is left to happen to a message.
    pub(super) fn end_receipts(&mut self) -> Check {
        for open in std::mem::take(&mut self.receipts.open) {
            let is_complete = open.is_complete.load(Ordering::Relaxed);
            let delivered = self.check_receipt(&open)?;
            let id = open.published.id;
            let view = self.view();
            if self.clients.iter().any(|client| client.may_be_held(open.topic, view)) {
                continue;
            }
            ensure!(is_complete, "the receipt of {id} is not complete at rest: {delivered:?}");
            let behind = delivered.behind - delivered.unknown;
            ensure!(behind == 0, "{behind} are behind {id} at rest");
            self.notes.saw("receipt: complete at rest");
        }
        Ok(())
    }

    /// Ends a receipt, and compares it with what the sockets have taken.
    fn check_receipt(&mut self, open: &Open) -> Check<Delivered> {
        let delivered = open.receipt.close();
        let (topic, id) = (open.topic, open.published.id);
        let Delivered { matched, written, behind, lagging, skipped, closed, expired, unknown } =
            delivered;
        ensure!(
            matched == written + behind + lagging + skipped + closed + expired,
            "the receipt of {id} does not add up: {delivered:?}"
        );
        let subscribers = open.published.subscribers;
        let excluded = subscribers.checked_sub(matched);
        let is_possible = excluded.is_some_and(|excluded| excluded <= u64::from(open.excludes));
        ensure!(is_possible, "{matched} matched, of {subscribers} subscribers");
        // The witness counts nothing.
        let witness = u64::from(self.model.topics[topic].is_pinned);
        let is_lossy = self.receipts.freezes > open.freezes || self.drain.is_some();
        ensure!(is_lossy || unknown <= witness, "{unknown} of {matched} are unknown");
        let (mut sure, mut possible) = (0, 0);
        for number in 0..self.clients.len() {
            let follows_in = |part: &[(usize, usize)]| part.contains(&(number, topic));
            let (before, after) = self.receipts.follows.split_at(open.follows);
            let (was_there, is_again) = (follows_in(before), follows_in(after));
            if !was_there {
                continue;
            }
            if self.clients[number].pipe.borrow().has_unread_outbound() {
                self.read(number, usize::MAX)?;
            }
            if self.clients[number].has_received(topic, id.offset) {
                sure += u64::from(!is_again);
                possible += 1;
            }
        }
        ensure!(
            written + unknown >= sure && written <= possible,
            "{written} of {id} are written, but {sure} to {possible} sockets have it: {delivered:?}"
        );
        for (event, count) in [
            ("receipt: written", written),
            ("receipt: lagging", lagging),
            ("receipt: skipped", skipped),
            ("receipt: closed", closed),
            ("receipt: expired", expired),
            ("receipt: unknown", unknown.saturating_sub(witness)),
            ("receipt: excluded", subscribers - matched),
        ] {
            self.notes.saw_times(event, count);
        }
        Ok(delivered)
    }
}
