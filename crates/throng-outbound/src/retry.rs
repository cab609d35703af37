//! When a request that failed is sent again.

use std::ops::Range;

/// The first pause and the longest one. Each attempt doubles it.
const PAUSE_MS: Range<u64> = 200..30_000;

/// The most attempts, the first one included: over three to six minutes.
pub(crate) const ATTEMPTS_MAX: u32 = 18;

/// The pause after the failure of an attempt, which counts from 1; `None` after the last one.
/// `random` spreads the requests of several servers: a half of the pause depends on it.
pub(crate) fn pause_ms(attempt: u32, random: u32) -> Option<u64> {
    if attempt >= ATTEMPTS_MAX {
        return None;
    }
    let doublings = (attempt - 1).min(16);
    let half_ms = (PAUSE_MS.start << doublings).min(PAUSE_MS.end) / 2;
    Some(half_ms + ((half_ms * u64::from(random)) >> u32::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let longest = |attempt| pause_ms(attempt, u32::MAX);
        assert_eq!((pause_ms(1, 0), longest(1)), (Some(100), Some(199)));
        assert_eq!((pause_ms(2, 0), longest(2)), (Some(200), Some(399)));
        assert_eq!((pause_ms(10, 0), longest(10)), (Some(15_000), Some(29_999)));
        assert_eq!(pause_ms(ATTEMPTS_MAX, 0), None);
    }

    #[test]
    fn attempts_end_after_some_minutes() {
        let sum = |random| -> u64 { (1..).map_while(|at| pause_ms(at, random)).sum() };
        let (shortest_ms, longest_ms) = (sum(0), sum(u32::MAX));
        assert!((150_000..400_000).contains(&shortest_ms), "{shortest_ms}");
        assert!((150_000..400_000).contains(&longest_ms), "{longest_ms}");
    }
}
