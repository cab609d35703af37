//! A circuit breaker: an endpoint that fails again and again is left alone, so that it costs no
//! more than a refusal.
//!
//! It opens after some failures in a row about several questions, or without a connection, if
//! nothing succeeded meanwhile for a while: one client whose questions the application cannot
//! answer must not close it to the others. While it is open, a few questions a second try whether
//! the endpoint is back, of which each question and each address has a share; the others are
//! refused. Any success closes it.

use std::net::IpAddr;

use super::cache::QuestionKey;

/// The failures in a row that open it.
pub(super) const FAILURES_MAX: u32 = 5;

/// The questions that the failures have to be about.
pub(super) const QUESTIONS_MIN: usize = 3;

/// The time without a success after which it opens, in milliseconds.
const SILENCE_MS: u64 = 1_000;

/// Tries in [`TRIES_MS`] while it is open.
const TRIES_MAX: usize = 16;

/// Tries among them of one address. Each question has one.
const TRIES_PER_ADDRESS_MAX: usize = 4;

/// The time that [`TRIES_MAX`] is about, in milliseconds.
const TRIES_MS: u64 = 1_000;

/// A question, and the address of its client, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) key: QuestionKey,
    pub(super) address: Option<IpAddr>,
}

/// Decides whether requests may go to an endpoint. The clock is passed in.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// Some questions that have failed since then; not more than it takes.
    failed: Vec<QuestionKey>,
    /// True if a connection has failed since the last success.
    has_failed: bool,
    succeeded_ms: u64,
    is_open: bool,
    tries: Vec<Attempt>,
    tries_since_ms: u64,
}

impl Breaker {
    /// True if a request may go now. Report its result.
    pub(super) fn admits(&mut self, asked: Attempt, now_ms: u64) -> bool {
        if !self.is_open {
            return true;
        }
        if self.refuses(asked, now_ms) {
            return false;
        }
        if self.are_tries_over(now_ms) {
            self.tries.clear();
            self.tries_since_ms = now_ms;
        }
        self.tries.push(asked);
        true
    }

    pub(super) fn refuses(&self, asked: Attempt, now_ms: u64) -> bool {
        if !self.is_open || self.are_tries_over(now_ms) {
            return false;
        }
        let of_address = |tried: &&Attempt| tried.address == asked.address;
        let has_address = asked.address.is_some();
        self.tries.len() >= TRIES_MAX
            || self.tries.iter().any(|tried| tried.key == asked.key)
            || has_address && self.tries.iter().filter(of_address).count() >= TRIES_PER_ADDRESS_MAX
    }

    fn are_tries_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.tries_since_ms) >= TRIES_MS
    }

    /// A request was answered. The result says whether the breaker was open.
    pub(super) fn succeeded(&mut self, now_ms: u64) -> bool {
        let was_open = self.is_open;
        *self = Breaker { succeeded_ms: now_ms, ..Breaker::default() };
        was_open
    }

    /// A request failed, as any other would if that `is_of_endpoint`. The result says whether the
    /// breaker has opened because of it.
    pub(super) fn failed(&mut self, asked: Attempt, is_of_endpoint: bool, now_ms: u64) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.has_failed |= is_of_endpoint;
        if self.failed.len() < QUESTIONS_MIN && !self.failed.contains(&asked.key) {
            self.failed.push(asked.key);
        }
        let opens = !self.is_open
            && self.failures >= FAILURES_MAX
            && (self.has_failed || self.failed.len() >= QUESTIONS_MIN)
            && now_ms.saturating_sub(self.succeeded_ms) >= SILENCE_MS;
        if opens {
            self.is_open = true;
            // The first tries come after a pause.
            self.tries_since_ms = now_ms;
            self.tries = vec![asked; TRIES_MAX];
        }
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(question: u32, address: u8) -> Attempt {
        let address = Some(IpAddr::from([192, 0, 2, address]));
        Attempt { key: QuestionKey::of(&question.to_le_bytes(), b""), address }
    }

    fn open(now_ms: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES_MAX {
            assert!(breaker.admits(asked(failure, 1), now_ms));
            assert_eq!(breaker.failed(asked(failure, 1), false, now_ms), failure == FAILURES_MAX);
        }
        breaker
    }

    #[test]
    fn failures_about_several_questions_open_it() {
        let breaker = open(5_000);
        assert!(breaker.refuses(asked(9, 9), 5_999) && !breaker.refuses(asked(9, 9), 6_000));
    }

    #[test]
    fn failures_about_one_question_do_not() {
        let mut breaker = Breaker::default();
        for now_ms in 5_000..5_100 {
            assert!(!breaker.failed(asked(now_ms as u32 % 2, 1), false, now_ms));
        }
        assert!(!breaker.refuses(asked(9, 9), 5_100));
    }

    #[test]
    fn an_endpoint_that_cannot_be_reached_fails_whatever_is_asked() {
        let mut breaker = Breaker::default();
        let opened = (0..FAILURES_MAX).filter(|_| breaker.failed(asked(1, 1), true, 5_000));
        assert_eq!(opened.count(), 1);
    }

    #[test]
    fn it_stays_closed_while_others_succeed() {
        let mut breaker = Breaker::default();
        for now_ms in 4_500..15_000 {
            if now_ms % 900 == 0 {
                assert!(!breaker.succeeded(now_ms));
            }
            assert!(!breaker.failed(asked(now_ms as u32, 1), false, now_ms));
        }
        assert!(!breaker.refuses(asked(9, 9), 15_000));
    }

    #[test]
    fn tries_are_shared_and_any_success_closes_it() {
        let mut breaker = open(5_000);
        let now_ms = 6_000;
        let of_one = (0..100).filter(|&n| breaker.admits(asked(n, 1), now_ms)).count();
        assert_eq!(of_one, TRIES_PER_ADDRESS_MAX, "of one address");
        assert!(!breaker.admits(asked(0, 2), now_ms), "a question that is tried already");
        let of_others = (0..100).filter(|&n| breaker.admits(asked(n, n as u8), now_ms)).count();
        assert_eq!(of_one + of_others, TRIES_MAX);
        for failure in 0..20 {
            assert!(!breaker.failed(asked(failure, 1), false, now_ms), "it was open before");
        }
        assert!(breaker.admits(asked(7, 2), 7_000));
        assert!(breaker.succeeded(7_001) && !breaker.succeeded(7_001));
        assert!((0..100).all(|n| breaker.admits(asked(n, 1), 7_001)));
    }
}
