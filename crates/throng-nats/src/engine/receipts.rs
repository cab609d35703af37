//! Receipts for publishers on other nodes: this node counts the subscriptions that it has.
//!
//! A message says that its publisher wants a receipt, and of which node it is. Each other node
//! begins a receipt of its own when the message arrives. The publisher's node asks for the count
//! once it knows the message's id, which may be before the message is here; the answer waits until
//! the count is complete, or the publisher's time is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::{ChannelName, Delivered, Publisher, Receipt, Receipts, Ticket};

/// How long a receipt waits for the question, or an answer for its receipt, at most: as long as a
/// publisher may wait, and a delay of NATS.
pub(super) const KEPT_MS: u64 = 65_000;

/// Messages that are asked for and are not here yet, at most. The limit of receipts is for those
/// that are.
const EXPECTED_MAX: usize = 1_024;

/// A node that waits for an answer, and until when.
pub(super) struct Asked {
    pub(super) reply: String,
    pub(super) until_ms: u64,
}

/// A message that a publisher on another node wants a receipt for.
#[derive(Default)]
struct Counted {
    /// `None` until the message is here.
    receipt: Option<Arc<Receipt>>,
    is_complete: bool,
    asked: Option<Asked>,
    ends_ms: u64,
}

/// An answer that can be given, and the node that waits for it.
pub(super) type Due = (String, Delivered);

/// The receipts for publishers on other nodes, by the sequences of their messages in the stream.
#[derive(Default)]
pub(super) struct ReceiptsForOthers {
    open: Arc<Receipts>,
    counted: Mutex<HashMap<u64, Counted>>,
}

impl ReceiptsForOthers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Counted>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message has arrived. `None` if too many receipts are under way: what became of it here is
    /// unknown then.
    pub(super) fn begin(
        &self,
        (sequence, now_ms): (u64, u64),
        (node, channel): (&str, &ChannelName),
        ticket: Ticket<()>,
    ) -> Option<Arc<Receipt>> {
        let receipt = self.open.open(Publisher::ServerKey(node), channel, ticket).ok()?;
        let mut counted = self.lock();
        let entry = counted.entry(sequence).or_default();
        entry.receipt = Some(Arc::clone(&receipt));
        entry.ends_ms = now_ms + KEPT_MS;
        Some(receipt)
    }

    /// Nothing is left to happen to a message here.
    pub(super) fn complete(&self, sequence: u64) -> Option<Due> {
        let mut counted = self.lock();
        let entry = counted.get_mut(&sequence)?;
        entry.is_complete = true;
        let Asked { reply, .. } = entry.asked.take()?;
        let receipt = counted.remove(&sequence)?.receipt?;
        Some((reply, receipt.close()))
    }

    /// A node asks for a message that is here; `Err` with its question if it is not.
    pub(super) fn ask(&self, sequence: u64, asked: Asked) -> Result<Option<Due>, Asked> {
        let mut counted = self.lock();
        let Some(entry) = counted.get_mut(&sequence) else { return Err(asked) };
        if !entry.is_complete {
            entry.asked = Some(asked);
            return Ok(None);
        }
        let receipt = counted.remove(&sequence).and_then(|entry| entry.receipt);
        Ok(receipt.map(|receipt| (asked.reply, receipt.close())))
    }

    /// The same for a message that will be here. Returns false if too many are expected.
    pub(super) fn expect(&self, sequence: u64, asked: Asked) -> bool {
        let mut counted = self.lock();
        let has_room = counted.len() < EXPECTED_MAX;
        if has_room {
            let ends_ms = asked.until_ms;
            counted.insert(sequence, Counted { asked: Some(asked), ends_ms, ..Counted::default() });
        }
        has_room
    }

    /// Takes the answers for which no publisher waits any longer, and forgets what nobody has asked
    /// for.
    pub(super) fn due(&self, now_ms: u64) -> Vec<Due> {
        let mut due = Vec::new();
        self.lock().retain(|_, entry| {
            if let Some(Asked { reply, .. }) = entry.asked.take_if(|at| at.until_ms <= now_ms) {
                // A message that has not come, of which this node has nobody to tell: it answers
                // nothing, and the publisher learns that one answer is missing.
                due.extend(entry.receipt.as_ref().map(|receipt| (reply, receipt.close())));
                return false;
            }
            entry.ends_ms > now_ms
        });
        due
    }

    /// The sequences of an earlier epoch mean nothing.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(until_ms: u64) -> Asked {
        Asked { reply: "to".into(), until_ms }
    }

    fn begin(receipts: &ReceiptsForOthers, sequence: u64) -> Arc<Receipt> {
        let channel = ChannelName::channel("a");
        let begun = receipts.begin((sequence, 1_000), ("n", &channel), Ticket::new(drop));
        begun.expect("there are few")
    }

    #[test]
    fn a_complete_receipt_waits_for_the_question() {
        let receipts = ReceiptsForOthers::default();
        begin(&receipts, 7).begin(0);
        assert!(receipts.complete(7).is_none(), "nobody has asked");
        let due = receipts.ask(7, asked(9_000)).ok().flatten().expect("it is complete");
        assert_eq!(due, ("to".into(), Delivered::default()));
        assert!(receipts.ask(7, asked(9_000)).is_err(), "it was answered");
    }

    #[test]
    fn a_question_waits_for_its_message_and_for_the_count() {
        let receipts = ReceiptsForOthers::default();
        assert!(receipts.ask(7, asked(9_000)).is_err() && receipts.expect(7, asked(9_000)));
        begin(&receipts, 7).begin(2);
        assert!(receipts.due(8_999).is_empty());
        let expected = Delivered { matched: 2, behind: 2, ..Delivered::default() };
        assert_eq!(receipts.due(9_000), [("to".into(), expected)], "its time is over");
        assert!(receipts.due(9_000).is_empty());
        begin(&receipts, 8).begin(0);
        assert!(receipts.ask(8, asked(9_000)).is_ok_and(|due| due.is_none()));
        assert!(receipts.complete(8).is_some());
    }

    #[test]
    fn nothing_is_kept_that_nobody_asks_for() {
        let receipts = ReceiptsForOthers::default();
        begin(&receipts, 7);
        receipts.due(1_000 + KEPT_MS);
        assert!(receipts.ask(7, asked(9_000)).is_err());
        let room = (0..=EXPECTED_MAX as u64).filter(|at| receipts.expect(*at, asked(9_000)));
        assert_eq!(room.count(), EXPECTED_MAX);
        assert!(receipts.due(9_000).is_empty(), "a message that has not come has no answer");
        assert!(receipts.expect(1, asked(9_000)));
    }
}
