//! Forgets old revocations, although the machine's clock may be wrong.

use throng_core::age_clock::AgeClock;

/// For how long nothing is forgotten after a start, when the machine's clock may not have been set.
const AT_FIRST_MS: u64 = 3_600_000;

/// Tells [`tidy`](super::RevocationLog::tidy) what time it is. A clock that is wrong for a while
/// must not make revoked tokens valid again, once it is right.
#[derive(Debug, Default)]
pub struct Forgetting {
    clock: AgeClock,
    began_ms: Option<u64>,
}

impl Forgetting {
    /// The time in seconds since 1970 up to which revocations are forgotten; 0, at which none is,
    /// in the first hour. `own_ms` is the process's clock
    /// ([`clock::now_ms`](throng_core::clock::now_ms)), and `machine_ms` the machine's.
    pub fn now_s(&mut self, own_ms: u64, machine_ms: u64) -> u64 {
        let now_ms = self.clock.read(own_ms, machine_ms);
        let began_ms = *self.began_ms.get_or_insert(own_ms);
        if own_ms.saturating_sub(began_ms) < AT_FIRST_MS { 0 } else { now_ms / 1000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    #[test]
    fn nothing_is_forgotten_by_a_clock_that_is_ahead() {
        let mut forgetting = Forgetting::default();
        assert_eq!(forgetting.now_s(START_MS, START_MS + 2 * DAY_MS), 0, "at the start");
        assert_eq!(forgetting.now_s(START_MS + 1, START_MS + 1), 0, "and then it is set");
        let later_ms = START_MS + 1 + AT_FIRST_MS;
        assert_eq!(forgetting.now_s(later_ms, later_ms), later_ms / 1000);
        assert_eq!(forgetting.now_s(later_ms, later_ms + DAY_MS), later_ms / 1000);
    }
}
