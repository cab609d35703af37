//! Handshakes by version and suite, and their times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use throng_tls::Suite;

use crate::sums::{Nanoseconds, sums};

/// Suites, each with sessions that were resumed and those that were not.
pub(crate) const KINDS: usize = Suite::ALL.len() * 2;

sums! {
    /// The handshakes of clients.
    #[derive(Debug, Default, Serialize, Deserialize)]
    pub(crate) struct TlsCounts {
        /// How many there are of each [`kind`](TlsCounts::kind).
        pub(crate) kinds: [u64; KINDS],
        /// From the first byte of a handshake to its end.
        pub(crate) time: Nanoseconds,
    }
}

impl TlsCounts {
    /// Counts a handshake.
    pub(crate) fn add(&mut self, suite: Suite, is_resumed: bool, took_ns: u64) {
        self.kinds[TlsCounts::kind(suite, is_resumed)] += 1;
        self.time.record(took_ns);
    }

    fn kind(suite: Suite, is_resumed: bool) -> usize {
        (suite as usize - 1) * 2 + usize::from(is_resumed)
    }

    /// Handshakes that resumed a session.
    pub(crate) fn resumed(&self) -> u64 {
        self.kinds.iter().skip(1).step_by(2).sum()
    }

    /// Handshakes by version and suite.
    pub(crate) fn by_suite(&self) -> BTreeMap<String, u64> {
        let pairs = Suite::ALL.iter().zip(self.kinds.chunks(2));
        let counted = pairs.map(|(suite, counts)| (suite.to_string(), counts.iter().sum()));
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_counted_by_suite() {
        let mut counts = TlsCounts::default();
        for suite in Suite::ALL {
            counts.add(suite, false, 5);
        }
        counts.add(Suite::Tls12ChaCha20Poly1305, true, 7);
        let mut sum = TlsCounts::default();
        sum += &counts;
        sum += &counts;
        assert_eq!((sum.resumed(), sum.time.len()), (2, 14));
        let by_suite = sum.by_suite();
        assert_eq!((by_suite.len(), by_suite["TLS 1.2, ChaCha20-Poly1305"]), (6, 4));
    }
}
