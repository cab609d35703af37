//! How old messages are, although the machine's clock may be set at any time.
//!
//! Messages have the time of the machine's clock when they were published, as they stay over
//! restarts. So the clock by which they age has to agree with it, but not at once: if the machine's
//! clock is set forward, most of all by NTP after boot, no message has become older. The difference
//! is remembered until the end of the run, and subtracted from the times of what is published after
//! the step. If the machine's clock is set back, earlier messages have a time in the future. The
//! first of them counts as published when that is noticed, and the others as far behind it as
//! their times are.

use throng_core::age_clock::{AgeClock, SLACK_MS};
use throng_core::{Retention, clock};

/// Steps of the machine's clock that are remembered at most.
const STEPS_MAX: usize = 1_000;

/// The time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgeNow {
    /// By the machine's clock. Messages published now have this time.
    pub(super) wall_ms: u64,
    /// By the clock by which messages age. It is never ahead of the machine's clock.
    pub(super) aged_ms: u64,
}

impl AgeNow {
    /// The time of a message that is published behind one with the time `newest_ms`.
    pub(super) fn time_after(&self, newest_ms: u64) -> u64 {
        let is_of_the_future = newest_ms > self.wall_ms.saturating_add(SLACK_MS);
        if is_of_the_future { self.wall_ms } else { self.wall_ms.max(newest_ms) }
    }

    /// True if a note of when a message expires may be right.
    pub(super) fn is_plausible(&self, expires_ms: u64, retention: &Retention) -> bool {
        let latest_ms = self.latest_ms().saturating_add(retention.max_age_ms);
        self.aged_ms < expires_ms && expires_ms <= latest_ms
    }

    /// Nothing can have been published later.
    fn latest_ms(&self) -> u64 {
        self.aged_ms.saturating_add(SLACK_MS)
    }
}

/// A step of the machine's clock.
#[derive(Debug)]
struct Step {
    /// Its reading then.
    wall_ms: u64,
    /// How far it has been ahead of the clock by which messages age since then.
    ahead_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct AgeTable {
    clock: AgeClock,
    /// In the order of what the machine's clock showed.
    steps: Vec<Step>,
    /// True if the machine's clock was set back, so that notes of when messages expire may be far
    /// in the future.
    pub(super) must_visit: bool,
}

impl AgeTable {
    /// The time when it is `own_ms` by the clock of the process.
    pub(super) fn read(&mut self, own_ms: u64) -> AgeNow {
        self.read_at(own_ms, clock::wall_ms(own_ms))
    }

    fn read_at(&mut self, own_ms: u64, wall_ms: u64) -> AgeNow {
        let aged_ms = self.clock.read(own_ms, wall_ms);
        self.must_visit |= self.clock.has_stepped_back();
        let ahead_ms = wall_ms.saturating_sub(aged_ms);
        let before_ms = self.steps.last().map_or(0, |step| step.ahead_ms);
        if ahead_ms.abs_diff(before_ms) >= SLACK_MS {
            self.steps.retain(|step| step.wall_ms < wall_ms);
            if self.steps.len() == STEPS_MAX {
                // Messages published since then count as later than they were.
                self.steps.remove(0);
            }
            self.steps.push(Step { wall_ms, ahead_ms });
        }
        AgeNow { wall_ms, aged_ms }
    }

    /// Notes that an earlier run has seen this time by the machine's clock.
    pub(super) fn compare(&mut self, seen_ms: u64) {
        self.clock.compare(seen_ms, clock::wall_ms(clock::now_ms()));
        self.must_visit |= self.clock.has_stepped_back();
    }

    /// When something was published that has this time, by the clock by which it ages; `None` if
    /// that is in the future.
    pub(super) fn published_ms(&self, now: AgeNow, time_ms: u64) -> Option<u64> {
        let step = self.steps.iter().rfind(|step| step.wall_ms <= time_ms);
        let published_ms = time_ms.saturating_sub(step.map_or(0, |step| step.ahead_ms));
        (published_ms <= now.latest_ms()).then_some(published_ms)
    }
}

/// State of the note that says when the oldest message of a channel expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Its time has come.
    Due,
    /// Its time has not come, or there is no note.
    Later,
    /// It may have been made under another retention.
    Outdated,
}

/// When the messages of a channel expire, the oldest first.
#[derive(Debug)]
pub(super) struct Expiries<'a> {
    ages: &'a AgeTable,
    now: AgeNow,
    max_age_ms: u64,
    /// By how much messages of the future were published earlier than they say.
    early_ms: Option<u64>,
}

impl<'a> Expiries<'a> {
    pub(super) fn new(ages: &'a AgeTable, now: AgeNow, retention: &Retention) -> Expiries<'a> {
        Expiries { ages, now, max_age_ms: retention.max_age_ms, early_ms: None }
    }

    /// When the next message expires, and whether it needs a note of its own: its time is later
    /// than now, so if the machine's clock is set back, only its note tells when it expires.
    /// `is_due` says that its note is due.
    pub(super) fn next(&mut self, time_ms: u64, is_due: bool) -> (u64, bool) {
        let Expiries { now, max_age_ms, .. } = *self;
        let published_ms = self.ages.published_ms(now, time_ms).unwrap_or_else(|| {
            let age_ms = if is_due { max_age_ms } else { 0 };
            let of_now = time_ms.saturating_add(age_ms).saturating_sub(now.aged_ms);
            time_ms.saturating_sub(*self.early_ms.get_or_insert(of_now))
        });
        (published_ms.saturating_add(max_age_ms), time_ms > now.latest_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    /// A machine whose clock is set.
    #[derive(Default)]
    struct Machine {
        ages: AgeTable,
        passed_ms: u64,
        ahead_ms: u64,
    }

    impl Machine {
        fn pass(&mut self, ms: u64) -> AgeNow {
            self.passed_ms += ms;
            let own_ms = START_MS + self.passed_ms;
            self.ages.read_at(own_ms, own_ms + self.ahead_ms)
        }

        fn set_ahead(&mut self, ms: u64) -> AgeNow {
            self.ahead_ms = ms;
            self.pass(0)
        }

        /// How old what has this time is.
        fn age_ms(&mut self, time_ms: u64) -> Option<u64> {
            let now = self.pass(0);
            self.ages.published_ms(now, time_ms).map(|at_ms| now.aged_ms - at_ms)
        }
    }

    #[test]
    fn no_step_forward_makes_anything_older_or_younger() {
        let mut machine = Machine::default();
        let mut published = vec![machine.pass(0).wall_ms];
        for hours in [8, 24, 16_000] {
            machine.pass(HOUR_MS);
            machine.set_ahead(hours * HOUR_MS);
            published.push(machine.pass(HOUR_MS).wall_ms);
        }
        for _ in 0..30 {
            machine.pass(HOUR_MS);
            let ages: Vec<_> = published.iter().map(|&it| machine.age_ms(it)).collect();
            let oldest_ms = machine.passed_ms;
            let expected = [0, 2, 4, 6].map(|hours| Some(oldest_ms - hours * HOUR_MS));
            assert_eq!(ages, expected);
        }
        assert!(!machine.ages.must_visit);
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let mut machine = Machine::default();
        let first = machine.pass(0).wall_ms;
        machine.set_ahead(HOUR_MS);
        let ahead = machine.pass(10).wall_ms;
        assert_eq!(machine.age_ms(ahead), Some(0));
        assert!(!machine.ages.must_visit);
        machine.set_ahead(0);
        assert!(!machine.ages.must_visit, "it is not before the time by which messages age");
        let now = machine.pass(5);
        assert_eq!(machine.age_ms(ahead), None);
        assert_eq!(machine.age_ms(first), Some(15));
        assert_eq!(machine.age_ms(now.wall_ms), Some(0));
        assert_eq!(now.time_after(ahead), now.wall_ms);
        assert_eq!(now.time_after(now.wall_ms + 7), now.wall_ms + 7, "not back for less");
        let mut other = Machine { ahead_ms: HOUR_MS, ..Machine::default() };
        other.pass(0);
        other.set_ahead(0);
        assert!(other.ages.must_visit);
    }

    #[test]
    fn steps_take_little_memory() {
        let mut machine = Machine::default();
        for minutes in 0..2 * STEPS_MAX as u64 {
            machine.set_ahead(2 * minutes * SLACK_MS);
        }
        assert_eq!(machine.ages.steps.len(), STEPS_MAX);
    }

    #[test]
    fn messages_of_the_future_keep_their_distance_in_time() {
        let mut ages = AgeTable::default();
        let now = ages.read_at(START_MS, START_MS);
        let age_ms = 1_000;
        let retention = Retention { max_messages: 9, max_bytes: 9, max_age_ms: age_ms };
        let future_ms = START_MS + 99 * HOUR_MS;
        let mut noted = Expiries::new(&ages, now, &retention);
        assert_eq!(noted.next(future_ms, false), (START_MS + age_ms, true));
        let mut due = Expiries::new(&ages, now, &retention);
        assert_eq!(due.next(future_ms, true), (START_MS, true));
        assert_eq!(due.next(future_ms + 7, false), (START_MS + 7, true));
        assert_eq!(due.next(START_MS - 1, false), (START_MS - 1 + age_ms, false));
    }
}
