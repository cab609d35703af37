//! How old messages are, although the machine's clock may be set at any time.
//!
//! Messages have the time of the machine's clock when they were published, as they stay over
//! restarts. So the clock by which they age has to agree with it, but not at once: if the machine's
//! clock is set forward, most of all by NTP after boot, no message has become older. The difference
//! is remembered until the end of the run, and messages that are published from then on are taken
//! for as much older. If it is set back, messages of before have a time in the future. These count
//! as published when that is noticed, each as much later than the one before it as it was.

use throng_core::age_clock::{AgeClock, SLACK_MS};
use throng_core::{Retention, clock};

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
    /// The time when it is `own_ms` by the clock of the process.
    pub(super) fn read(clock: &mut AgeClock, own_ms: u64) -> Now {
        Now::of(clock, own_ms, clock::wall_ms(own_ms))
    }

    fn of(clock: &mut AgeClock, own_ms: u64, wall_ms: u64) -> Now {
        Now { wall_ms, aged_ms: clock.read(own_ms, wall_ms), own_ms }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    #[test]
    fn a_clock_that_is_set_forward_makes_nothing_older() {
        let mut clock = AgeClock::default();
        let before = Now::of(&mut clock, START_MS, START_MS);
        assert_eq!(before.published_ms(START_MS), Some(START_MS));
        let own_ms = START_MS + 10;
        let after = Now::of(&mut clock, own_ms, own_ms + 24 * HOUR_MS);
        assert_eq!(after.aged_ms, own_ms);
        assert_eq!(after.published_ms(after.wall_ms), Some(own_ms));
        assert_eq!(after.published_ms(START_MS), Some(START_MS));
        let later = Now::of(&mut clock, own_ms + HOUR_MS, after.wall_ms + HOUR_MS);
        assert_eq!(later.published_ms(after.wall_ms), Some(own_ms));
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let mut clock = AgeClock::default();
        Now::of(&mut clock, START_MS, START_MS + HOUR_MS);
        let now = Now::of(&mut clock, START_MS + 5, START_MS + 5);
        assert_eq!(now.aged_ms, START_MS + 5);
        assert_eq!(now.published_ms(START_MS + HOUR_MS), None);
        assert_eq!(now.time_after(START_MS + HOUR_MS), START_MS + 5);
        assert_eq!(now.time_after(START_MS + 7), START_MS + 7, "times do not go back for less");
    }

    #[test]
    fn messages_of_the_future_expire_as_far_apart_as_they_were_published() {
        let now = Now::of(&mut AgeClock::default(), START_MS, START_MS);
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
