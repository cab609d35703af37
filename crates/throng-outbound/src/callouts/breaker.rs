//! A circuit breaker: an endpoint that fails again and again is left alone for a while, so that it
//! costs no more than a refusal.
//!
//! It opens after some failures in a row. When the pause is over, one request tries whether the
//! endpoint is back; the others are refused until that one is answered.

use std::ops::Range;

/// The failures in a row that open it.
pub(super) const FAILURES_MAX: u32 = 5;

/// The first pause, and the longest one. Each failed try doubles it.
const PAUSE_MS: Range<u64> = 1_000..30_000;

/// Whether requests may go to an endpoint. The clock is passed in.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures since the last success.
    failures: u32,
    /// When the next request may go; 0 while it is closed.
    open_until_ms: u64,
    /// One request tries whether the endpoint is back.
    is_trying: bool,
}

impl Breaker {
    /// Whether a request may go now. Its result must be reported.
    pub(super) fn admits(&mut self, now_ms: u64) -> bool {
        if !self.is_open() {
            return true;
        }
        let may_try = now_ms >= self.open_until_ms && !self.is_trying;
        self.is_trying |= may_try;
        may_try
    }

    /// Whether a request would be refused now.
    pub(super) fn refuses(&self, now_ms: u64) -> bool {
        self.is_open() && (now_ms < self.open_until_ms || self.is_trying)
    }

    /// A request was answered as agreed. The result says whether the breaker was open.
    pub(super) fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Breaker::default();
        was_open
    }

    /// A request failed. The result says whether the breaker has opened because of it.
    pub(super) fn failed(&mut self, now_ms: u64) -> bool {
        let was_open = self.is_open();
        // Requests that went before it opened do not prolong the pause.
        if was_open && !self.is_trying {
            return false;
        }
        self.is_trying = false;
        self.failures = self.failures.saturating_add(1);
        if self.is_open() {
            let doublings = (self.failures - FAILURES_MAX).min(10);
            self.open_until_ms = now_ms + (PAUSE_MS.start << doublings).min(PAUSE_MS.end);
        }
        self.is_open() && !was_open
    }

    pub(super) fn is_open(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(now_ms: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES_MAX {
            assert!(breaker.admits(now_ms));
            assert_eq!(breaker.failed(now_ms), failure == FAILURES_MAX);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(0));
            assert!(!breaker.succeeded());
        }
        let mut breaker = open(0);
        assert!(breaker.refuses(999) && !breaker.admits(999));
    }

    #[test]
    fn one_request_tries_whether_the_endpoint_is_back() {
        let mut breaker = open(0);
        assert!(!breaker.refuses(1_000) && breaker.admits(1_000));
        assert!(breaker.refuses(1_000) && !breaker.admits(1_000));
        assert!(breaker.succeeded());
        assert!(breaker.admits(1_000) && breaker.admits(1_000));
    }

    #[test]
    fn each_failed_try_doubles_the_pause() {
        let mut breaker = open(0);
        let mut now_ms = 0;
        for pause_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(!breaker.admits(now_ms + pause_ms - 1), "{pause_ms}");
            now_ms += pause_ms;
            assert!(breaker.admits(now_ms), "{pause_ms}");
            assert!(!breaker.failed(now_ms), "it was open before");
        }
    }

    #[test]
    fn late_failures_of_earlier_requests_do_not_prolong_the_pause() {
        let mut breaker = open(0);
        assert!(!breaker.failed(900));
        assert!(breaker.admits(1_000));
    }
}
