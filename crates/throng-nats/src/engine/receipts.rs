//! Receipts for publishers on other nodes: this node counts the subscriptions that it has.
//!
//! A message says that its publisher wants a receipt, and of which node it is. Each other node
//! begins a receipt of its own when the message arrives. The publisher's node asks for the count
//! once it knows the message's id, which may be before the message is here; the answer waits until
//! the count is complete, or the publisher's time is over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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

impl Asked {
    /// The part of the subject that all questions of the node have.
    fn node(&self) -> &str {
        self.reply.rsplit_once('.').map_or("", |(node, _)| node)
    }
}

/// A message that a publisher on another node wants a receipt for, and that is here.
struct Counted {
    receipt: Arc<Receipt>,
    is_complete: bool,
    asked: Option<Asked>,
    ends_ms: u64,
}

/// An answer that can be given, and the node that waits for it.
pub(super) type Due = (String, Delivered);

/// By the sequences of the messages in the stream.
#[derive(Default)]
struct ForOthers {
    counted: HashMap<u64, Counted>,
    /// Messages that are not here yet.
    expected: HashMap<u64, Asked>,
}

/// The receipts for publishers on other nodes.
#[derive(Default)]
pub(super) struct ReceiptsForOthers {
    open: Arc<Receipts>,
    state: Mutex<ForOthers>,
    refused: AtomicU64,
}

impl ReceiptsForOthers {
    fn lock(&self) -> MutexGuard<'_, ForOthers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receipts that were refused because too many were under way.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A message has arrived. `None` if too many receipts are under way: what became of it here is
    /// unknown then.
    pub(super) fn begin(
        &self,
        (sequence, now_ms): (u64, u64),
        (node, channel): (&str, &ChannelName),
        ticket: Ticket<()>,
    ) -> Option<Arc<Receipt>> {
        let opened = self.open.open(Publisher::ServerKey(node), channel, ticket);
        let Ok(receipt) = opened else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let mut state = self.lock();
        let before = state.counted.remove(&sequence);
        let asked = state.expected.remove(&sequence).or(before.and_then(|before| before.asked));
        let counted = Counted {
            receipt: Arc::clone(&receipt),
            is_complete: false,
            asked,
            ends_ms: now_ms + KEPT_MS,
        };
        state.counted.insert(sequence, counted);
        Some(receipt)
    }

    /// Nothing is left to happen to a message here.
    pub(super) fn complete(&self, sequence: u64) -> Option<Due> {
        let mut state = self.lock();
        let entry = state.counted.get_mut(&sequence)?;
        entry.is_complete = true;
        let Asked { reply, .. } = entry.asked.take()?;
        let receipt = state.counted.remove(&sequence)?.receipt;
        Some((reply, receipt.close()))
    }

    /// A node asks for a message that is here; `Err` with its question if it is not.
    pub(super) fn ask(&self, sequence: u64, asked: Asked) -> Result<Option<Due>, Asked> {
        let mut state = self.lock();
        let Some(entry) = state.counted.get_mut(&sequence) else { return Err(asked) };
        if !entry.is_complete {
            entry.asked = Some(asked);
            return Ok(None);
        }
        let receipt = state.counted.remove(&sequence).map(|entry| entry.receipt);
        Ok(receipt.map(|receipt| (asked.reply, receipt.close())))
    }

    /// The same for a message that will be here. A node may expect another one as long as more
    /// places are free than it has. Without one, it gets no answer.
    pub(super) fn expect(&self, sequence: u64, asked: Asked) {
        let mut state = self.lock();
        let of_node = state.expected.values().filter(|other| other.node() == asked.node()).count();
        if of_node < EXPECTED_MAX - state.expected.len() {
            state.expected.insert(sequence, asked);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the answers for which no publisher waits any longer, and forgets what nobody has asked
    /// for.
    pub(super) fn due(&self, now_ms: u64) -> Vec<Due> {
        let mut due = Vec::new();
        let ForOthers { counted, expected } = &mut *self.lock();
        counted.retain(|_, entry| {
            if let Some(Asked { reply, .. }) = entry.asked.take_if(|at| at.until_ms <= now_ms) {
                due.push((reply, entry.receipt.close()));
                return false;
            }
            entry.ends_ms > now_ms
        });
        // A message that has not come, of which this node has nobody to tell: it answers nothing,
        // and the publisher learns that one answer is missing.
        expected.retain(|_, asked| asked.until_ms > now_ms);
        due
    }

    /// The sequences of an earlier epoch mean nothing.
    pub(super) fn forget(&self) {
        *self.lock() = ForOthers::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(until_ms: u64) -> Asked {
        Asked { reply: "to".into(), until_ms }
    }

    fn asked_by(node: &str) -> Asked {
        Asked { reply: format!("_INBOX.{node}.7"), until_ms: 9_000 }
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
        assert!(receipts.ask(7, asked(9_000)).is_err());
        receipts.expect(7, asked(9_000));
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
        receipts.expect(1, asked(9_000));
        assert!(receipts.due(9_000).is_empty(), "a message that has not come has no answer");
        assert!(receipts.lock().expected.is_empty());
    }

    #[test]
    fn no_node_expects_so_many_that_others_may_not() {
        let receipts = ReceiptsForOthers::default();
        (0..1_000).for_each(|at| receipts.expect(at, asked_by("busy")));
        assert_eq!((receipts.lock().expected.len(), receipts.refused()), (512, 488));
        (2_000..2_100).for_each(|at| receipts.expect(at, asked_by("quiet")));
        assert_eq!((receipts.lock().expected.len(), receipts.refused()), (612, 488));
    }

    #[test]
    fn a_receipt_that_is_refused_is_counted() {
        let receipts = ReceiptsForOthers::default();
        let channel = ChannelName::channel("a");
        let mut sequence = 0;
        while receipts.refused() == 0 {
            sequence += 1;
            receipts.begin((sequence, 0), ("n", &channel), Ticket::new(drop));
            assert!(sequence < 1 << 20, "there is no limit");
        }
        assert!(receipts.ask(sequence, asked(9_000)).is_err());
    }
}
