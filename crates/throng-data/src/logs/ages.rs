//! How old messages are, although the machine's clock may be set at any time.
//!
//! Messages have the time of the machine's clock when they were published, as they stay over
//! restarts. So the clock by which they age has to agree with it, but not at once: if the machine's
//! clock is set forward, most of all by NTP after boot, no message has become older. The difference
//! is remembered until the end of the run, and messages that are published from then on are taken
//! for as much older. If it is set back, messages of before have a time in the future. These count
//! as published when that is noticed, each as much later than the one before it as it was.

use throng_core::Retention;

/// A smaller step of the clock is followed: the ages of messages are not that exact.
const SLACK_MS: u64 = 60_000;

/// The time by all clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// By the machine's clock. What is published now has this time.
    pub(super) wall_ms: u64,
    /// By the clock by which messages age. It is never further than the machine's clock.
    pub(super) aged_ms: u64,
    /// By the clock of the process, which nobody can set: for what lasts minutes.
    pub(super) own_ms: u64,
}

impl Now {
    /// When a message was published, by the clock by which it ages; `None` if that is in the
    /// future.
    fn published_ms(&self, time_ms: u64) -> Option<u64> {
        let latest_ms = self.aged_ms.saturating_add(SLACK_MS);
        // Since the clock was set forward.
        let since_ms = time_ms.saturating_sub(self.wall_ms.saturating_sub(self.aged_ms));
        [time_ms, since_ms].into_iter().find(|&at_ms| at_ms <= latest_ms)
    }

    /// The time of a message that is published behind one with the time `newest_ms`.
    pub(super) fn time_after(&self, newest_ms: u64) -> u64 {
        let is_of_the_future = newest_ms > self.wall_ms.saturating_add(SLACK_MS);
        if is_of_the_future { self.wall_ms } else { self.wall_ms.max(newest_ms) }
    }

    /// Whether a note of when a message expires may be right.
    pub(super) fn is_plausible(&self, expires_ms: u64, retention: &Retention) -> bool {
        let latest_ms = self.aged_ms.saturating_add(retention.max_age_ms).saturating_add(SLACK_MS);
        self.aged_ms < expires_ms && expires_ms <= latest_ms
    }

    /// Whether a time of [`Now::own_ms`] is in the future: it is of a run before, and the machine's
    /// clock was set back between the two.
    pub(super) fn is_future(&self, own_ms: u64) -> bool {
        own_ms > self.own_ms.saturating_add(SLACK_MS)
    }
}

/// When the messages of a channel expire, the oldest first.
#[derive(Debug)]
pub(super) struct Expiries {
    now: Now,
    max_age_ms: u64,
    /// By how much messages of the future were published earlier than they say.
    early_ms: Option<u64>,
}

impl Expiries {
    pub(super) fn new(now: Now, retention: &Retention) -> Expiries {
        Expiries { now, max_age_ms: retention.max_age_ms, early_ms: None }
    }

    /// When the next message expires, and whether it is of the future. `is_due` says that it was
    /// noted to expire by now: that is when one of the future does.
    pub(super) fn next(&mut self, time_ms: u64, is_due: bool) -> (u64, bool) {
        let Expiries { now, max_age_ms, .. } = *self;
        let known = now.published_ms(time_ms);
        let published_ms = known.unwrap_or_else(|| {
            let age_ms = if is_due { max_age_ms } else { 0 };
            let of_now = time_ms.saturating_add(age_ms).saturating_sub(now.aged_ms);
            time_ms.saturating_sub(*self.early_ms.get_or_insert(of_now))
        });
        (published_ms.saturating_add(max_age_ms), known.is_none())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AgeClock {
    /// How far it is ahead of the clock of the process.
    ahead_ms: Option<i64>,
    /// Whether the machine's clock was set back.
    has_stepped_back: bool,
}

impl AgeClock {
    /// Reads the clock of the process and that of the machine.
    pub(super) fn read(&mut self, own_ms: u64, wall_ms: u64) -> Now {
        let machine_ms = wall_ms.cast_signed().wrapping_sub(own_ms.cast_signed());
        let ahead_ms = self.ahead_ms.map_or(machine_ms, |ahead_ms| {
            self.has_stepped_back |= machine_ms < ahead_ms.saturating_sub_unsigned(SLACK_MS);
            let is_step = machine_ms > ahead_ms.saturating_add_unsigned(SLACK_MS);
            if is_step { ahead_ms } else { machine_ms }
        });
        self.ahead_ms = Some(ahead_ms);
        Now { wall_ms, aged_ms: own_ms.saturating_add_signed(ahead_ms), own_ms }
    }

    /// Notes that an earlier run has seen this time by the machine's clock, where it is `wall_ms`
    /// now.
    pub(super) fn compare(&mut self, seen_ms: u64, wall_ms: u64) {
        self.has_stepped_back |= seen_ms > wall_ms.saturating_add(SLACK_MS);
    }

    /// Whether the machine's clock was set back since this was asked. Then there may be notes that
    /// are far in the future.
    pub(super) fn has_stepped_back(&mut self) -> bool {
        std::mem::take(&mut self.has_stepped_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    #[test]
    fn a_clock_that_is_set_forward_makes_nothing_older() {
        let mut clock = AgeClock::default();
        let before = clock.read(START_MS, START_MS);
        assert_eq!(before.published_ms(START_MS), Some(START_MS));
        let own_ms = START_MS + 10;
        let after = clock.read(own_ms, own_ms + 24 * HOUR_MS);
        assert_eq!(after.aged_ms, own_ms);
        assert_eq!(after.published_ms(after.wall_ms), Some(own_ms));
        assert_eq!(after.published_ms(START_MS), Some(START_MS));
        let later = clock.read(own_ms + HOUR_MS, after.wall_ms + HOUR_MS);
        assert_eq!(later.published_ms(after.wall_ms), Some(own_ms));
        assert!(!clock.has_stepped_back());
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed_and_told() {
        let mut clock = AgeClock::default();
        clock.read(START_MS, START_MS + HOUR_MS);
        let now = clock.read(START_MS + 5, START_MS + 5);
        assert_eq!(now.aged_ms, START_MS + 5);
        assert!(clock.has_stepped_back());
        assert!(!clock.has_stepped_back());
        assert_eq!(now.published_ms(START_MS + HOUR_MS), None);
        assert_eq!(now.time_after(START_MS + HOUR_MS), START_MS + 5);
        assert_eq!(now.time_after(START_MS + 7), START_MS + 7, "times do not go back for less");
    }

    #[test]
    fn small_steps_are_followed() {
        let mut clock = AgeClock::default();
        for step in 0..5 {
            let wall_ms = START_MS + step * (SLACK_MS - 1);
            assert_eq!(clock.read(START_MS, wall_ms).aged_ms, wall_ms);
        }
        assert!(!clock.has_stepped_back());
    }

    #[test]
    fn messages_of_the_future_expire_as_far_apart_as_they_were_published() {
        let now = AgeClock::default().read(START_MS, START_MS);
        let age_ms = 1_000;
        let retention = Retention { max_messages: 9, max_bytes: 9, max_age_ms: age_ms };
        let future_ms = START_MS + 99 * HOUR_MS;
        let mut noted = Expiries::new(now, &retention);
        assert_eq!(noted.next(future_ms, false), (START_MS + age_ms, true));
        let mut due = Expiries::new(now, &retention);
        assert_eq!(due.next(future_ms, true), (START_MS, true));
        assert_eq!(due.next(future_ms + 7, false), (START_MS + 7, true));
        assert_eq!(due.next(START_MS - 1, false), (START_MS - 1 + age_ms, false));
    }
}
