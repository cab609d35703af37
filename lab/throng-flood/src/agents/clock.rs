//! The offset of another machine's clock.
//!
//! `CLOCK_MONOTONIC` counts from the start of each machine. The other side is asked for its time
//! repeatedly. The fastest round trip is the most precise: the other clock was read at some time
//! during it, so its middle is wrong by at most half of it.

use crate::report::ClockReport;

const NS_PER_MS: f64 = 1e6;

/// A request for the time, and its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrip {
    /// This clock, before the request.
    pub(crate) asked_ns: u64,
    /// The other clock, in between.
    pub(crate) theirs_ns: u64,
    /// This clock, after the reply.
    pub(crate) answered_ns: u64,
}

/// How far the other clock is ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offset {
    /// The other clock minus this one.
    pub(crate) ahead_ns: i64,
    /// `ahead_ns` is wrong by at most this much.
    pub(crate) uncertainty_ns: u64,
}

impl Offset {
    /// The offset from the fastest round trip; `None` without any.
    pub(crate) fn of(round_trips: &[RoundTrip]) -> Option<Offset> {
        let took_ns = |trip: &RoundTrip| trip.answered_ns.saturating_sub(trip.asked_ns);
        let fastest = round_trips.iter().min_by_key(|trip| took_ns(trip))?;
        let half_ns = took_ns(fastest).div_ceil(2);
        let middle_ns = fastest.asked_ns.saturating_add(half_ns);
        // Both clocks start with their machine, so neither has counted centuries.
        let ahead_ns = fastest.theirs_ns as i64 - middle_ns as i64;
        Some(Offset { ahead_ns, uncertainty_ns: half_ns })
    }

    /// True if both may be the same clock: those of different machines differ by more.
    pub(crate) fn may_be_none(self) -> bool {
        self.ahead_ns.unsigned_abs() <= self.uncertainty_ns
    }

    /// The offset for the report: before the run and, if known, after it.
    pub(crate) fn clock(self, after: Option<Offset>) -> ClockReport {
        let ms = |ns: i64| ns as f64 / NS_PER_MS;
        ClockReport {
            ahead_ms: ms(self.ahead_ns),
            uncertainty_ms: self.uncertainty_ns as f64 / NS_PER_MS,
            drift_ms: after.map(|after| ms(after.ahead_ns - self.ahead_ns)),
        }
    }
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trip(asked_ns: u64, there_ns: u64, back_ns: u64, ahead_ns: i64) -> RoundTrip {
        let theirs_ns = (asked_ns + there_ns).saturating_add_signed(ahead_ns);
        RoundTrip { asked_ns, theirs_ns, answered_ns: asked_ns + there_ns + back_ns }
    }

    #[test]
    fn the_offset_is_within_its_uncertainty() {
        for ahead_ns in [-3_600_000_000_000, -1, 0, 5_000, 86_400_000_000_000] {
            let start = 7_200_000_000_000;
            // The way there may be slower than the way back.
            let trips = [
                trip(start, 900_000, 100_000, ahead_ns),
                trip(start + 2_000_000, 60_000, 20_001, ahead_ns),
                trip(start + 9_000_000, 10_000, 2_000_000, ahead_ns),
            ];
            let offset = Offset::of(&trips).expect("three");
            assert_eq!(offset.uncertainty_ns, 40_001);
            assert!(offset.ahead_ns.abs_diff(ahead_ns) <= offset.uncertainty_ns, "{offset:?}");
        }
        assert_eq!(Offset::of(&[]), None);
    }

    #[test]
    fn the_same_clock_has_no_offset() {
        let same = Offset::of(&[trip(1_000, 30, 50, 0)]).expect("one");
        assert!(same.may_be_none());
        let other = Offset::of(&[trip(1_000, 30, 50, 700)]).expect("one");
        assert!(!other.may_be_none());
        assert_eq!(other.clock(Some(Offset { ahead_ns: 1_000_690, ..other })).drift_ms, Some(1.0));
    }
}
