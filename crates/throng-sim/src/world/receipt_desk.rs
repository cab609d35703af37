//! The receipts of a world that are under way, and who has followed what.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_core::{ChannelName, Published, Publisher, Receipt, Receipts, Ticket};

use crate::random::Random;

/// A receipt under way.
pub(super) struct Open {
    pub(super) receipt: Arc<Receipt>,
    pub(super) topic: usize,
    /// The publication excludes a connection.
    pub(super) excludes: bool,
    pub(super) published: Published,
    /// The number of subscriptions that had begun.
    pub(super) follows: usize,
    /// The number of workers that had been frozen.
    pub(super) freezes: u64,
    pub(super) is_complete: Arc<AtomicBool>,
}

pub(super) struct ReceiptDesk {
    /// Its own, so that receipts change nothing else of what the seed does.
    random: Random,
    receipts: Arc<Receipts>,
    pub(super) open: Vec<Open>,
    /// Client and channel of each subscription, in the order in which they began.
    pub(super) follows: Vec<(usize, usize)>,
    /// The workers frozen so far.
    pub(super) freezes: u64,
}

impl ReceiptDesk {
    pub(super) fn new(random: Random) -> ReceiptDesk {
        let (open, follows) = (Vec::new(), Vec::new());
        ReceiptDesk { random, receipts: Arc::default(), open, follows, freezes: 0 }
    }

    pub(super) fn followed(&mut self, client: usize, topic: usize) {
        self.follows.push((client, topic));
    }

    pub(super) fn frozen(&mut self) {
        self.freezes += 1;
    }

    /// Sometimes a receipt for the next publication, and whether it is complete.
    pub(super) fn request(&mut self) -> Option<(Arc<Receipt>, Arc<AtomicBool>)> {
        if !self.random.percent(40) {
            return None;
        }
        let is_complete = Arc::new(AtomicBool::new(false));
        let completed = Arc::clone(&is_complete);
        let ticket = Ticket::new(move |answer: Option<()>| {
            completed.store(answer.is_some(), Ordering::Relaxed);
        });
        let channel = ChannelName::channel("any");
        let receipt = self.receipts.open(Publisher::Anonymous, &channel, ticket).ok()?;
        Some((receipt, is_complete))
    }

    pub(super) fn published(
        &mut self,
        (receipt, is_complete): (Arc<Receipt>, Arc<AtomicBool>),
        topic: usize,
        excludes: bool,
        published: Published,
    ) {
        // Nothing was published.
        if published.is_duplicate {
            return;
        }
        let (follows, freezes) = (self.follows.len(), self.freezes);
        self.open.push(Open { receipt, topic, excludes, published, follows, freezes, is_complete });
    }

    /// Sometimes takes a receipt whose time is over.
    pub(super) fn take_some(&mut self) -> Option<Open> {
        if self.open.is_empty() || !self.random.percent(4) {
            return None;
        }
        Some(self.open.swap_remove(self.random.below(self.open.len())))
    }
}
