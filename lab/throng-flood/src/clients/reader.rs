//! How old messages are when a client with several channels handles them, for each such client.

use hdrhistogram::Histogram;

use super::deliveries::microseconds;
use crate::counts::ReaderAge;

/// Clients of a thread that are measured by themselves, the first ones: each takes some 6 KB, and
/// some microseconds whenever the counts are read.
pub(super) const READERS_MAX: usize = 1000;

/// A client that is measured by itself.
#[derive(Debug)]
pub(super) struct Reader {
    /// The ages of all messages, each when it was handled, in microseconds.
    ages_us: Histogram<u32>,
    /// The scheduled time of the newest message of each stream, in their order, on the publisher's
    /// clock.
    newest_ns: Box<[u64]>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader { ages_us: microseconds(), newest_ns: Box::default() }
    }
}

impl Reader {
    /// The client is subscribed to so many streams from now on, once more perhaps.
    pub(super) fn subscribe(&mut self, streams: usize, now_ns: u64) {
        self.newest_ns = vec![now_ns; streams].into();
    }

    /// Records that the client handles a message of its stream at `place`.
    pub(super) fn record(&mut self, place: usize, intended_ns: u64, age_ns: u64) {
        // The histogram resizes, so recording cannot fail.
        let _ = self.ages_us.record(age_ns / 1000);
        self.newest_ns[place] = self.newest_ns[place].max(intended_ns);
    }

    /// The scheduled time of the newest message of the stream at `place`.
    pub(super) fn newest_ns(&self, place: usize) -> u64 {
        self.newest_ns[place]
    }

    /// The ages so far, of a client that is behind by this time now.
    pub(super) fn ages(&self, behind_ns: u64) -> ReaderAge {
        let at = |quantile| self.ages_us.value_at_quantile(quantile);
        ReaderAge {
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
            behind_us: behind_ns / 1000,
        }
    }
}
