//! Moments in texts.

use throng_units::format::{date, seconds};

/// A moment, and how far it is from now: `2026-11-22 21:00 UTC, in 59 min 30 s`.
pub(crate) fn moment(at_s: u64, now_s: u64) -> String {
    let distance = seconds(at_s.abs_diff(now_s) as f64);
    if at_s == now_s {
        format!("{}, just now", date(at_s))
    } else if at_s > now_s {
        format!("{}, in {distance}", date(at_s))
    } else {
        format!("{}, {distance} ago", date(at_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_its_distance() {
        assert_eq!(moment(1_800_000_000, 1_799_999_990), "2027-01-15 08:00 UTC, in 10.0 s");
        assert_eq!(moment(1_800_000_000, 1_800_000_300), "2027-01-15 08:00 UTC, 5 min 00 s ago");
        assert_eq!(moment(1_800_000_000, 1_800_000_000), "2027-01-15 08:00 UTC, just now");
    }
}
