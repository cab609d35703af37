//! Publications of this node that have no answer yet, and receipts that have not begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use throng_core::{ChannelName, Outcome, Publication, Receipt, Ticket, clock};

/// Publications without an answer, at most: those that the journal takes, and as many that wait for
/// its thread.
const UNDER_WAY_MAX: usize = 8_192;

/// Bytes of their bodies, at most: twice what the journal takes.
const UNDER_WAY_BYTES_MAX: usize = 128 << 20;

/// Receipts that have not begun are looked through when there are this many.
const RECEIPTS_MANY: usize = 4_096;

/// A publication without an answer.
pub(super) struct UnderWay {
    pub(super) channel: ChannelName,
    pub(super) began_us: u64,
    pub(super) ticket: Ticket<Outcome>,
    bytes: usize,
}

/// Those without an answer, and the bytes of their bodies.
#[derive(Default)]
struct AllUnderWay {
    by_token: HashMap<u64, UnderWay>,
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Publications {
    under_way: Mutex<AllUnderWay>,
    /// A message reaches its node's subscribers before or after its publisher is answered.
    receipts: Mutex<HashMap<u64, Weak<Receipt>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publications {
    pub(super) fn len(&self) -> usize {
        lock(&self.under_way).by_token.len()
    }

    /// Whether there is room for another one.
    pub(super) fn has_room(&self) -> bool {
        let all = lock(&self.under_way);
        all.by_token.len() < UNDER_WAY_MAX && all.bytes < UNDER_WAY_BYTES_MAX
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
        let (channel, bytes) = (publication.channel.clone(), publication.body.bytes().len());
        let under_way = UnderWay { channel, began_us: clock::now_us(), ticket, bytes };
        let mut all = lock(&self.under_way);
        all.bytes += bytes;
        all.by_token.insert(token, under_way);
    }

    /// The publication has an answer.
    pub(super) fn end(&self, token: u64) -> Option<UnderWay> {
        let mut all = lock(&self.under_way);
        let ended = all.by_token.remove(&token)?;
        all.bytes -= ended.bytes;
        Some(ended)
    }

    /// The receipt of a publication, once, if it has not begun.
    pub(super) fn receipt(&self, token: u64) -> Option<Arc<Receipt>> {
        lock(&self.receipts).remove(&token)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, Publisher, Receipts};

    use super::*;

    fn publication(bytes: usize, receipt: Option<Arc<Receipt>>) -> Publication {
        Publication {
            channel: ChannelName::channel("a"),
            body: Body::Binary(vec![0; bytes].into()),
            content_type: None,
            idempotency_key: None,
            excluded: None,
            expires_in_ms: None,
            receipt,
        }
    }

    #[test]
    fn there_is_room_until_many_or_large_ones_are_under_way() {
        let publications = Publications::default();
        publications.begin(0, &publication(UNDER_WAY_BYTES_MAX, None), Ticket::new(drop));
        assert!(!publications.has_room());
        assert!(publications.end(0).is_some() && publications.end(0).is_none());
        for token in 0..UNDER_WAY_MAX as u64 {
            assert!(publications.has_room());
            publications.begin(token, &publication(1, None), Ticket::new(drop));
        }
        assert!(!publications.has_room() && publications.len() == UNDER_WAY_MAX);
    }

    #[test]
    fn a_receipt_is_found_once_and_not_after_its_publisher_has_gone() {
        let publications = Publications::default();
        let receipts = Arc::<Receipts>::default();
        let channel = ChannelName::channel("a");
        let opened = receipts.open(Publisher::Anonymous, &channel, Ticket::new(drop));
        let receipt = opened.expect("there are few");
        publications.begin(1, &publication(1, Some(Arc::clone(&receipt))), Ticket::new(drop));
        publications.begin(2, &publication(1, Some(Arc::clone(&receipt))), Ticket::new(drop));
        assert!(publications.receipt(1).is_some() && publications.receipt(1).is_none());
        drop(receipt);
        assert!(publications.receipt(2).is_none());
    }
}
