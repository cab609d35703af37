//! Counters that publishers and clients share during a run.
//!
//! # Where the audit of a client starts
//!
//! A publisher raises the published sequence of a stream **before** it sends. A client reads it
//! once it is subscribed. Messages up to that sequence may have been in transit meanwhile: they
//! are neither expected nor an error. Every later one was sent after the client subscribed, and
//! must arrive. This needs no clock.
//!
//! While a publisher on another machine is active, the counters are out of date; see
//! `clients/start.rs`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::marker::now_ns;

/// Published sequences, rejected messages and audiences, shared by all threads of a run.
#[derive(Debug)]
pub struct StreamCounters {
    streams: Box<[Stream]>,
    refused: Mutex<BTreeSet<(u32, u32)>>,
    /// True if there is any rejected message; saves the lock in most runs.
    has_refused: AtomicBool,
    /// True while a publisher on another machine is active, so that the counters are out of date.
    is_behind: AtomicBool,
}

#[derive(Debug, Default)]
struct Stream {
    published: AtomicU32,
    /// When the last message was recorded, in nanoseconds of `CLOCK_MONOTONIC`.
    published_at_ns: AtomicU64,
    audience: AtomicU32,
}

impl StreamCounters {
    /// Counters for streams `0..streams`.
    pub fn new(streams: u32) -> StreamCounters {
        let streams = (0..streams).map(|_| Stream::default()).collect();
        StreamCounters {
            streams,
            refused: Mutex::default(),
            has_refused: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        }
    }

    /// How many streams there are.
    pub fn streams(&self) -> u32 {
        // Created from a `u32`.
        self.streams.len() as u32
    }

    /// Records a message. Call it before the message is sent. Sequences start at 1.
    pub fn published(&self, stream: u32, sequence: u32) {
        let Some(stream) = self.of(stream) else { return };
        stream.published_at_ns.store(now_ns(), Ordering::Relaxed);
        stream.published.fetch_max(sequence, Ordering::SeqCst);
    }

    /// The highest sequence that may have been sent.
    pub fn last_published(&self, stream: u32) -> u32 {
        self.of(stream).map_or(0, |stream| stream.published.load(Ordering::SeqCst))
    }

    /// When the last message was recorded.
    pub(crate) fn last_published_ns(&self, stream: u32) -> u64 {
        self.of(stream).map_or(0, |stream| stream.published_at_ns.load(Ordering::Relaxed))
    }

    /// Records that the server did not accept a message, so that it is not expected.
    pub fn refused(&self, stream: u32, sequence: u32) {
        self.lock_refused().insert((stream, sequence));
        self.has_refused.store(true, Ordering::SeqCst);
    }

    /// How many messages in this range of sequences were rejected.
    pub(crate) fn refused_between(&self, stream: u32, from: u32, to: u32) -> u64 {
        if !self.has_refused.load(Ordering::SeqCst) || from > to {
            return 0;
        }
        self.lock_refused().range((stream, from)..=(stream, to)).count() as u64
    }

    /// All rejected messages.
    pub(crate) fn all_refused(&self) -> Vec<(u32, u32)> {
        self.lock_refused().iter().copied().collect()
    }

    fn lock_refused(&self) -> MutexGuard<'_, BTreeSet<(u32, u32)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream; `None` for messages of another run.
    fn of(&self, stream: u32) -> Option<&Stream> {
        self.streams.get(stream as usize)
    }

    /// True if more may have been published than the counters say.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::SeqCst)
    }

    /// Sets whether a publisher on another machine is active.
    pub(super) fn set_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::SeqCst);
    }

    /// How many clients are subscribed to a stream.
    pub fn audience(&self, stream: u32) -> u64 {
        self.of(stream).map_or(0, |stream| u64::from(stream.audience.load(Ordering::Relaxed)))
    }

    /// Adds a subscribed client.
    pub(super) fn joined(&self, stream: u32) {
        self.of(stream).map(|stream| stream.audience.fetch_add(1, Ordering::Relaxed));
    }

    /// Removes a client.
    pub(super) fn left(&self, stream: u32) {
        self.of(stream).map(|stream| stream.audience.fetch_sub(1, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sequences_only_rise() {
        let counters = StreamCounters::new(2);
        counters.published(1, 5);
        counters.published(1, 4);
        counters.published(9, 4);
        assert_eq!((counters.last_published(0), counters.last_published(1)), (0, 5));
        assert_eq!(counters.last_published(9), 0);
    }

    #[test]
    fn rejected_messages_are_counted_by_range() {
        let counters = StreamCounters::new(2);
        assert_eq!(counters.refused_between(1, 0, 9), 0);
        [3, 5, 7].into_iter().for_each(|sequence| counters.refused(1, sequence));
        let counts = [(1, 4, 7), (1, 1, 9), (0, 1, 9), (1, 8, 2)]
            .map(|(stream, from, to)| counters.refused_between(stream, from, to));
        assert_eq!(counts, [2, 3, 0, 0]);
    }

    #[test]
    fn the_audience_counts_subscribed_clients() {
        let counters = StreamCounters::new(3);
        counters.joined(2);
        counters.joined(2);
        counters.left(2);
        assert_eq!((counters.audience(2), counters.audience(0), counters.streams()), (1, 0, 3));
    }
}
