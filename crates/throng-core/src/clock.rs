//! The clocks of the process.
//!
//! The logic of this crate gets the time with each call; a running server passes in this clock.
//! Both planes must use it: with times from two clocks, an engine would compute wrong ages of
//! messages.
//!
//! There are two clocks. Ages are counted by a clock that cannot be set: it never goes back, and
//! runs on during a suspend. Clients see the machine's clock, which may be set at any time, above
//! all by NTP after boot. [`follow`] records how far it is ahead of the first, and [`wall_ms`] adds
//! that to a time before a client gets it. So a message shows the right time although the clock was
//! wrong when it was published, and no step of the clock expires messages.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The readings of all clocks when this process first used them.
static START: LazyLock<Start> = LazyLock::new(Start::now);

/// How many milliseconds the machine's clock is ahead of [`now_ms`].
static AHEAD: Ahead = Ahead(AtomicI64::new(0));

/// A smaller difference is ignored, so that a message mostly shows the same time whenever a client
/// reads it.
const SLACK_MS: u64 = 50;

/// The difference of two readings that are further apart is ignored: the thread was suspended in
/// between.
const READING_MS_MAX: u64 = 10;

/// Milliseconds since 1970: the machine's clock as it was at the start, and what has passed since,
/// suspends included. It never goes back, and setting the machine's clock does not move it.
pub fn now_ms() -> u64 {
    #[cfg(any(test, feature = "conformance"))]
    if let Some(now_ms) = simulated::get() {
        return now_ms;
    }
    START.unix_ms.saturating_add(milliseconds(since_boot().saturating_sub(START.since_boot)))
}

/// Microseconds since the process first asked, by a clock that never goes back and stands still
/// while the machine is suspended: for measuring.
pub fn now_us() -> u64 {
    u64::try_from(START.at.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Converts `at_ms`, a time of [`now_ms`], to the time that clients see: by the machine's clock as
/// it is set now.
pub fn wall_ms(at_ms: u64) -> u64 {
    at_ms.saturating_add_signed(AHEAD.0.load(Ordering::Relaxed))
}

/// The inverse of [`wall_ms`]: converts a time by the machine's clock to one of [`now_ms`].
pub fn from_wall_ms(wall_ms: u64) -> u64 {
    wall_ms.saturating_add_signed(AHEAD.0.load(Ordering::Relaxed).saturating_neg())
}

/// How many milliseconds the machine's clock is ahead of [`now_ms`] now: what [`wall_ms`] adds.
pub(crate) fn ahead_ms() -> i64 {
    AHEAD.0.load(Ordering::Relaxed)
}

/// Follows the machine's clock, which `read` reads in milliseconds since 1970 ([`machine_ms`]).
/// Call from time to time.
pub fn follow(read: impl FnOnce() -> u64) {
    let before_ms = now_ms();
    let machine_ms = read();
    AHEAD.follow(before_ms, machine_ms, now_ms());
}

/// The machine's clock, in milliseconds since 1970.
pub fn machine_ms() -> u64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

struct Ahead(AtomicI64);

impl Ahead {
    /// Records that the machine's clock showed `machine_ms` between `before_ms` and `after_ms`.
    fn follow(&self, before_ms: u64, machine_ms: u64, after_ms: u64) {
        if after_ms - before_ms > READING_MS_MAX {
            return;
        }
        let ahead_ms = machine_ms.cast_signed().wrapping_sub(after_ms.cast_signed());
        if ahead_ms.abs_diff(self.0.load(Ordering::Relaxed)) >= SLACK_MS {
            self.0.store(ahead_ms, Ordering::Relaxed);
        }
    }
}

/// The time of a test that has one of its own, so that it runs the same way each time.
#[cfg(any(test, feature = "conformance"))]
pub mod simulated {
    use std::cell::Cell;

    thread_local! {
        static NOW_MS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(super) fn get() -> Option<u64> {
        NOW_MS.get()
    }

    /// This thread has this time from now on.
    pub fn set(now_ms: u64) {
        NOW_MS.set(Some(now_ms));
    }
}

struct Start {
    at: Instant,
    since_boot: Duration,
    unix_ms: u64,
}

impl Start {
    fn now() -> Start {
        Start { at: Instant::now(), since_boot: since_boot(), unix_ms: machine_ms() }
    }
}

/// The time since boot, including suspends, which [`Instant`] leaves out.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part of this clock is ever negative.
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_have_the_same_time() {
        let before = now_ms();
        let elsewhere = std::thread::spawn(now_ms).join().unwrap();
        assert!(before > 1_700_000_000_000);
        assert!((before..=now_ms()).contains(&elsewhere));
    }

    #[test]
    fn a_clock_that_is_set_is_followed_both_ways() {
        let ahead = Ahead(AtomicI64::new(0));
        let follow = |before, machine, after| {
            ahead.follow(before, machine, after);
            ahead.0.load(Ordering::Relaxed)
        };
        let now = 1_700_000_000_000;
        assert_eq!(follow(now, now + 49, now), 0, "too little to notice");
        assert_eq!(follow(now, now + 50, now), 50);
        assert_eq!(follow(now, now + 3_600_000, now), 3_600_000, "NTP has answered");
        assert_eq!(follow(now, now + 3_600_020, now), 3_600_000);
        assert_eq!(follow(now, now + 9, now + 11), 3_600_000, "the thread was suspended");
        assert_eq!(follow(now, now - 100, now), -100);
        assert_eq!(follow(now, 0, now), -now.cast_signed(), "1970");
        assert_eq!(follow(now, now, now + 10), -10);
    }
}
