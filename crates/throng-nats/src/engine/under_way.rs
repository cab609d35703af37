//! Publications of this node that have no answer yet, and receipts that have not begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use throng_core::{ChannelName, Outcome, Publication, Receipt, Ticket, clock};

use crate::journal::{OUTSTANDING_BYTES_MAX, OUTSTANDING_MAX};

/// Publications without an answer, at most. The journal takes all of them, so that nobody's place
/// depends on what it has taken of others before.
const UNDER_WAY_MAX: usize = 8_192;

/// Bytes of their bodies, at most.
const UNDER_WAY_BYTES_MAX: usize = 64 << 20;

// The last one may be as large as messages can be, and all have headers.
const _: () =
    assert!(UNDER_WAY_MAX <= OUTSTANDING_MAX && 2 * UNDER_WAY_BYTES_MAX <= OUTSTANDING_BYTES_MAX);

/// Receipts that have not begun are looked through when there are this many.
const RECEIPTS_MANY: usize = 4_096;

/// A publication without an answer.
pub(super) struct UnderWay {
    pub(super) channel: ChannelName,
    pub(super) began_us: u64,
    pub(super) ticket: Ticket<Outcome>,
    /// The key that it sets, and for how long, in milliseconds, if that ends.
    pub(super) expires: Option<Box<(Box<str>, u64)>>,
    bytes: usize,
}

/// A number of publications, and the bytes of their bodies.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    count: usize,
    bytes: usize,
}

impl Load {
    /// Those of a request about a log; one without messages counts as one.
    pub(super) fn of(messages: &[Publication]) -> Load {
        let bytes = messages.iter().map(|message| message.body.bytes().len()).sum();
        Load { count: messages.len().max(1), bytes }
    }

    fn add(&mut self, more: Load) {
        self.count += more.count;
        self.bytes += more.bytes;
    }

    /// Returns whether nothing is left.
    fn remove(&mut self, less: Load) -> bool {
        self.count -= less.count;
        self.bytes -= less.bytes;
        self.count == 0
    }

    /// True if one that has this much under way may add to it, when all together have `all`: as
    /// long as more is free than it has itself. So one alone gets half of the places, two get a
    /// third each, and one that has nothing under way gets a place while there is any.
    fn has_share(self, all: Load) -> bool {
        let is_less = |own: usize, all: usize, most: usize| own < most.saturating_sub(all);
        is_less(self.count, all.count, UNDER_WAY_MAX)
            && is_less(self.bytes, all.bytes, UNDER_WAY_BYTES_MAX)
    }
}

/// Those without an answer, and who shares the places.
#[derive(Default)]
struct AllUnderWay {
    by_token: HashMap<u64, UnderWay>,
    all: Load,
    of_channels: HashMap<ChannelName, Load>,
}

impl AllUnderWay {
    fn remove(&mut self, channel: &ChannelName, load: Load) {
        self.all.remove(load);
        if self.of_channels.get_mut(channel).is_some_and(|own| own.remove(load)) {
            self.of_channels.remove(channel);
        }
    }
}

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

    /// Takes a place for a publication, which [`Publications::begin`] has to follow. Returns false
    /// if its channel has used up its share of the places.
    pub(super) fn take_place(&self, publication: &Publication) -> bool {
        self.take_places(&publication.channel, Load::of(std::slice::from_ref(publication)))
    }

    /// Takes the places of a request about a log, until [`Publications::give_back`]. Returns false
    /// if its channel has used up its share of the places.
    pub(super) fn take_places(&self, channel: &ChannelName, load: Load) -> bool {
        let mut under_way = lock(&self.under_way);
        let AllUnderWay { all, of_channels, .. } = &mut *under_way;
        let has_share = of_channels.get(channel).copied().unwrap_or_default().has_share(*all);
        if has_share {
            all.add(load);
            of_channels.entry(channel.clone()).or_default().add(load);
        }
        has_share
    }

    /// Gives back the places of a request about a log.
    pub(super) fn give_back(&self, channel: &ChannelName, load: Load) {
        lock(&self.under_way).remove(channel, load);
    }

    /// Keeps a publication that has a place until [`Publications::end`].
    pub(super) fn begin(&self, token: u64, publication: &Publication, ticket: Ticket<Outcome>) {
        if let Some(receipt) = &publication.receipt {
            let mut receipts = lock(&self.receipts);
            if receipts.len() >= RECEIPTS_MANY {
                receipts.retain(|_, receipt| receipt.strong_count() > 0);
            }
            receipts.insert(token, Arc::downgrade(receipt));
        }
        let (channel, bytes) = (publication.channel.clone(), publication.body.bytes().len());
        let key = publication.key().filter(|_| !publication.removes_key()).map(Box::from);
        let expires = key.zip(publication.expires_in_ms).map(Box::new);
        let under_way = UnderWay { channel, began_us: clock::now_us(), ticket, expires, bytes };
        lock(&self.under_way).by_token.insert(token, under_way);
    }

    pub(super) fn end(&self, token: u64) -> Option<UnderWay> {
        let mut under_way = lock(&self.under_way);
        let ended = under_way.by_token.remove(&token)?;
        under_way.remove(&ended.channel, Load { count: 1, bytes: ended.bytes });
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

    fn publication(channel: &str, bytes: usize, receipt: Option<Arc<Receipt>>) -> Publication {
        Publication {
            receipt,
            ..Publication::new(ChannelName::channel(channel), Body::Binary(vec![0; bytes].into()))
        }
    }

    /// Publishes until it is refused; returns how many were not.
    fn fill(publications: &Publications, channel: &str, bytes: usize) -> usize {
        let one = publication(channel, bytes, None);
        let first = publications.len() as u64;
        let places = (first..).take_while(|_| publications.take_place(&one));
        places.map(|token| publications.begin(token, &one, Ticket::new(drop))).count()
    }

    #[test]
    fn a_channel_gets_half_of_the_places_that_others_have_left() {
        let publications = Publications::default();
        assert_eq!(fill(&publications, "a", 1), UNDER_WAY_MAX / 2);
        assert_eq!(fill(&publications, "a", 1), 0);
        assert_eq!(fill(&publications, "b", 1), UNDER_WAY_MAX / 4);
        // Any other one gets at least a place, while there is one.
        for number in 0..UNDER_WAY_MAX / 4 {
            assert!(publications.take_place(&publication(&format!("c{number}"), 1, None)));
        }
        assert!(!publications.take_place(&publication("last", 1, None)));
    }

    #[test]
    fn large_messages_of_a_channel_leave_half_of_the_bytes() {
        let publications = Publications::default();
        let large = UNDER_WAY_BYTES_MAX / 16;
        assert_eq!(fill(&publications, "a", large), 8);
        assert_eq!(fill(&publications, "b", large), 4);
    }

    #[test]
    fn places_come_back_with_answers() {
        let publications = Publications::default();
        let most = fill(&publications, "a", 1);
        for token in 0..most as u64 {
            assert!(publications.end(token).is_some() && publications.end(token).is_none());
        }
        assert!(lock(&publications.under_way).of_channels.is_empty());
        assert_eq!(fill(&publications, "a", 1), most);
    }

    #[test]
    fn a_receipt_is_found_once_and_not_after_its_publisher_has_gone() {
        let publications = Publications::default();
        let receipts = Arc::<Receipts>::default();
        let channel = ChannelName::channel("a");
        let opened = receipts.open(Publisher::Anonymous, &channel, Ticket::new(drop));
        let receipt = opened.expect("there are few");
        publications.begin(1, &publication("a", 1, Some(Arc::clone(&receipt))), Ticket::new(drop));
        publications.begin(2, &publication("a", 1, Some(Arc::clone(&receipt))), Ticket::new(drop));
        assert!(publications.receipt(1).is_some() && publications.receipt(1).is_none());
        drop(receipt);
        assert!(publications.receipt(2).is_none());
    }
}
