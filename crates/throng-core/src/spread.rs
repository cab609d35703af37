//! When clients that are closed or refused together should come back: at times spread evenly over a
//! window.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// 2^32 divided by the golden ratio. Its multiples modulo 2^32 are spread evenly.
const GOLDEN: u32 = 0x9e37_79b9;

/// The delay of the `nth` client within a window. Consecutive clients are far apart.
pub fn delay_ms(nth: u32, window_ms: &Range<u64>) -> u64 {
    let place = u64::from(nth.wrapping_add(1).wrapping_mul(GOLDEN));
    let length_ms = u128::from(window_ms.end.saturating_sub(window_ms.start));
    window_ms.start + ((u128::from(place) * length_ms) >> 32) as u64
}

/// Clients that come back in a second when few are spread: a small machine shakes hands as often by
/// TLS, and nobody waits longer than needed.
const RETURNS_PER_S: u64 = 100;

/// The time over which this many clients are spread: no more than `window`, which is for many.
pub fn window(clients: u64, window: Duration) -> Duration {
    window.min(Duration::from_millis(clients.saturating_mul(1000 / RETURNS_PER_S)))
}

/// Gives each client the next delay.
#[derive(Debug, Default)]
pub struct RetrySchedule(AtomicU32);

impl RetrySchedule {
    /// A schedule with other times than schedules of other numbers.
    pub fn numbered(number: u32) -> RetrySchedule {
        RetrySchedule(AtomicU32::new(number.wrapping_mul(1 << 16)))
    }

    /// The next client's delay within a window.
    pub fn next_ms(&self, window_ms: &Range<u64>) -> u64 {
        delay_ms(self.0.fetch_add(1, Ordering::Relaxed), window_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_cover_the_window_evenly() {
        let moments = RetrySchedule::default();
        let mut taken: Vec<u64> = (0..100).map(|_| moments.next_ms(&(1_000..11_000))).collect();
        taken.sort_unstable();
        assert!(taken[0] >= 1_000 && taken[99] < 11_000, "{taken:?}");
        let widest = taken.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest < Some(300), "{taken:?}");
    }

    #[test]
    fn few_clients_are_spread_over_less_time() {
        let ms = |clients| window(clients, Duration::from_secs(10)).as_millis();
        assert_eq!([0, 1, 3, 999, 1000, u64::MAX].map(ms), [0, 10, 30, 9_990, 10_000, 10_000]);
    }

    #[test]
    fn an_empty_window_is_its_start() {
        assert_eq!(delay_ms(7, &(0..0)), 0);
        assert_eq!(delay_ms(7, &(5..5)), 5);
    }
}
