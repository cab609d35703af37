//! What publishers and clients tell each other while a run goes: numbers in shared memory.
//!
//! # How a client's audit begins
//!
//! A publisher raises the stream's published sequence **before** it sends. A client that becomes
//! subscribed reads it afterwards: what it reads may have been on the way meanwhile, and is neither
//! expected nor a fault; everything above it is sent after the client was subscribed, and must
//! come. No clock is needed for that.
//!
//! While a publisher on another machine is at work, what the board says of it is behind: `start`
//! has how the audit begins then.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::plan::Streams;

/// Shared by all threads of a run.
#[derive(Debug)]
pub struct Board {
    streams: Box<[Stream]>,
    refused: Mutex<BTreeSet<(u32, u32)>>,
    /// Most runs have none, and need not take the lock to know it.
    has_refused: AtomicBool,
    /// The publisher is on another machine, and at work.
    is_behind: AtomicBool,
}

#[derive(Debug, Default)]
struct Stream {
    published: AtomicU32,
    audience: AtomicU32,
}

/// How many streams there are for so many clients.
pub fn stream_count(streams: Streams, clients: usize) -> u32 {
    let clients = u32::try_from(clients).unwrap_or(u32::MAX);
    match streams {
        Streams::One => 1,
        Streams::Spread(count) => count.max(1),
        Streams::Own | Streams::Friends { .. } => clients.max(1),
    }
}

impl Board {
    /// For streams `0..streams`.
    pub fn new(streams: u32) -> Board {
        let streams = (0..streams).map(|_| Stream::default()).collect();
        Board {
            streams,
            refused: Mutex::default(),
            has_refused: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        }
    }

    /// How many streams there are.
    pub fn streams(&self) -> u32 {
        // Made from a `u32`.
        self.streams.len() as u32
    }

    /// To be called before the message with this sequence (from 1 on) is sent.
    pub fn published(&self, stream: u32, sequence: u32) {
        if let Some(stream) = self.streams.get(stream as usize) {
            stream.published.fetch_max(sequence, Ordering::SeqCst);
        }
    }

    /// The highest sequence that may have been sent.
    pub fn last_published(&self, stream: u32) -> u32 {
        let stream = self.streams.get(stream as usize);
        stream.map_or(0, |stream| stream.published.load(Ordering::SeqCst))
    }

    /// The server has said that it did not take this one, so nobody is to expect it.
    pub fn refused(&self, stream: u32, sequence: u32) {
        let mut refused = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        refused.insert((stream, sequence));
        self.has_refused.store(true, Ordering::SeqCst);
    }

    /// How many of these sequences of a stream were refused.
    pub fn refused_between(&self, stream: u32, from: u32, to: u32) -> u64 {
        if !self.has_refused.load(Ordering::SeqCst) || from > to {
            return 0;
        }
        let refused = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        refused.range((stream, from)..=(stream, to)).count() as u64
    }

    /// All that were refused.
    pub fn all_refused(&self) -> Vec<(u32, u32)> {
        if !self.has_refused.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let refused = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        refused.iter().copied().collect()
    }

    /// Whether more may have been published than the board says.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::SeqCst)
    }

    /// A publisher on another machine is at work (true), or the board says all that it has sent.
    pub(super) fn set_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::SeqCst);
    }

    /// Clients now subscribed to a stream.
    pub fn audience(&self, stream: u32) -> u64 {
        let stream = self.streams.get(stream as usize);
        stream.map_or(0, |stream| u64::from(stream.audience.load(Ordering::Relaxed)))
    }

    /// A client is subscribed.
    pub(super) fn joined(&self, stream: u32) {
        if let Some(stream) = self.streams.get(stream as usize) {
            stream.audience.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It no longer is.
    pub(super) fn left(&self, stream: u32) {
        if let Some(stream) = self.streams.get(stream as usize) {
            stream.audience.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_only_rises() {
        let board = Board::new(2);
        board.published(1, 5);
        board.published(1, 4);
        board.published(9, 4);
        assert_eq!((board.last_published(0), board.last_published(1)), (0, 5));
        assert_eq!(board.last_published(9), 0);
    }

    #[test]
    fn refused_ones_are_counted_by_range() {
        let board = Board::new(2);
        assert_eq!(board.refused_between(1, 0, 9), 0);
        [3, 5, 7].into_iter().for_each(|sequence| board.refused(1, sequence));
        let counts = [(1, 4, 7), (1, 1, 9), (0, 1, 9), (1, 8, 2)]
            .map(|(stream, from, to)| board.refused_between(stream, from, to));
        assert_eq!(counts, [2, 3, 0, 0]);
    }

    #[test]
    fn the_audience_is_who_is_there() {
        let board = Board::new(stream_count(Streams::Spread(3), 100));
        board.joined(2);
        board.joined(2);
        board.left(2);
        assert_eq!((board.audience(2), board.audience(0), board.streams()), (1, 0, 3));
    }
}
