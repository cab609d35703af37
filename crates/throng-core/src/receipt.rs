//! Receipts: what became of one message, for a publisher that asks.
//!
//! A receipt is counted, not listed. The engine counts the subscriptions that the message is for
//! ([`Receipt::begin`]) and hands a [`ReceiptPart`] to each worker that follows the channel. The
//! worker settles each of its subscriptions once, and adds what it has settled after each slice of
//! its work. So whoever waits can read the counts at any time without asking a worker, even one
//! that stands still. A part that is dropped, as with a worker that ends or is frozen, leaves the
//! rest of its subscriptions [unknown](Delivered::unknown).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_wire::{ErrorCode, ErrorResponse};

use crate::idempotency_key::Publisher;
use crate::later::Ticket;
use crate::name::ChannelName;

/// Receipts that may be under way at once in the whole server. Each costs the workers a comparison
/// for each write to its channel. One publisher may have as many as it leaves to others, so at most
/// half; many share them evenly.
pub const RECEIPTS_MAX: usize = 1024;

/// Too many receipts are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many receipts are under way, or too many of this publisher; the message was not \
     published; try again later, or without `receipt`"
)]
pub struct ReceiptsBusy;

impl From<ReceiptsBusy> for ErrorResponse {
    fn from(error: ReceiptsBusy) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::Busy, error.to_string())
    }
}

/// The receipts that are under way.
#[derive(Debug, Default)]
pub struct Receipts {
    open: Mutex<Open>,
    /// Refused since the start.
    refused: AtomicU64,
    hasher: RandomState,
}

/// Receipts under way.
#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// By the hash of their owner.
    owned: HashMap<u64, usize>,
}

impl Receipts {
    /// The number of receipts that are under way. One that has ended counts until each worker has
    /// noticed, which takes at most a tick.
    pub fn under_way(&self) -> usize {
        self.lock().all
    }

    /// How many were refused since the start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of a receipt's share: the user; or, for an application, whose key is valid for all
    /// its channels, and for clients without a name, the channel.
    fn owner(&self, publisher: Publisher<'_>, channel: &ChannelName) -> u64 {
        match publisher {
            Publisher::User(_) | Publisher::Unnamed(_) => self.hasher.hash_one(publisher),
            _ => self.hasher.hash_one((publisher, channel.key())),
        }
    }

    /// Begins a receipt, or refuses it if the publisher has as many as are left, or none is left of
    /// [`RECEIPTS_MAX`]. The ticket is answered
    /// once nothing is left to happen to the message, or dropped if that is never known.
    pub fn open(
        self: &Arc<Self>,
        publisher: Publisher<'_>,
        channel: &ChannelName,
        ticket: Ticket<()>,
    ) -> Result<Arc<Receipt>, ReceiptsBusy> {
        let owner = self.owner(publisher, channel);
        let mut open = self.lock();
        let left = RECEIPTS_MAX - open.all;
        let owned = open.owned.get(&owner).copied().unwrap_or(0);
        if owned >= left {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ReceiptsBusy);
        }
        open.all += 1;
        open.owned.insert(owner, owned + 1);
        drop(open);
        let state = State { ticket: Some(ticket), ..State::default() };
        Ok(Arc::new(Receipt {
            all: Arc::clone(self),
            owner,
            is_open: AtomicBool::new(true),
            state: Mutex::new(state),
        }))
    }
}

/// The outcome of a message for one subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The kernel has taken all of its bytes.
    Written,
    /// The publisher excluded the connection: the message is not for it.
    Excluded,
    /// The connection was closed because it lagged too far behind.
    Lagging,
    /// The connection lagged too far behind, and was told of a gap instead.
    Skipped,
    /// The subscription ended before: its connection was closed, it was unsubscribed, or its
    /// long-poll was answered without the message.
    Closed,
    /// The message expired before.
    Expired,
}

/// How many subscriptions met each fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tally {
    written: u64,
    excluded: u64,
    lagging: u64,
    skipped: u64,
    closed: u64,
    expired: u64,
    unknown: u64,
}

impl Tally {
    fn count(&mut self, fate: Fate, subscriptions: u64) {
        *match fate {
            Fate::Written => &mut self.written,
            Fate::Excluded => &mut self.excluded,
            Fate::Lagging => &mut self.lagging,
            Fate::Skipped => &mut self.skipped,
            Fate::Closed => &mut self.closed,
            Fate::Expired => &mut self.expired,
        } += subscriptions;
    }

    fn add(&mut self, other: Tally) {
        self.written += other.written;
        self.excluded += other.excluded;
        self.lagging += other.lagging;
        self.skipped += other.skipped;
        self.closed += other.closed;
        self.expired += other.expired;
        self.unknown += other.unknown;
    }

    fn sum(self) -> u64 {
        let Tally { written, excluded, lagging, skipped, closed, expired, unknown } = self;
        written + excluded + lagging + skipped + closed + expired + unknown
    }
}

/// The delivery of a message, as far as it is known.
///
/// [`matched`](Delivered::matched) is the sum of `written`, `behind` and the four reasons for
/// which subscriptions do not get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// The subscriptions that the message is for.
    pub matched: u64,
    /// Those whose sockets have taken it whole.
    pub written: u64,
    /// Subscriptions that the receipt still waits for, and subscriptions that it will never hear
    /// of.
    pub behind: u64,
    /// Those whose connections were closed because they lagged.
    pub lagging: u64,
    /// Those that were told of a gap instead.
    pub skipped: u64,
    /// Those that ended before.
    pub closed: u64,
    /// Those for which the message expired before.
    pub expired: u64,
    /// Those of `behind` of which nothing more will be known: their worker has ended or was
    /// replaced.
    pub unknown: u64,
}

impl Delivered {
    /// The delivery to the subscriptions of both, which may be the saying of another process.
    #[must_use]
    pub fn plus(self, other: Delivered) -> Delivered {
        Delivered {
            matched: self.matched.saturating_add(other.matched),
            written: self.written.saturating_add(other.written),
            behind: self.behind.saturating_add(other.behind),
            lagging: self.lagging.saturating_add(other.lagging),
            skipped: self.skipped.saturating_add(other.skipped),
            closed: self.closed.saturating_add(other.closed),
            expired: self.expired.saturating_add(other.expired),
            unknown: self.unknown.saturating_add(other.unknown),
        }
    }
}

#[derive(Default)]
struct State {
    /// The subscriptions of the channel at the time of the publication.
    subscribers: u64,
    settled: Tally,
    ticket: Option<Ticket<()>>,
}

/// The counts of one message, shared by the publisher and the workers.
pub struct Receipt {
    all: Arc<Receipts>,
    owner: u64,
    is_open: AtomicBool,
    state: Mutex<State>,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}

impl Receipt {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how many subscriptions the channel has. The engine calls it before it notifies
    /// workers, and hands each of them a [`Receipt::part`].
    pub fn begin(&self, subscribers: u64) {
        self.lock().subscribers = subscribers;
        self.add(Tally::default());
    }

    /// The part of a worker that has `subscriptions` of the channel.
    pub fn part(self: &Arc<Self>, subscriptions: u32) -> ReceiptPart {
        ReceiptPart { receipt: Arc::clone(self), left: subscriptions, news: Tally::default() }
    }

    /// Ends the receipt: workers stop counting. Returns what is known.
    pub fn close(&self) -> Delivered {
        self.is_open.store(false, Ordering::Relaxed);
        let state = self.lock();
        let Tally { written, excluded, lagging, skipped, closed, expired, unknown } = state.settled;
        let matched = state.subscribers.saturating_sub(excluded);
        let behind = matched.saturating_sub(written + lagging + skipped + closed + expired);
        Delivered { matched, written, behind, lagging, skipped, closed, expired, unknown }
    }

    fn add(&self, news: Tally) {
        let mut state = self.lock();
        state.settled.add(news);
        let is_complete = state.settled.sum() >= state.subscribers;
        // Answered without the lock: that may wake another thread.
        let ticket = is_complete.then(|| state.ticket.take());
        drop(state);
        if let Some(ticket) = ticket.flatten() {
            ticket.answer(());
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let mut open = self.all.lock();
        open.all -= 1;
        if let Entry::Occupied(mut owned) = open.owned.entry(self.owner) {
            *owned.get_mut() -= 1;
            if *owned.get() == 0 {
                owned.remove();
            }
        }
    }
}

/// A worker's part of a receipt.
#[derive(Debug)]
pub struct ReceiptPart {
    receipt: Arc<Receipt>,
    /// Subscriptions that are not settled.
    left: u32,
    /// Subscriptions settled since the last [`ReceiptPart::report`].
    news: Tally,
}

impl ReceiptPart {
    /// True if somebody still waits for the receipt.
    pub(crate) fn is_open(&self) -> bool {
        self.receipt.is_open.load(Ordering::Relaxed)
    }

    /// The number of subscriptions that are not settled.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Settles this many subscriptions.
    pub(crate) fn settle(&mut self, fate: Fate, subscriptions: u32) {
        debug_assert!(subscriptions <= self.left, "a subscription is settled once");
        let subscriptions = subscriptions.min(self.left);
        self.left -= subscriptions;
        self.news.count(fate, subscriptions.into());
    }

    /// Adds what was settled to the receipt.
    pub(crate) fn report(&mut self) {
        let news = std::mem::take(&mut self.news);
        if news != Tally::default() {
            self.receipt.add(news);
        }
    }
}

impl Drop for ReceiptPart {
    fn drop(&mut self) {
        self.news.unknown += u64::from(self.left);
        self.report();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    fn open(all: &Arc<Receipts>) -> (Arc<Receipt>, Receiver<Option<()>>) {
        let (sender, receiver) = mpsc::channel();
        let ticket = Ticket::new(move |answer| sender.send(answer).expect("the test listens"));
        let opened = all.open(Publisher::Anonymous, &ChannelName::channel("a"), ticket);
        (opened.expect("there is room"), receiver)
    }

    fn is_open_to(all: &Arc<Receipts>, publisher: Publisher<'_>, channel: &str) -> bool {
        all.open(publisher, &ChannelName::channel(channel), Ticket::new(|_| {})).is_ok()
    }

    #[test]
    fn a_receipt_completes_once_every_worker_has_settled() {
        let (receipt, done) = open(&Arc::default());
        receipt.begin(6);
        let (mut one, mut two) = (receipt.part(4), receipt.part(2));
        one.settle(Fate::Written, 2);
        assert_eq!(receipt.lock().settled, Tally::default(), "nothing is shared before a report");
        one.settle(Fate::Excluded, 1);
        one.settle(Fate::Lagging, 1);
        one.report();
        two.settle(Fate::Skipped, 1);
        two.report();
        assert!(done.try_recv().is_err());
        two.settle(Fate::Closed, 1);
        two.report();
        assert_eq!(done.try_recv(), Ok(Some(())));
        let expected = Delivered {
            matched: 5,
            written: 2,
            lagging: 1,
            skipped: 1,
            closed: 1,
            ..<_>::default()
        };
        assert_eq!(receipt.close(), expected);
    }

    #[test]
    fn a_message_for_nobody_is_complete_at_once() {
        let (receipt, done) = open(&Arc::default());
        receipt.begin(0);
        assert_eq!(done.try_recv(), Ok(Some(())));
        assert_eq!(receipt.close(), Delivered::default());
    }

    #[test]
    fn a_dropped_part_leaves_its_subscriptions_unknown() {
        let (receipt, done) = open(&Arc::default());
        receipt.begin(3);
        let mut part = receipt.part(3);
        part.settle(Fate::Written, 1);
        drop(part);
        assert_eq!(done.try_recv(), Ok(Some(())), "nothing more will be known");
        let expected =
            Delivered { matched: 3, written: 1, behind: 2, unknown: 2, ..<_>::default() };
        assert_eq!(receipt.close(), expected);
    }

    #[test]
    fn a_receipt_counts_until_publisher_and_workers_drop_it() {
        let all = Arc::<Receipts>::default();
        let mut kept: Vec<_> = (0..RECEIPTS_MAX / 2).map(|_| open(&all)).collect();
        let own = || is_open_to(&all, Publisher::Anonymous, "a");
        assert!(!own());
        let (last, _done) = kept.pop().expect("there are many");
        let part = last.part(1);
        drop(last);
        assert!(!own(), "a worker has a part of it");
        drop(part);
        assert!(own());
        drop(kept);
        assert_eq!((all.under_way(), all.refused()), (0, 2));
        assert!(all.lock().owned.is_empty());
    }

    #[test]
    fn one_publisher_leaves_receipts_to_others() {
        let all = Arc::<Receipts>::default();
        let name = ChannelName::channel;
        let of_ann = |n: usize| {
            all.open(Publisher::User("ann"), &name(&n.to_string()), Ticket::new(|_| {})).ok()
        };
        let held: Vec<_> = (0..RECEIPTS_MAX).filter_map(of_ann).collect();
        assert_eq!(held.len(), RECEIPTS_MAX / 2, "over all of its channels");
        let of_key = |channel: &str| {
            all.open(Publisher::ServerKey("app"), &name(channel), Ticket::new(|_| {})).ok()
        };
        let of_one: Vec<_> = (0..RECEIPTS_MAX).filter_map(|_| of_key("stalled")).collect();
        assert_eq!(of_one.len(), RECEIPTS_MAX / 4);
        assert!(is_open_to(&all, Publisher::User("bob"), "a") && of_key("other").is_some());
    }
}
