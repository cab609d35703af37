//! When to renew, and when to try again after a failure.

use std::time::{Duration, SystemTime};

use crate::error::AcmeError;

/// The first wait after the authority was not reached, and the longest.
const UNREACHABLE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3600)];

/// The same after it has refused. Authorities count failed validations: Let's Encrypt allows five
/// for a name in an hour.
const REFUSED: [Duration; 2] = [Duration::from_secs(15 * 60), Duration::from_secs(24 * 3600)];

/// A wait that an authority asks for is believed up to this: 31 days.
pub(crate) const ASKED_MAX: Duration = Duration::from_secs(31 * 86_400);

/// When to renew a certificate that is valid between these moments: after two thirds of its life,
/// less up to a tenth, so that the certificates of many servers are not renewed together. `chance`
/// is from 0 to 1.
pub(crate) fn renewal(from: SystemTime, until: SystemTime, chance: f64) -> SystemTime {
    let life = until.duration_since(from).unwrap_or_default();
    from + life.mul_f64(2.0 / 3.0 - chance.clamp(0.0, 1.0) * 0.1)
}

/// When to renew a certificate that is valid in `life` if its authority names a `window`: at a
/// random moment of it, which may be over, but with at least a tenth of the life left. `chance` is
/// from 0 to 1.
pub(crate) fn in_window(
    window: (SystemTime, SystemTime),
    life: (SystemTime, SystemTime),
    chance: f64,
) -> SystemTime {
    let spare = life.1.duration_since(life.0).unwrap_or_default().mul_f64(0.1);
    let latest = life.1.checked_sub(spare).unwrap_or(life.1);
    let from = window.0.max(life.0).min(latest);
    let time = window.1.min(latest).duration_since(from).unwrap_or_default();
    from + time.mul_f64(chance.clamp(0.0, 1.0))
}

/// The earliest moment for the next renewal after one at `obtained`, whatever the authority wants:
/// an hour later, or after a tenth of the new certificate's `life`.
pub(crate) fn not_before(obtained: SystemTime, life: (SystemTime, SystemTime)) -> SystemTime {
    let tenth = life.1.duration_since(life.0).unwrap_or_default().mul_f64(0.1);
    obtained + tenth.min(Duration::from_secs(3600))
}

/// How long to wait after the last of `failures`, which are at least one: longer each time, and up
/// to a fifth longer by chance.
pub(crate) fn wait(error: &AcmeError, failures: u32, chance: f64) -> Duration {
    let [first, most] = match error {
        AcmeError::Unreachable(_) | AcmeError::Store(_) | AcmeError::Own(_) => UNREACHABLE,
        AcmeError::Refused(_) | AcmeError::Limited(_) => REFUSED,
    };
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1).min(16)).unwrap_or(u32::MAX);
    first.saturating_mul(doubled).min(most).mul_f64(1.0 + chance.clamp(0.0, 1.0) * 0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_certificate_is_renewed_in_its_last_third() {
        let from = SystemTime::UNIX_EPOCH;
        let until = from + 90 * HOUR;
        let at = |chance| renewal(from, until, chance).duration_since(from).unwrap();
        assert_eq!(at(0.0).as_secs(), 60 * 3600);
        assert_eq!(at(1.0).as_secs(), 51 * 3600);
        assert_eq!(renewal(until, from, 0.5), until, "one that ends before it begins");
    }

    #[test]
    fn the_authoritys_renewal_window_is_heeded() {
        let from = SystemTime::UNIX_EPOCH + 1000 * HOUR;
        let life = (from, from + 100 * HOUR);
        let at = |first: u32, last: u32, chance| {
            let window =
                (SystemTime::UNIX_EPOCH + first * HOUR, SystemTime::UNIX_EPOCH + last * HOUR);
            in_window(window, life, chance).duration_since(from).unwrap().as_secs() / 3600
        };
        assert_eq!((at(1020, 1030, 0.0), at(1020, 1030, 0.5), at(1020, 1030, 1.0)), (20, 25, 30));
        assert_eq!((at(1, 2, 0.0), at(1, 2, 1.0)), (0, 0), "one that is over");
        assert_eq!((at(1080, 1200, 0.0), at(1080, 1200, 1.0)), (80, 90), "it would expire");
        assert_eq!(at(1200, 1300, 0.5), 90, "it would have expired");
        let next = |life| not_before(from, (from, from + life)).duration_since(from).unwrap();
        assert_eq!((next(90 * HOUR), next(HOUR)), (HOUR, HOUR / 10));
    }

    #[test]
    fn each_failure_makes_the_wait_longer_up_to_a_limit() {
        let refused = AcmeError::Refused(String::new());
        let waits: Vec<u64> = (1..12).map(|nth| wait(&refused, nth, 0.0).as_secs() / 60).collect();
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 960, 1440, 1440, 1440, 1440]);
        let unreachable = AcmeError::Unreachable(String::new());
        assert_eq!(wait(&unreachable, 1, 0.0), Duration::from_secs(10));
        assert_eq!(wait(&unreachable, u32::MAX, 0.0), HOUR);
        assert_eq!(wait(&unreachable, u32::MAX, 1.0), HOUR + HOUR / 5);
    }
}
