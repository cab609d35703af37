//! Stamps: one order of all messages of a server, across its channels.
//!
//! Offsets order the messages of one channel. A client that follows many channels and has one
//! position for all of them needs an order of all messages: each gets a **stamp** with its offset.
//! A **watermark** is the position of such a client: it has all messages of its channels up to a
//! stamp, and none after it. Where its cursors are in the channels follows from their logs.
//!
//! # Invariants
//!
//! * Within a channel stamps grow with offsets.
//! * A stamp is *settled* once all messages up to it are in their logs and in the queues of the
//!   workers that follow them. Shards give out stamps side by side, so a message may be posted
//!   before one with a lower stamp; no client may have a watermark beyond what is settled.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::id::{Epoch, IdError, MessageId};

/// The place of a message in the order of all messages of a server. The first one is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

/// First character of a watermark's text, which no message id has.
const MARK: char = '~';

/// The position of a client in all of its channels. The text is `~epoch-stamp`, at most 31 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Watermark {
    /// The lifetime of the stamps' order. It changes when logs are lost.
    pub epoch: Epoch,
    /// The client has all messages up to this one, and none after it.
    pub stamp: Stamp,
}

impl Watermark {
    /// True if a text is meant to be a watermark, and not the id of a message.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with(MARK)
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", MessageId { epoch: self.epoch, offset: self.stamp.0 })
    }
}

impl FromStr for Watermark {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Watermark, IdError> {
        let MessageId { epoch, offset } = text.strip_prefix(MARK).ok_or(IdError)?.parse()?;
        Ok(Watermark { epoch, stamp: Stamp(offset) })
    }
}

/// No publication is under way.
const NONE: u64 = u64::MAX;

/// The publication that is under way in one shard. Each has a cache line of its own: publishing
/// threads write theirs all the time.
#[derive(Debug)]
#[repr(align(64))]
struct UnderWay(AtomicU64);

/// Gives out stamps.
#[derive(Debug)]
pub(crate) struct Stamps {
    newest: AtomicU64,
    /// For each shard a stamp below the publication under way; [`NONE`] without one.
    under_way: Box<[UnderWay]>,
    /// The same for each group of messages that is under way, the oldest one first. The shard's
    /// place above has the first group's.
    groups: Mutex<VecDeque<u64>>,
}

impl Stamps {
    /// Stamps for this many shards.
    pub(crate) fn new(shards: usize) -> Stamps {
        let under_way = (0..shards).map(|_| UnderWay(AtomicU64::new(NONE))).collect();
        Stamps { newest: AtomicU64::new(0), under_way, groups: Mutex::default() }
    }

    /// The next stamp, for a publication in a shard whose lock the caller holds until it has called
    /// [`Stamps::end`].
    pub(crate) fn begin(&self, shard: u32) -> Stamp {
        // Before the stamp is taken: whoever sees `newest` count it sees this, too.
        self.hold(shard, self.newest.load(Ordering::SeqCst));
        self.next()
    }

    fn hold(&self, shard: u32, bound: u64) {
        self.under_way[shard as usize].0.store(bound, Ordering::SeqCst);
    }

    fn groups(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a group of messages: no stamp that [`Stamps::next`] gives out from now on is
    /// settled before the group ends. All groups are of one shard, which has no other publications.
    pub(crate) fn begin_group(&self, shard: u32) {
        let mut groups = self.groups();
        let bound = self.newest.load(Ordering::SeqCst);
        if groups.is_empty() {
            self.hold(shard, bound);
        }
        groups.push_back(bound);
    }

    /// Ends the oldest group.
    pub(crate) fn end_group(&self, shard: u32) {
        let mut groups = self.groups();
        groups.pop_front();
        self.hold(shard, groups.front().copied().unwrap_or(NONE));
    }

    /// The stamp of the next message of a group that has begun.
    pub(crate) fn next(&self) -> Stamp {
        Stamp(self.newest.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The message is in its log and in the queues of its channel's workers.
    pub(crate) fn end(&self, shard: u32) {
        self.under_way[shard as usize].0.store(NONE, Ordering::SeqCst);
    }

    /// The newest stamp that is settled.
    pub(crate) fn settled(&self) -> Stamp {
        // First: a publication that begins after this has a higher stamp.
        let newest = self.newest.load(Ordering::SeqCst);
        let bounds = self.under_way.iter().map(|shard| shard.0.load(Ordering::SeqCst));
        Stamp(bounds.fold(newest, u64::min))
    }

    /// The newest stamp that was given out.
    pub(crate) fn newest(&self) -> Stamp {
        Stamp(self.newest.load(Ordering::SeqCst))
    }

    /// Goes on after this stamp.
    pub(crate) fn resume_after(&self, stamp: Stamp) {
        self.newest.fetch_max(stamp.0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_round_trip_and_are_no_message_ids() {
        let watermark = Watermark { epoch: Epoch::numbered(u64::MAX), stamp: Stamp(u64::MAX) };
        let text = watermark.to_string();
        assert!(Watermark::is_meant(&text) && text.len() <= 31, "{text}");
        assert_eq!(text.parse(), Ok(watermark));
        assert!(text.parse::<MessageId>().is_err());
        for bad in ["", "~", "~a", "a-1", "~a-", "~~a-1", "~A-1", "~a-1,a-2"] {
            assert!(bad.parse::<Watermark>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_under_way_is_not_settled() {
        let stamps = Stamps::new(2);
        assert_eq!(stamps.settled(), Stamp(0));
        let first = stamps.begin(0);
        let second = stamps.begin(1);
        stamps.end(1);
        assert!(first < second && stamps.settled() < first);
        stamps.end(0);
        assert_eq!((stamps.settled(), stamps.newest()), (second, second));
    }

    #[test]
    fn groups_settle_in_their_order() {
        let stamps = Stamps::new(2);
        stamps.begin_group(1);
        let first = stamps.next();
        stamps.begin_group(1);
        let second = stamps.next();
        let other = stamps.begin(0);
        stamps.end(0);
        assert!(first < second && second < other && stamps.settled() < first);
        stamps.end_group(1);
        assert_eq!(stamps.settled(), first);
        stamps.end_group(1);
        assert_eq!(stamps.settled(), other);
        stamps.begin_group(1);
        assert!(stamps.next() > other);
        assert_eq!(stamps.settled(), other);
    }

    /// Threads that publish, and one that checks that all up to a settled stamp is there.
    #[test]
    fn all_up_to_a_settled_stamp_is_posted() {
        const EACH: u64 = 20_000;
        const SHARDS: u32 = 3;
        let stamps = Stamps::new(SHARDS as usize);
        let posted = Mutex::new(vec![false; (EACH * u64::from(SHARDS)) as usize + 1]);
        std::thread::scope(|scope| {
            for shard in 0..SHARDS {
                let (stamps, posted) = (&stamps, &posted);
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let stamp = stamps.begin(shard);
                        posted.lock().unwrap()[stamp.0 as usize] = true;
                        stamps.end(shard);
                    }
                });
            }
            let mut checked = 0;
            while checked < EACH * u64::from(SHARDS) {
                let settled = stamps.settled().0;
                let posted = posted.lock().unwrap();
                for stamp in checked + 1..=settled {
                    assert!(posted[stamp as usize], "{stamp} of {settled}");
                }
                checked = checked.max(settled);
            }
        });
    }
}
