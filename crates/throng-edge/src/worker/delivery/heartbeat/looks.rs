//! When a connection is looked at, when it is pinged, and when its answer is due: moments that come
//! back and follow from its place in the slab, so that it remembers none of them.

use crate::worker::TICKS_PER_S;

/// Never.
const NEVER: u32 = u32::MAX;

/// 2^32 divided by the golden ratio: multiples of it spread evenly, however many there are.
const GOLDEN: u32 = 0x9e37_79b9;

/// A client has this many intervals for its answer to a ping: all but the slowest need one round
/// trip, and with the default settings one that has died is closed within five minutes.
const ANSWER_INTERVALS: u32 = 2;

/// But at least this long, in ticks, where heartbeats are frequent: as long as the kernel waits for
/// an acknowledgement (`sys/listener.rs`).
const ANSWER_TICKS_MIN: u32 = 20 * TICKS_PER_S;

/// Moments that come back, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recurring {
    /// From one to the next; 0 for never.
    period: u32,
    /// Of the first one; less than the period.
    offset: u32,
}

impl Recurring {
    const NEVER: Recurring = Recurring { period: 0, offset: 0 };

    /// Every `period` ticks, at a `place` in it, of 2^32.
    fn new(period: u32, place: u32) -> Recurring {
        let offset = (u64::from(place) * u64::from(period)) >> 32;
        Recurring { period, offset: offset as u32 }
    }

    /// The first one after `tick`.
    fn next(self, tick: u32) -> u32 {
        if self.period == 0 {
            return NEVER;
        }
        tick.saturating_add(self.period - self.elapsed(tick))
    }

    /// Ticks since the last one at or before `tick`, which may lie before the beginning of time.
    fn elapsed(self, tick: u32) -> u32 {
        debug_assert!(self.period > 0);
        let period = u64::from(self.period);
        ((u64::from(tick) + period - u64::from(self.offset)) % period) as u32
    }

    /// How long ago the last one was, if it was at `since` or later.
    fn late(self, since: u32, tick: u32) -> Option<u32> {
        let elapsed = (self.period > 0).then(|| self.elapsed(tick))?;
        (elapsed <= tick.saturating_sub(since)).then_some(elapsed)
    }
}

/// When a connection is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    /// Once an interval.
    home: Recurring,
    /// Half an interval later.
    middle: Recurring,
    /// At some of the looks at home an answer is asked for; never of what is no WebSocket.
    ping: Recurring,
    /// Ticks from a ping to the look that closes for want of an answer: a multiple of the
    /// interval, and not more than the ping interval.
    answer: u32,
}

impl Looks {
    /// For a run of connections. The ping interval is rounded to a multiple of the interval.
    pub(super) fn new(run: u32, interval: u32, ping_interval: u32) -> Looks {
        let home = Recurring::new(interval, run.wrapping_mul(GOLDEN));
        let offset = (home.offset + interval / 2) % interval.max(1);
        let middle = Recurring { period: interval, offset };
        if interval == 0 || ping_interval == 0 {
            return Looks { home, middle, ping: Recurring::NEVER, answer: 0 };
        }
        let every = (ping_interval.saturating_add(interval / 2) / interval).max(1);
        let period = interval.saturating_mul(every);
        let ping = Recurring { period, offset: home.offset + interval * (run % every) };
        let answer = ANSWER_TICKS_MIN.div_ceil(interval).max(ANSWER_INTERVALS).min(every);
        Looks { home, middle, ping, answer: interval * answer }
    }

    pub(super) fn next(self, tick: u32) -> u32 {
        self.home.next(tick).min(self.middle.next(tick))
    }

    /// Whether a look that was due at `due` sends a ping: one that is too late would not leave the
    /// client its time.
    pub(super) fn is_ping(self, due: u32, tick: u32) -> bool {
        self.ping.late(due, tick).is_some_and(|late| late <= self.answer / 4)
    }

    /// Whether at a look that was due at `due` the client has had its time since the last ping
    /// before, and what it said within that is read.
    pub(super) fn is_answer_due(self, due: u32, tick: u32) -> bool {
        if self.ping.period == 0 || tick - due.min(tick) > self.answer / 4 {
            return false;
        }
        let elapsed = self.ping.elapsed(due);
        // At 0 it is the moment of the next ping.
        elapsed == 0 || elapsed >= self.answer
    }

    /// Whether a look that was due at `due` comes so late that another one was due since.
    pub(super) fn is_missed(self, due: u32, tick: u32) -> bool {
        tick - due.min(tick) >= self.home.period / 2
    }

    /// Whether the last look was at home.
    pub(super) fn is_home(self, tick: u32) -> bool {
        self.home.period > 0 && self.home.elapsed(tick) < self.home.period / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back() {
        let moments = Recurring { period: 10, offset: 3 };
        assert_eq!([0, 2, 3, 12, 13].map(|tick| moments.next(tick)), [3, 3, 13, 13, 23]);
        assert_eq!([3, 4, 12, 13, 0].map(|tick| moments.elapsed(tick)), [0, 1, 9, 0, 7]);
        assert_eq!(moments.late(14, 15), None);
        assert_eq!(moments.late(13, 15), Some(2));
        assert_eq!(moments.late(1, 35), Some(2));
        let never = Recurring::NEVER;
        assert_eq!((never.next(5), never.late(0, 5)), (NEVER, None));
    }

    #[test]
    fn looks_alternate_between_home_and_middle() {
        for interval in [10, 11, 250] {
            for run in 0..100_u32 {
                let looks = Looks::new(run, interval, 0);
                let first = looks.next(1000);
                let second = looks.next(first);
                assert_ne!(looks.is_home(first), looks.is_home(second));
                assert_eq!(looks.next(second), first + interval);
                assert!(second - first >= interval / 2);
            }
        }
    }

    #[test]
    fn some_of_the_looks_at_home_are_pings() {
        for (ping_interval, every) in [(2250, 9), (1200, 5), (250, 1), (100, 1), (300, 1), (400, 2)]
        {
            for run in 0..50 {
                let looks = Looks::new(run, 250, ping_interval);
                let first = looks.ping.next(5000);
                assert!(looks.is_home(first) && looks.home.elapsed(first) == 0);
                assert_eq!(looks.ping.next(first), first + 250 * every);
            }
        }
    }

    #[test]
    fn a_client_has_two_intervals_for_its_answer() {
        let answer = |interval, ping_interval| Looks::new(7, interval, ping_interval).answer;
        assert_eq!(
            [2250, 1250, 750, 500, 250].map(|ping_interval| answer(250, ping_interval)),
            [500, 500, 500, 500, 250]
        );
        // At least 20 s, where the ping interval allows it.
        assert_eq!(
            [2250, 200, 100, 10].map(|ping_interval| answer(10, ping_interval)),
            [200, 200, 100, 10]
        );
        assert_eq!((answer(150, 2250), answer(60, 2250)), (300, 240));
        assert_eq!((answer(250, 0), answer(0, 2250)), (0, 0));
    }

    /// Looks at a client until it is closed; returns when. What comes after a look is due is not
    /// read before it: so it is after the worker was held up.
    fn closed_at(
        looks: Looks,
        until: u32,
        mut late: impl FnMut() -> u32,
        answered_at: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let (mut tick, mut is_heard, mut coming) = (10_000, true, None);
        while tick < until {
            let due = looks.next(tick);
            tick = due + late();
            if coming.take_if(|at| *at <= due).is_some() {
                is_heard = true;
            }
            if !is_heard && looks.is_answer_due(due, tick) {
                return Some(tick);
            }
            if looks.is_ping(due, tick) {
                is_heard = false;
                coming = coming.or(answered_at(tick));
            }
        }
        None
    }

    fn random_below(seed: &mut u32, end: u32) -> u32 {
        *seed = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (*seed >> 8) % end
    }

    const INTERVALS: [(u32, u32); 8] = [
        (250, 2250),
        (250, 1250),
        (250, 750),
        (250, 500),
        (250, 250),
        (100, 2250),
        (10, 2250),
        (10, 20),
    ];

    #[test]
    fn a_client_that_answers_in_time_is_never_closed_however_late_looks_are() {
        let mut seed = 1;
        for (interval, ping_interval) in INTERVALS {
            for run in 0..50 {
                let looks = Looks::new(run, interval, ping_interval);
                let answered_at = |tick| Some(tick + looks.answer - looks.answer / 4);
                for late_max in [0, interval / 4, interval, 4 * looks.answer] {
                    let late = || random_below(&mut seed, late_max + 1);
                    let closed_at = closed_at(looks, 100_000, late, answered_at);
                    assert_eq!(closed_at, None, "{looks:?}, up to {late_max} late");
                }
            }
        }
    }

    #[test]
    fn a_client_that_says_nothing_any_more_is_closed_after_a_ping_and_the_time_for_its_answer() {
        let mut seed = 1;
        for (interval, ping_interval) in INTERVALS {
            for run in 0..500 {
                let looks = Looks::new(run, interval, ping_interval);
                let late_max = (looks.answer / 4).min(interval / 2 - 1);
                let silent_from = 20_000 + random_below(&mut seed, 2 * ping_interval);
                let answered_at = |tick| (tick < silent_from).then_some(tick);
                let late = || random_below(&mut seed, late_max + 1);
                let closed_at = closed_at(looks, 100_000, late, answered_at);
                let last = silent_from + looks.ping.period + looks.answer + late_max;
                assert!(
                    closed_at.is_some_and(|tick| (silent_from..=last).contains(&tick)),
                    "{looks:?}: {closed_at:?}, at {last} at the latest"
                );
            }
        }
    }

    #[test]
    fn runs_are_spread_evenly() {
        let interval = 250;
        let home = |run: u32| Looks::new(run, interval, 0).home.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|run| counts[(home(run) / 25) as usize] += 1);
        assert!(counts.iter().all(|count| (28..=32).contains(count)), "{counts:?}");
        let ping = |run: u32| Looks::new(run, interval, 1250).ping.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|run| counts[(ping(run) / 125) as usize] += 1);
        assert!(counts.iter().all(|count| (27..=33).contains(count)), "{counts:?}");
    }
}
