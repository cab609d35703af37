//! When clients are told that messages come late: not at once, as most interruptions are short.

/// For how long messages have come late until clients are told.
const LATE_MS: u64 = 5_000;

/// For how long they have not come late until clients are told so.
const CURRENT_MS: u64 = 1_000;

/// Messages are late if they take that long.
const LAG_MS: u64 = 2_000;

/// They are not late any more if they take less than that.
const LAG_MS_AGAIN: u64 = 1_000;

#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// The last notice to clients; `None` before an earlier process's is known.
    told: Option<bool>,
    /// Since when something else holds.
    since_ms: Option<u64>,
}

impl Lateness {
    /// How late messages are now; `None` if the node is cut off. Returns what clients are to be
    /// told, if anything.
    pub(super) fn step(&mut self, now_ms: u64, lag_ms: Option<u64>) -> Option<bool> {
        let lag_max_ms = if self.told == Some(true) { LAG_MS_AGAIN } else { LAG_MS };
        let is_late = lag_ms.is_none_or(|lag_ms| lag_ms >= lag_max_ms);
        if self.told == Some(is_late) {
            self.since_ms = None;
            return None;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let wait_ms = if is_late { LATE_MS } else { CURRENT_MS };
        if now_ms.saturating_sub(since_ms) < wait_ms {
            return None;
        }
        (self.told, self.since_ms) = (Some(is_late), None);
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The notices, in steps of a tenth of a second.
    fn told(
        lateness: &mut Lateness,
        from_ms: u64,
        lags: &[(u64, Option<u64>)],
    ) -> Vec<(u64, bool)> {
        let (mut now_ms, mut told) = (from_ms, Vec::new());
        for &(for_ms, lag_ms) in lags {
            for _ in 0..for_ms / 100 {
                told.extend(lateness.step(now_ms, lag_ms).map(|is_late| (now_ms, is_late)));
                now_ms += 100;
            }
        }
        told
    }

    #[test]
    fn clients_are_told_of_what_lasts() {
        let mut lateness = Lateness::default();
        assert_eq!(told(&mut lateness, 0, &[(9_000, Some(3))]), [(1_000, false)]);
        let short = [(4_000, None), (500, Some(0)), (4_900, Some(2_500)), (3_000, Some(1_900))];
        assert_eq!(told(&mut lateness, 9_000, &short), []);
        let long = [(9_000, None), (900, Some(0)), (3_000, Some(1_500)), (3_000, Some(900))];
        let expected = [(35_000, true), (43_900, false)];
        assert_eq!(told(&mut lateness, 30_000, &long), expected);
    }

    #[test]
    fn a_node_that_never_finds_the_servers_tells_so() {
        let mut lateness = Lateness::default();
        assert_eq!(told(&mut lateness, 0, &[(9_000, None)]), [(5_000, true)]);
    }
}
