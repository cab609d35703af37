//! When a client that is refused for now may try again.

use std::ops::Range;
use std::time::Duration;

/// The period over which the retries of refused clients are spread, so that they do not return
/// together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Between these two times from now.
    Within {
        /// The earliest retry, in milliseconds.
        min_ms: u64,
        /// The latest retry, in milliseconds.
        max_ms: u64,
    },
    /// Within the setting `drain-window`.
    DrainWindow,
}

impl Retry {
    /// Capacity returns when another client leaves, which takes a while; a person before a page
    /// waits no longer than this.
    pub(super) const FULL: Retry = Retry::Within { min_ms: 1_000, max_ms: 10_000 };

    /// Where the limit that was reached knows no moment of its own.
    pub(super) const LIMIT: Retry = Retry::Within { min_ms: 1_000, max_ms: 5_000 };

    /// An overload passes sooner.
    pub(super) const BUSY: Retry = Retry::Within { min_ms: 1_000, max_ms: 5_000 };

    /// The period in milliseconds from now. `drain_window` is called for the one that it decides.
    pub fn window_ms(self, drain_window: impl FnOnce() -> Duration) -> Range<u64> {
        match self {
            Retry::Within { min_ms, max_ms } => min_ms..max_ms,
            Retry::DrainWindow => 0..drain_window().as_millis() as u64,
        }
    }
}

/// How long one client is told to wait before it tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryAfter {
    ms: u64,
}

impl RetryAfter {
    /// This many milliseconds.
    pub fn from_ms(ms: u64) -> RetryAfter {
        RetryAfter { ms }
    }

    /// The delay in milliseconds.
    pub fn ms(self) -> u64 {
        self.ms
    }

    /// In whole seconds, as the header `Retry-After` has it: rounded up, at least 1.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
    }

    /// The reason of the close frame that tells a WebSocket client.
    pub fn close_reason(self) -> String {
        format!("reconnect in {} ms", self.ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_whole_and_at_least_one() {
        let seconds = |ms| RetryAfter::from_ms(ms).seconds();
        assert_eq!([0, 1, 1000, 1001].map(seconds), [1, 1, 1, 2]);
        assert_eq!(seconds(u64::MAX), u32::MAX);
    }

    #[test]
    fn a_drain_has_the_window_of_the_settings() {
        let window = || Duration::from_secs(7);
        assert_eq!(Retry::DrainWindow.window_ms(window), 0..7_000);
        assert_eq!(Retry::BUSY.window_ms(window), 1_000..5_000);
    }
}
