//! When connections were accepted, to about a second, without a field in each: generations are
//! given in order, so that a few of them with their times tell all others.

/// Marks that are kept. When there are more, every second one is dropped.
const MARKS_MAX: usize = 4096;

/// A generation and when it was given, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Mark {
    generation: u32,
    at_ms: u64,
}

/// The times of generations, from the oldest that is known. 64 KiB at most.
#[derive(Debug, Default)]
pub(super) struct Acceptances {
    marks: Vec<Mark>,
    /// Marks are at least this far apart. Grows with the age of the worker.
    interval_ms: u64,
}

impl Acceptances {
    /// Records that `generation` is given at `now_ms`.
    pub(super) fn record(&mut self, generation: u32, now_ms: u64) {
        let interval_ms = self.interval_ms.max(1000);
        let is_close = |mark: &Mark| now_ms < mark.at_ms.saturating_add(interval_ms);
        if self.marks.last().is_some_and(is_close) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            let mut keeps = false;
            self.marks.retain(|_| {
                keeps = !keeps;
                keeps
            });
            self.interval_ms = 2 * interval_ms;
        }
        self.marks.push(Mark { generation, at_ms: now_ms });
    }

    /// Each mark, the oldest first: a generation and its time in milliseconds since 1970.
    pub(super) fn marks(&self) -> impl ExactSizeIterator<Item = (u32, u64)> {
        self.marks.iter().map(|mark| (mark.generation, mark.at_ms))
    }

    /// Goes on from the marks of another worker, as [`Acceptances::marks`] gives them. Those
    /// beyond the most that are kept are left out.
    pub(super) fn resume(&mut self, marks: impl Iterator<Item = (u32, u64)>) {
        let marks = marks.map(|(generation, at_ms)| Mark { generation, at_ms });
        self.marks = marks.take(MARKS_MAX).collect();
        // It has grown with the age of the worker, and goes on from what these marks show.
        let gaps = self.marks.len().saturating_sub(1).max(1) as u64;
        let ends = self.marks.first().zip(self.marks.last());
        let life_ms = ends.map_or(0, |(first, last)| last.at_ms.saturating_sub(first.at_ms));
        self.interval_ms = life_ms / gaps / 2;
    }

    /// When `generation` was given, which is not newer than `newest`; `None` if it was given before
    /// the first mark.
    pub(super) fn at_ms(&self, generation: u32, newest: u32) -> Option<u64> {
        // By age, because generations wrap around.
        let age = newest.wrapping_sub(generation);
        let later = self.marks.partition_point(|mark| newest.wrapping_sub(mark.generation) >= age);
        Some(self.marks.get(later.checked_sub(1)?)?.at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_known_to_a_second_and_across_the_wrap() {
        let mut acceptances = Acceptances::default();
        let first = u32::MAX - 50;
        for number in 0..100 {
            acceptances.record(first.wrapping_add(number), 10_000 + 300 * u64::from(number));
        }
        let newest = first.wrapping_add(99);
        assert_eq!(acceptances.at_ms(first.wrapping_sub(1), newest), None);
        for number in 0..100 {
            let at_ms = acceptances.at_ms(first.wrapping_add(number), newest).unwrap();
            let exact_ms = 10_000 + 300 * u64::from(number);
            assert!(at_ms <= exact_ms && exact_ms - at_ms <= 1200, "{at_ms} {exact_ms}");
        }
    }

    #[test]
    fn another_worker_goes_on_with_the_times() {
        let mut before = Acceptances::default();
        for number in 0..20_000_u32 {
            before.record(number, 1000 * u64::from(number));
        }
        let mut after = Acceptances::default();
        after.resume(before.marks());
        for generation in [0, 1, 7_000, 19_999] {
            assert_eq!(after.at_ms(generation, 19_999), before.at_ms(generation, 19_999));
        }
        for number in 20_000..40_000_u32 {
            after.record(number, 1000 * u64::from(number));
        }
        assert!(after.marks.len() <= MARKS_MAX);
        let at_ms = after.at_ms(30_000, 39_999).unwrap();
        assert!((29_900_000..=30_000_000).contains(&at_ms), "{at_ms}");
        after.resume(std::iter::empty());
        assert_eq!(after.at_ms(1, 1), None);
    }

    #[test]
    fn marks_are_bounded() {
        let mut acceptances = Acceptances::default();
        for number in 0..20_000_u32 {
            acceptances.record(number, 1000 * u64::from(number));
        }
        assert!(acceptances.marks.len() <= MARKS_MAX);
        let at_ms = acceptances.at_ms(10_000, 19_999).unwrap();
        assert!((9_990_000..=10_000_000).contains(&at_ms), "{at_ms}");
    }
}
