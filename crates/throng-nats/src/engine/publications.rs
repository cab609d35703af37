//! Publications of this node that have no answer yet, and receipts that have not begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use throng_core::{ChannelName, Outcome, Publication, Receipt, Ticket, clock};

/// Publications without an answer, at most: those that the journal takes, and as many that wait for
/// its thread.
const UNDER_WAY_MAX: usize = 8_192;

/// Receipts that have not begun are looked through when there are this many.
const RECEIPTS_MANY: usize = 4_096;

/// A publication without an answer.
pub(super) struct UnderWay {
    pub(super) channel: ChannelName,
    pub(super) began_us: u64,
    pub(super) ticket: Ticket<Outcome>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Publications {
    under_way: Mutex<HashMap<u64, UnderWay>>,
    /// A message reaches its node's subscribers before or after its publisher is answered.
    receipts: Mutex<HashMap<u64, Weak<Receipt>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publications {
    pub(super) fn len(&self) -> usize {
        lock(&self.under_way).len()
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        self.len() < UNDER_WAY_MAX
    }

    /// Keeps a publication until [`Publications::end`].
    pub(super) fn begin(&self, token: u64, publication: &Publication, ticket: Ticket<Outcome>) {
        if let Some(receipt) = &publication.receipt {
            let mut receipts = lock(&self.receipts);
            if receipts.len() >= RECEIPTS_MANY {
                receipts.retain(|_, receipt| receipt.strong_count() > 0);
            }
            receipts.insert(token, Arc::downgrade(receipt));
        }
        let channel = publication.channel.clone();
        let under_way = UnderWay { channel, began_us: clock::now_us(), ticket };
        lock(&self.under_way).insert(token, under_way);
    }

    /// The publication has an answer.
    pub(super) fn end(&self, token: u64) -> Option<UnderWay> {
        lock(&self.under_way).remove(&token)
    }

    /// The receipt of a publication, once, if it has not begun.
    pub(super) fn receipt(&self, token: u64) -> Option<Arc<Receipt>> {
        lock(&self.receipts).remove(&token)?.upgrade()
    }
}
