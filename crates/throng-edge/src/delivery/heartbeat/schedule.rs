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

/// When the connections of a group are checked: twice in each interval of the server, or of the
/// connection if that is shorter.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckSchedule {
    /// The regular checks, one in each interval.
    regular: Recurring,
    /// The halfway checks, half an interval after the regular ones.
    halfway: Recurring,
    /// The checks that send a heartbeat: all of them, unless the connection has a longer interval.
    heartbeats: Heartbeats,
    /// The regular checks that send a ping; none for a connection that is not a WebSocket.
    ping: Recurring,
    /// Ticks from a ping to the check that closes a client without an answer: a multiple of the
    /// interval, and at most the ping interval.
    answer_ticks: u32,
}

/// The checks that send a heartbeat if nothing was written since the one before: regular and
/// halfway ones of the connection's own interval.
#[derive(Debug, Clone, Copy)]
struct Heartbeats {
    regular: Recurring,
    halfway: Recurring,
}

impl Heartbeats {
    /// Every `times`-th regular check of the group, and half of that after it, which is a check,
    /// too.
    fn new(group: u32, regular: Recurring, times: u32) -> Heartbeats {
        let period = regular.period.saturating_mul(times);
        let offset = regular.offset + regular.period * (group % times);
        let halfway = (offset + period / 2) % period.max(1);
        Heartbeats {
            regular: Recurring { period, offset },
            halfway: Recurring { period, offset: halfway },
        }
    }
}

/// The intervals of a connection, in ticks; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Intervals {
    /// The longest silence of the server where the client has chosen none.
    pub(super) own: u32,
    /// The longest silence on this connection.
    pub(super) heartbeat: u32,
    /// The time between two pings.
    pub(super) ping: u32,
}

impl CheckSchedule {
    /// The schedule of a group. The ping interval is rounded to a multiple of the heartbeat
    /// interval, and a heartbeat interval that is longer than the server's down to a multiple of
    /// that: a dead peer is found as soon as on other connections. A server without heartbeats
    /// sends no pings either, also where a client has chosen heartbeats.
    pub(super) fn new(group: u32, intervals: Intervals) -> CheckSchedule {
        let Intervals { own, heartbeat, ping } = intervals;
        let interval = if own == 0 { heartbeat } else { heartbeat.min(own) };
        let regular = Recurring::new(interval, group.wrapping_mul(GOLDEN));
        let offset = (regular.offset + interval / 2) % interval.max(1);
        let halfway = Recurring { period: interval, offset };
        let times = heartbeat.checked_div(interval).unwrap_or(1).max(1);
        let heartbeats = Heartbeats::new(group, regular, times);
        if own == 0 || interval == 0 || ping == 0 {
            let ping = Recurring::NEVER;
            return CheckSchedule { regular, halfway, heartbeats, ping, answer_ticks: 0 };
        }
        let every = (ping.saturating_add(interval / 2) / interval).max(1);
        let period = interval.saturating_mul(every);
        let ping = Recurring { period, offset: regular.offset + interval * (group % every) };
        let answer = ANSWER_TICKS_MIN.div_ceil(interval).max(ANSWER_INTERVALS).min(every);
        let answer_ticks = interval * answer;
        CheckSchedule { regular, halfway, heartbeats, ping, answer_ticks }
    }

    /// The first check after `tick`.
    pub(super) fn next(self, tick: u32) -> u32 {
        self.regular.next(tick).min(self.halfway.next(tick))
    }

    /// True if a check that was due at `due` sends a heartbeat if nothing was written.
    pub(super) fn is_heartbeat(self, due: u32, tick: u32) -> bool {
        let Heartbeats { regular, halfway } = self.heartbeats;
        [regular, halfway].into_iter().any(|checks| checks.elapsed_since(due, tick).is_some())
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

    /// True if a check that was due at `due` is so late that another one that sends heartbeats has
    /// been due since.
    pub(super) fn is_missed(self, due: u32, tick: u32) -> bool {
        tick - due.min(tick) >= self.heartbeats.regular.period / 2
    }

    /// True if the last check that sends heartbeats was a regular one.
    pub(super) fn is_regular(self, tick: u32) -> bool {
        let regular = self.heartbeats.regular;
        regular.period > 0 && regular.elapsed(tick) < regular.period / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schedule where clients have chosen nothing.
    fn schedule(group: u32, interval: u32, ping: u32) -> CheckSchedule {
        CheckSchedule::new(group, Intervals { own: interval, heartbeat: interval, ping })
    }

    /// The schedule of a client that has chosen its interval.
    fn chosen(group: u32, heartbeat: u32, ping: u32) -> CheckSchedule {
        CheckSchedule::new(group, Intervals { own: 250, heartbeat, ping })
    }

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
                let schedule = self::schedule(group, interval, 0);
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
                let schedule = self::schedule(group, 250, ping_interval);
                let first = schedule.ping.next(5000);
                assert!(schedule.is_regular(first) && schedule.regular.elapsed(first) == 0);
                assert_eq!(schedule.ping.next(first), first + 250 * every);
            }
        }
    }

    #[test]
    fn a_client_has_two_intervals_for_its_answer() {
        let answer = |interval, ping_interval| schedule(7, interval, ping_interval).answer_ticks;
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
                let schedule = self::schedule(group, interval, ping_interval);
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
                let schedule = self::schedule(group, interval, ping_interval);
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
    fn a_longer_interval_of_a_client_delays_heartbeats_alone() {
        for (heartbeat, times) in [(251, 1), (499, 1), (600, 2), (750, 3), (2250, 9)] {
            for group in 0..50 {
                let (longer, other) = (chosen(group, heartbeat, 2250), schedule(group, 250, 2250));
                assert_eq!((longer.ping, longer.answer_ticks), (other.ping, other.answer_ticks));
                let (mut tick, mut sent) = (10_000, Vec::new());
                while tick < 20_000 {
                    let due = longer.next(tick);
                    assert_eq!(due, other.next(tick));
                    tick = due;
                    if longer.is_heartbeat(due, tick) {
                        sent.push((tick, longer.is_regular(tick)));
                    }
                }
                let alternate = sent.windows(2).all(|two| two[0].1 != two[1].1);
                let apart = sent.windows(3).all(|three| three[2].0 - three[0].0 == times * 250);
                assert!(alternate && apart && sent.len() > 5, "{heartbeat}, {group}: {sent:?}");
            }
        }
    }

    #[test]
    fn a_silent_client_with_a_longer_interval_is_closed_as_soon() {
        for heartbeat in [100, 250, 600, 2250, 36_000] {
            for group in 0..500 {
                let schedule = chosen(group, heartbeat, 2250);
                let silent_from = 20_000;
                let answered_at = |tick| (tick < silent_from).then_some(tick);
                let closed_at = closed_at(schedule, 100_000, || 0, answered_at);
                // The ping interval and two intervals of the server.
                let last = silent_from + 2250 + 500;
                assert!(closed_at.is_some_and(|tick| tick <= last), "{schedule:?}: {closed_at:?}");
            }
        }
    }

    #[test]
    fn a_server_without_heartbeats_pings_nobody() {
        let of_client = Intervals { own: 0, heartbeat: 600, ping: 2250 };
        let schedule = CheckSchedule::new(7, of_client);
        assert_eq!((schedule.ping, schedule.answer_ticks), (Recurring::NEVER, 0));
        let first = schedule.next(1000);
        assert!(schedule.is_heartbeat(first, first) && schedule.next(first) == first + 300);
        let none = CheckSchedule::new(7, Intervals { own: 0, heartbeat: 0, ping: 2250 });
        assert_eq!(none.next(1000), NEVER);
    }

    #[test]
    fn groups_are_spread_evenly() {
        let interval = 250;
        let regular = |group: u32| schedule(group, interval, 0).regular.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|group| counts[(regular(group) / 25) as usize] += 1);
        assert!(counts.iter().all(|count| (28..=32).contains(count)), "{counts:?}");
        let ping = |group: u32| schedule(group, interval, 1250).ping.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|group| counts[(ping(group) / 125) as usize] += 1);
        assert!(counts.iter().all(|count| (27..=33).contains(count)), "{counts:?}");
    }
}
