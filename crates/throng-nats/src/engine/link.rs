//! How the node stands to the stream: connected or not, under which epoch, and what was counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{Epoch, Histogram, Snapshot};

use crate::api::NatsLimit;
use crate::api::stream::StreamSize;

/// No epoch has 64 bits.
const NO_EPOCH: u64 = u64::MAX;

/// How the node stands to the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Messages can be published and read.
    Open,
    /// No server can be reached.
    Away {
        /// The server that was tried last, and what was wrong; `None` if none was tried yet.
        trouble: Option<String>,
    },
    /// A server was reached that is too old for nodes.
    Old {
        /// As it says in its INFO.
        version: String,
    },
    /// The servers can be reached, and the stream cannot be used.
    Refused {
        reason: String,
        /// The limit that is in the way, if one is.
        limit: Option<NatsLimit>,
    },
}

/// Counters of a node.
#[derive(Debug, Clone)]
pub struct NodeFigures {
    /// True if messages can be published and read.
    pub is_open: bool,
    /// Since when that has been so, or not, in milliseconds since 1970.
    pub since_ms: u64,
    /// True if NATS answers and stores no messages.
    pub is_stalled: bool,
    /// Other nodes that are there.
    pub nodes: u64,
    /// Publications that have no answer yet.
    pub under_way: u64,
    /// Channels and users that the node follows.
    pub followed: u64,
    /// Publications of this node that were accepted, and those whose key was known.
    pub accepted: u64,
    /// Publications of this node that were refused, or whose outcome is unknown.
    pub refused: u64,
    /// Those among the refused ones whose share of the places was used up, or for which a server
    /// had no place.
    pub busy: u64,
    /// Channels that are polled, because NATS allows no subscription for them.
    pub polled: u64,
    /// True if the stream could be used at any time since the start.
    pub was_open: bool,
    /// Messages that came from the stream for subscribers of this node.
    pub delivered: u64,
    /// How often messages were gone from the stream before this node could read them.
    pub gaps: u64,
    /// How often the connection was lost.
    pub losses: u64,
    /// How often the stream has lost messages, so that all ids began anew.
    pub epochs: u64,
    /// Parts of channels that were read from the stream.
    pub read: u64,
    /// Volatile messages of this node that were not sent to the others.
    pub volatile_lost: u64,
    /// Receipts for publishers on other nodes that were refused because too many were under way.
    pub receipts_refused: u64,
    /// Idempotency keys of this node that are not in the table of all nodes.
    pub keys_lost: u64,
    /// How often NATS has refused something because of a limit, in the order of [`NatsLimit::ALL`].
    pub limits: [u64; NatsLimit::ALL.len()],
    /// How much the stream has, as its server said last.
    pub size: StreamSize,
    /// How long the stream took to accept publications.
    pub publish: Snapshot,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) accepted: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) epochs: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) volatile_lost: AtomicU64,
    pub(super) keys_lost: AtomicU64,
    limits: [AtomicU64; NatsLimit::ALL.len()],
    /// Parts whose askers have waited for them.
    pub(super) fetched: AtomicU64,
}

impl Counts {
    /// NATS has refused something because of a limit.
    pub(super) fn refused_by(&self, limit: NatsLimit) {
        count(&self.limits[limit as usize]);
    }

    /// How often each limit was in the way.
    pub(super) fn limits(&self) -> [u64; NatsLimit::ALL.len()] {
        NatsLimit::ALL.map(|limit| self.limits[limit as usize].load(Ordering::Relaxed))
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Written by the thread of the connection, read by all others.
#[derive(Debug)]
pub(super) struct Link {
    epoch: AtomicU64,
    is_open: AtomicBool,
    /// True if it is not open, and its servers answer: it is about to be.
    is_near: AtomicBool,
    is_stalled: AtomicBool,
    since_ms: AtomicU64,
    /// The highest sequence that is known of the stream.
    last: AtomicU64,
    /// All messages of followed channels up to this sequence are in the queues of workers.
    settled: AtomicU64,
    /// The highest sequence that was delivered.
    delivered: AtomicU64,
    /// The head of the stream, as known when the servers were asked whether all of it has come.
    asked: AtomicU64,
    is_whole: AtomicBool,
    state: Mutex<LinkState>,
    nodes: AtomicU64,
    /// Channels that are polled.
    polled: AtomicU64,
    pub(super) counts: Counts,
    pub(super) publish: Histogram,
}

impl Link {
    pub(super) fn new(now_ms: u64) -> Link {
        Link {
            epoch: AtomicU64::new(NO_EPOCH),
            is_open: AtomicBool::new(false),
            is_near: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            since_ms: AtomicU64::new(now_ms),
            last: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            is_whole: AtomicBool::new(false),
            state: Mutex::new(LinkState::Away { trouble: None }),
            nodes: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            counts: Counts::default(),
            publish: Histogram::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of the stream, also while it is away; `None` if it was never open.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (epoch != NO_EPOCH).then(|| Epoch::numbered(epoch))
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// True if the stream stores nothing, although it is open.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_open() && self.is_stalled.load(Ordering::Relaxed)
    }

    /// Whether the stream stores nothing from now on.
    pub(super) fn stalls(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    pub(super) fn since_ms(&self) -> u64 {
        self.since_ms.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> LinkState {
        self.lock().clone()
    }

    /// Other nodes that are there; 0 while nothing can be heard of them.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// As many other nodes are there now.
    pub(super) fn nodes_are(&self, nodes: usize) {
        self.nodes.store(nodes as u64, Ordering::Relaxed);
    }

    /// Channels that are polled, because NATS allows no subscription for them.
    pub(super) fn polled(&self) -> u64 {
        self.polled.load(Ordering::Relaxed)
    }

    /// As many channels are polled now. Returns how many were before.
    pub(super) fn polled_are(&self, channels: usize) -> u64 {
        self.polled.swap(channels as u64, Ordering::Relaxed)
    }

    /// The highest sequence that is known of the stream.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// The stream has a message with this sequence.
    pub(super) fn reached(&self, sequence: u64) {
        self.last.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Goes on for a node that has known the stream under this epoch, up to this sequence, and has
    /// settled all up to another.
    pub(super) fn resume(&self, epoch: Epoch, (last, settled): (u64, u64)) {
        self.epoch.store(epoch.number(), Ordering::Release);
        self.reached(last);
        self.delivered.fetch_max(settled, Ordering::Relaxed);
        self.settle(settled);
    }

    /// All messages of followed channels up to this sequence are in the queues of workers.
    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Ordering::SeqCst)
    }

    /// True if what is posted is settled at once.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::SeqCst)
    }

    /// All followed channels have all messages that are known of, or do no more.
    pub(super) fn becomes_whole(&self, is_whole: bool) {
        if is_whole {
            self.settle(self.delivered.load(Ordering::Relaxed));
        }
        self.is_whole.store(is_whole, Ordering::SeqCst);
    }

    /// A message is in the queues of workers.
    pub(super) fn delivered(&self, sequence: u64) {
        self.delivered.fetch_max(sequence, Ordering::Relaxed);
        if self.is_whole() {
            self.settle(sequence);
        }
    }

    /// All has come that the servers had sent when they were asked last, and they were not asked
    /// since. Until then what was known of the stream may not have come here.
    pub(super) fn caught_up(&self) {
        let asked = self.asked.swap(self.last(), Ordering::Relaxed);
        if self.is_whole() {
            self.settle(asked);
        }
    }

    pub(super) fn settle(&self, sequence: u64) {
        self.settled.fetch_max(sequence, Ordering::SeqCst);
    }

    /// The stream is open, with this last sequence. Returns whether ids from before mean nothing
    /// any more.
    pub(super) fn opened(&self, now_ms: u64, epoch: Epoch, last: u64) -> bool {
        let before = self.epoch();
        let is_other = before.is_some_and(|before| before != epoch);
        if is_other {
            for of in [&self.last, &self.settled, &self.delivered, &self.asked] {
                of.store(0, Ordering::SeqCst);
            }
            count(&self.counts.epochs);
        }
        self.reached(last);
        if before != Some(epoch) {
            // Nobody has followed anything under this epoch.
            self.settle(last);
        }
        self.epoch.store(epoch.number(), Ordering::Release);
        self.set(now_ms, LinkState::Open);
        is_other
    }

    /// Servers have answered about something else than the stream.
    pub(super) fn comes_near(&self) {
        self.is_near.store(true, Ordering::Release);
    }

    /// True if the stream is open, or about to be: then a subscription waits rather than begin
    /// without knowing where.
    pub(super) fn is_open_soon(&self) -> bool {
        self.is_open() || self.is_near.load(Ordering::Acquire)
    }

    /// The stream is in this state now.
    pub(super) fn set(&self, now_ms: u64, state: LinkState) {
        let is_open = state == LinkState::Open;
        if self.is_open.swap(is_open, Ordering::AcqRel) != is_open {
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
        if !is_open {
            self.is_whole.store(false, Ordering::SeqCst);
            self.is_near.store(false, Ordering::Release);
        }
        *self.lock() = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_stays_while_the_stream_is_away() {
        let link = Link::new(5);
        assert_eq!((link.epoch(), link.is_open(), link.since_ms()), (None, false, 5));
        assert!(!link.opened(7, Epoch::numbered(1), 5), "nobody has ids of the time before");
        assert_eq!((link.last(), link.settled()), (5, 5));
        link.reached(9);
        link.reached(8);
        assert_eq!((link.last(), link.since_ms()), (9, 7));
        link.set(11, LinkState::Away { trouble: None });
        assert_eq!((link.epoch(), link.is_open()), (Some(Epoch::numbered(1)), false));
        link.set(13, LinkState::Refused { reason: "why".into(), limit: None });
        assert_eq!(link.since_ms(), 11, "it is cut off since then");
        assert!(!link.opened(17, Epoch::numbered(1), 8));
        assert_eq!((link.last(), link.settled()), (9, 5));
        assert!(link.opened(19, Epoch::numbered(2), 2));
        assert_eq!((link.last(), link.settled()), (2, 2));
    }

    #[test]
    fn nothing_is_settled_while_a_channel_may_lack_messages() {
        let link = Link::new(5);
        link.opened(7, Epoch::numbered(1), 10);
        link.delivered(12);
        assert_eq!(link.settled(), 10);
        link.becomes_whole(true);
        assert_eq!(link.settled(), 12);
        link.reached(20);
        assert_eq!(link.settled(), 12, "an answer may overtake a message");
        link.caught_up();
        assert_eq!(link.settled(), 12, "it may have been asked before");
        link.caught_up();
        assert_eq!(link.settled(), 20);
        link.becomes_whole(false);
        link.delivered(25);
        link.caught_up();
        assert_eq!(link.settled(), 20);
        link.becomes_whole(true);
        assert_eq!(link.settled(), 25);
        link.set(11, LinkState::Away { trouble: None });
        assert!(!link.is_whole());
    }
}
