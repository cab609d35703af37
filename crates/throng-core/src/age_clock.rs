//! A clock for what lasts longer than the process: it agrees with the machine's clock, but setting
//! that one forward makes nothing older.

/// A smaller step of the machine's clock is followed.
pub const SLACK_MS: u64 = 60_000;

/// The machine's clock, without steps forward of more than [`SLACK_MS`], such as NTP makes after
/// boot: from such a step on it advances with the process's monotonic clock. It is never ahead of
/// the machine's clock, and follows steps back.
#[derive(Debug, Default)]
pub struct AgeClock {
    /// How far it is ahead of the clock of the process.
    ahead_ms: Option<i64>,
    has_stepped_back: bool,
}

impl AgeClock {
    /// The time in milliseconds since 1970. `own_ms` is the process's clock
    /// ([`clock::now_ms`](crate::clock::now_ms)), `wall_ms` the machine's.
    pub fn read(&mut self, own_ms: u64, wall_ms: u64) -> u64 {
        let machine_ms = wall_ms.cast_signed().wrapping_sub(own_ms.cast_signed());
        let ahead_ms = self.ahead_ms.map_or(machine_ms, |ahead_ms| {
            self.has_stepped_back |= machine_ms < ahead_ms.saturating_sub_unsigned(SLACK_MS);
            let is_step = machine_ms > ahead_ms.saturating_add_unsigned(SLACK_MS);
            if is_step { ahead_ms } else { machine_ms }
        });
        self.ahead_ms = Some(ahead_ms);
        own_ms.saturating_add_signed(ahead_ms)
    }

    /// Notes that an earlier process has seen this time by the machine's clock, where it is
    /// `wall_ms` now.
    pub fn compare(&mut self, seen_ms: u64, wall_ms: u64) {
        self.has_stepped_back |= seen_ms > wall_ms.saturating_add(SLACK_MS);
    }

    /// True if the machine's clock was set back since this was asked.
    pub fn has_stepped_back(&mut self) -> bool {
        std::mem::take(&mut self.has_stepped_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    #[test]
    fn it_is_not_set_forward() {
        let mut clock = AgeClock::default();
        assert_eq!(clock.read(START_MS, START_MS + 5), START_MS + 5);
        assert_eq!(clock.read(START_MS + 10, START_MS + 24 * HOUR_MS), START_MS + 15);
        assert_eq!(clock.read(START_MS + HOUR_MS, START_MS), START_MS, "it is set back");
        assert!(clock.has_stepped_back());
        assert!(!clock.has_stepped_back());
        clock.compare(START_MS + SLACK_MS, START_MS);
        assert!(!clock.has_stepped_back());
        clock.compare(START_MS + SLACK_MS + 1, START_MS);
        assert!(clock.has_stepped_back());
    }

    #[test]
    fn small_steps_are_followed() {
        let mut clock = AgeClock::default();
        for step in 0..5 {
            let wall_ms = START_MS + step * (SLACK_MS - 1);
            assert_eq!(clock.read(START_MS, wall_ms), wall_ms);
        }
        assert!(!clock.has_stepped_back());
    }
}
