//! The time, one for the whole process.
//!
//! The logic of this crate is given the time with each call; here is what a running server gives.
//! Both planes must take it from here: an engine that is told 12:00 by one thread and 11:59 by the
//! next would take its messages for older or younger than they are.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When this process first asked, by both clocks.
static START: LazyLock<Start> = LazyLock::new(Start::now);

/// Milliseconds since 1970: the machine's clock as it was at the start, and what has passed since.
/// It never goes back, and nothing that is done to the machine's clock later moves it: a clock
/// that was far ahead for a moment must not keep messages from growing old.
pub fn now_ms() -> u64 {
    START.after(START.at.elapsed())
}

/// Microseconds since the process first asked, by a clock that never goes back: for measuring.
pub fn now_us() -> u64 {
    u64::try_from(START.at.elapsed().as_micros()).unwrap_or(u64::MAX)
}

struct Start {
    at: Instant,
    unix_ms: u64,
}

impl Start {
    fn now() -> Start {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Start { at: Instant::now(), unix_ms: milliseconds(since_1970) }
    }

    fn after(&self, passed: Duration) -> u64 {
        self.unix_ms.saturating_add(milliseconds(passed))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_start_and_what_has_passed() {
        let start = Start { at: Instant::now(), unix_ms: 1_700_000_000_000 };
        assert_eq!(start.after(Duration::ZERO), 1_700_000_000_000);
        assert_eq!(start.after(Duration::from_micros(1_234_567)), 1_700_000_001_234);
        let last = Start { unix_ms: u64::MAX, ..start };
        assert_eq!(last.after(Duration::MAX), u64::MAX);
    }

    #[test]
    fn all_threads_have_the_same_time() {
        let before = now_ms();
        let elsewhere = std::thread::spawn(now_ms).join().unwrap();
        assert!(before > 1_700_000_000_000);
        assert!((before..=now_ms()).contains(&elsewhere));
    }
}
