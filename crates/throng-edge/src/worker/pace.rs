//! The pace at which a worker asks its clients to leave: evenly over a time.
//!
//! The worker passes over its table of connections once in that time, so that each tick has its
//! part of the indices, however many connections there are. Clients that could not be asked then,
//! because they lack messages, are asked in further passes, one a second.

use std::ops::Range;

use super::clock::TICKS_PER_S;

/// Connections that are asked in one slice.
const ASKED_PER_SLICE: u32 = 512;

/// One or more passes over the table of connections. Times are ticks.
#[derive(Debug)]
pub(super) struct Pace {
    /// When this pass began.
    began: u32,
    /// How long it takes; at least a tick.
    over: u32,
    /// The first connection that this pass has not come to.
    next_index: u32,
    /// Whether the last slice was full, so that there is more to do in this tick.
    has_more: bool,
}

impl Pace {
    /// A first pass that takes `over` ticks.
    pub(super) fn new(tick: u32, over: u32) -> Pace {
        Pace { began: tick, over: over.max(1), next_index: 0, has_more: false }
    }

    /// Whether there is a slice to do at once.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// The connections that it has come to by `tick`, at most those of a slice.
    pub(super) fn next(&mut self, tick: u32, extent: u32) -> Range<u32> {
        let elapsed = tick.saturating_sub(self.began).saturating_add(1);
        let part = u64::from(extent) * u64::from(elapsed.min(self.over)) / u64::from(self.over);
        // At most `extent`.
        let target = part as u32;
        let first = self.next_index.min(target);
        let end = target.min(first + ASKED_PER_SLICE);
        self.has_more = end < target;
        self.next_index = end.max(self.next_index);
        if !self.has_more && elapsed > self.over.max(TICKS_PER_S) {
            *self = Pace::new(tick, 1);
        }
        first..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The indices that a pace comes to in each tick.
    fn ticks(pace: &mut Pace, count: u32, extent: u32) -> Vec<u32> {
        let tick = |tick| {
            let mut asked = 0;
            loop {
                asked += pace.next(tick, extent).len() as u32;
                if !pace.has_more() {
                    return asked;
                }
            }
        };
        (0..count).map(tick).collect()
    }

    #[test]
    fn each_tick_has_its_part_and_the_last_one_the_rest() {
        assert_eq!(ticks(&mut Pace::new(0, 4), 4, 10), [2, 3, 2, 3]);
        let many = ticks(&mut Pace::new(0, 20), 20, 100_003);
        assert_eq!(many.iter().sum::<u32>(), 100_003);
        assert!(many.iter().all(|asked| (5000..5002).contains(asked)), "{many:?}");
    }

    #[test]
    fn a_pace_without_time_asks_all_at_once_in_slices() {
        let mut pace = Pace::new(7, 0);
        assert_eq!(pace.next(7, ASKED_PER_SLICE + 3), 0..ASKED_PER_SLICE);
        assert!(pace.has_more());
        assert_eq!(pace.next(7, ASKED_PER_SLICE + 3), ASKED_PER_SLICE..ASKED_PER_SLICE + 3);
        assert!(!pace.has_more());
    }

    #[test]
    fn those_that_are_left_are_asked_again_each_second() {
        let asked = ticks(&mut Pace::new(0, 2), 24, 10);
        let passes: Vec<usize> = (0..24).filter(|&tick| asked[tick] > 0).collect();
        assert_eq!(passes[..2], [0, 1]);
        assert_eq!(asked.iter().sum::<u32>(), 30, "{asked:?}");
        assert!(passes[2] >= 10 && passes[3] >= passes[2] + 10, "{asked:?}");
    }
}
