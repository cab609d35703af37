//! The time, as the engine wants it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 that never go back, whatever is done to the machine's clock.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Now.
    pub fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.not_before(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Reading comes first: most calls within one millisecond then share the cache line.
    fn not_before(&self, now_ms: u64) -> u64 {
        let latest = self.0.load(Ordering::Relaxed);
        if now_ms > latest {
            return self.0.fetch_max(now_ms, Ordering::Relaxed).max(now_ms);
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back() {
        let clock = Clock::default();
        assert_eq!(clock.not_before(5), 5);
        assert_eq!(clock.not_before(3), 5);
        assert_eq!(clock.not_before(7), 7);
        assert!(clock.now_ms() > 1_700_000_000_000);
    }
}
