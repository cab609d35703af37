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
    /// The scheduled time of the newest message, on the publisher's clock.
    pub(super) newest_ns: u64,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader { ages_us: microseconds(), newest_ns: 0 }
    }
}

impl Reader {
    /// Records a message that the client handles.
    pub(super) fn record(&mut self, intended_ns: u64, age_ns: u64) {
        // The histogram resizes, so recording cannot fail.
        let _ = self.ages_us.record(age_ns / 1000);
        self.newest_ns = self.newest_ns.max(intended_ns);
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
