//! When a connection is checked, when it is pinged, and when its answer is due. These times recur
//! and follow from the connection's place in the table, so that it stores none of them.

use crate::sockets::TICKS_PER_S;

/// The tick of something that never happens.
const NEVER: u32 = u32::MAX;

/// Connections whose indices differ only below this share a schedule: they form a group. Their
/// sockets are neighbours in the kernel's memory, and on one machine a client that the first
/// heartbeat wakes finds the others: with 512 a heartbeat costs a tenth less than with 64. Writing
/// to a whole group takes some 5 ms.
pub(super) const GROUP: u32 = 512;

/// 2^32 divided by the golden ratio: its multiples modulo 2^32 are spread evenly, however many
/// there are.
const GOLDEN: u32 = 0x9e37_79b9;

/// A client has this many intervals to answer a ping: all but the slowest need one round trip, and
/// with the default settings a dead client is closed within five minutes.
const ANSWER_INTERVALS: u32 = 2;

/// But at least this long, in ticks, where heartbeats are frequent: as long as the kernel waits for
/// an acknowledgement (`TCP_USER_TIMEOUT`, see `sys/listener.rs`).
const ANSWER_TICKS_MIN: u32 = 20 * TICKS_PER_S;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recurring {
    /// Ticks from one to the next; 0 for never.
    period: u32,
    /// The first one; less than the period.
    offset: u32,
}

impl Recurring {
    const NEVER: Recurring = Recurring { period: 0, offset: 0 };

    /// Every `period` ticks, first at the fraction `phase` / 2^32 of the period.
    fn new(period: u32, phase: u32) -> Recurring {
        let offset = (u64::from(phase) * u64::from(period)) >> 32;
        Recurring { period, offset: offset as u32 }
    }

    /// The first one after `tick`.
    fn next(self, tick: u32) -> u32 {
        if self.period == 0 {
            return NEVER;
        }
        tick.saturating_add(self.period - self.elapsed(tick))
    }

    /// Ticks since the last one at or before `tick`. That may be before tick 0.
    fn elapsed(self, tick: u32) -> u32 {
        debug_assert!(self.period > 0);
        let period = u64::from(self.period);
        ((u64::from(tick) + period - u64::from(self.offset)) % period) as u32
    }

    /// Ticks since the last one, if that was at `since` or later.
    fn elapsed_since(self, since: u32, tick: u32) -> Option<u32> {
        let elapsed = (self.period > 0).then(|| self.elapsed(tick))?;
        (elapsed <= tick.saturating_sub(since)).then_some(elapsed)
    }
}

/// When the connections of a group are checked: twice in each heartbeat interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckSchedule {
    /// The regular checks, one in each interval.
    regular: Recurring,
    /// The halfway checks, half an interval after the regular ones.
    halfway: Recurring,
    /// The regular checks that send a ping; none for a connection that is not a WebSocket.
    ping: Recurring,
    /// Ticks from a ping to the check that closes a client without an answer: a multiple of the
    /// interval, and at most the ping interval.
    answer_ticks: u32,
}

impl CheckSchedule {
    /// The schedule of a group. All times are ticks; the ping interval is rounded to a multiple of
    /// the heartbeat interval.
    pub(super) fn new(group: u32, interval: u32, ping_interval: u32) -> CheckSchedule {
        let regular = Recurring::new(interval, group.wrapping_mul(GOLDEN));
        let offset = (regular.offset + interval / 2) % interval.max(1);
        let halfway = Recurring { period: interval, offset };
        if interval == 0 || ping_interval == 0 {
            return CheckSchedule { regular, halfway, ping: Recurring::NEVER, answer_ticks: 0 };
        }
        let every = (ping_interval.saturating_add(interval / 2) / interval).max(1);
        let period = interval.saturating_mul(every);
        let ping = Recurring { period, offset: regular.offset + interval * (group % every) };
        let answer = ANSWER_TICKS_MIN.div_ceil(interval).max(ANSWER_INTERVALS).min(every);
        CheckSchedule { regular, halfway, ping, answer_ticks: interval * answer }
    }

    /// The first check after `tick`.
    pub(super) fn next(self, tick: u32) -> u32 {
        self.regular.next(tick).min(self.halfway.next(tick))
    }

    /// True if a check that was due at `due` sends a ping. A ping that is late by more than a
    /// quarter of the client's time to answer is left out.
    pub(super) fn is_ping(self, due: u32, tick: u32) -> bool {
        self.ping.elapsed_since(due, tick).is_some_and(|late| late <= self.answer_ticks / 4)
    }

    /// Whether, at a check that was due at `due`, the client has had its time since the ping
    /// before, and everything that it sent within that time has been read.
    pub(super) fn is_answer_due(self, due: u32, tick: u32) -> bool {
        if self.ping.period == 0 || tick - due.min(tick) > self.answer_ticks / 4 {
            return false;
        }
        let elapsed = self.ping.elapsed(due);
        // At 0 the next ping is due.
        elapsed == 0 || elapsed >= self.answer_ticks
    }

    /// True if a check that was due at `due` is so late that another one has been due since.
    pub(super) fn is_missed(self, due: u32, tick: u32) -> bool {
        tick - due.min(tick) >= self.regular.period / 2
    }

    /// True if the last check was a regular one.
    pub(super) fn is_regular(self, tick: u32) -> bool {
        self.regular.period > 0 && self.regular.elapsed(tick) < self.regular.period / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurring_ticks_repeat() {
        let recurring = Recurring { period: 10, offset: 3 };
        assert_eq!([0, 2, 3, 12, 13].map(|tick| recurring.next(tick)), [3, 3, 13, 13, 23]);
        assert_eq!([3, 4, 12, 13, 0].map(|tick| recurring.elapsed(tick)), [0, 1, 9, 0, 7]);
        assert_eq!(recurring.elapsed_since(14, 15), None);
        assert_eq!(recurring.elapsed_since(13, 15), Some(2));
        assert_eq!(recurring.elapsed_since(1, 35), Some(2));
        let never = Recurring::NEVER;
        assert_eq!((never.next(5), never.elapsed_since(0, 5)), (NEVER, None));
    }

    #[test]
    fn regular_and_halfway_checks_alternate() {
        for interval in [10, 11, 250] {
            for group in 0..100_u32 {
                let schedule = CheckSchedule::new(group, interval, 0);
                let first = schedule.next(1000);
                let second = schedule.next(first);
                assert_ne!(schedule.is_regular(first), schedule.is_regular(second));
                assert_eq!(schedule.next(second), first + interval);
                assert!(second - first >= interval / 2);
            }
        }
    }

    #[test]
    fn some_of_the_regular_checks_are_pings() {
        for (ping_interval, every) in [(2250, 9), (1200, 5), (250, 1), (100, 1), (300, 1), (400, 2)]
        {
            for group in 0..50 {
                let schedule = CheckSchedule::new(group, 250, ping_interval);
                let first = schedule.ping.next(5000);
                assert!(schedule.is_regular(first) && schedule.regular.elapsed(first) == 0);
                assert_eq!(schedule.ping.next(first), first + 250 * every);
            }
        }
    }

    #[test]
    fn a_client_has_two_intervals_for_its_answer() {
        let answer =
            |interval, ping_interval| CheckSchedule::new(7, interval, ping_interval).answer_ticks;
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

    /// Checks a client until it is closed, and returns that tick. What the client sends after a
    /// check is due is not read before the check, as when the worker was held up.
    fn closed_at(
        schedule: CheckSchedule,
        until: u32,
        mut late: impl FnMut() -> u32,
        answered_at: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let (mut tick, mut is_heard, mut coming) = (10_000, true, None);
        while tick < until {
            let due = schedule.next(tick);
            tick = due + late();
            if coming.take_if(|at| *at <= due).is_some() {
                is_heard = true;
            }
            if !is_heard && schedule.is_answer_due(due, tick) {
                return Some(tick);
            }
            if schedule.is_ping(due, tick) {
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
    fn late_checks_close_no_client_that_answers_in_time() {
        let mut seed = 1;
        for (interval, ping_interval) in INTERVALS {
            for group in 0..50 {
                let schedule = CheckSchedule::new(group, interval, ping_interval);
                let answered_at =
                    |tick| Some(tick + schedule.answer_ticks - schedule.answer_ticks / 4);
                for max_late in [0, interval / 4, interval, 4 * schedule.answer_ticks] {
                    let late = || random_below(&mut seed, max_late + 1);
                    let closed_at = closed_at(schedule, 100_000, late, answered_at);
                    assert_eq!(closed_at, None, "{schedule:?}, up to {max_late} late");
                }
            }
        }
    }

    #[test]
    fn a_silent_client_is_closed_after_an_unanswered_ping() {
        let mut seed = 1;
        for (interval, ping_interval) in INTERVALS {
            for group in 0..500 {
                let schedule = CheckSchedule::new(group, interval, ping_interval);
                let max_late = (schedule.answer_ticks / 4).min(interval / 2 - 1);
                let silent_from = 20_000 + random_below(&mut seed, 2 * ping_interval);
                let answered_at = |tick| (tick < silent_from).then_some(tick);
                let late = || random_below(&mut seed, max_late + 1);
                let closed_at = closed_at(schedule, 100_000, late, answered_at);
                let last = silent_from + schedule.ping.period + schedule.answer_ticks + max_late;
                assert!(
                    closed_at.is_some_and(|tick| (silent_from..=last).contains(&tick)),
                    "{schedule:?}: {closed_at:?}, at {last} at the latest"
                );
            }
        }
    }

    #[test]
    fn groups_are_spread_evenly() {
        let interval = 250;
        let regular = |group: u32| CheckSchedule::new(group, interval, 0).regular.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|group| counts[(regular(group) / 25) as usize] += 1);
        assert!(counts.iter().all(|count| (28..=32).contains(count)), "{counts:?}");
        let ping = |group: u32| CheckSchedule::new(group, interval, 1250).ping.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|group| counts[(ping(group) / 125) as usize] += 1);
        assert!(counts.iter().all(|count| (27..=33).contains(count)), "{counts:?}");
    }
}
