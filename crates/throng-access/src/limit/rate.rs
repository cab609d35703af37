//! Events or bytes per second: token buckets in a table of fixed size.
//!
//! A bucket is the moment at which it is full again (the generic cell rate algorithm): 16 bytes
//! with its key, and no work while nothing happens. A full bucket says nothing, so its place is
//! free.

use super::key::LimitKey;

/// Buckets that share a place in the table, in the order of looking: two cache lines.
const WAYS: usize = 8;

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateMeter {
    /// The average over a long time. At least 1.
    pub per_second: u32,
    /// How much may happen at once, after a pause. At least 1.
    pub burst: u32,
}

/// The limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TryLater {
    /// After this time there is room, if nothing else happens. At least 1.
    pub after_ms: u64,
}

/// Limits the rate of many clients. A table of fixed size: when it is full of clients that were
/// active lately, the one that is closest to its full bucket is forgotten, and starts afresh. So
/// too small a table admits more, and never less.
#[derive(Debug)]
pub struct RateLimiter {
    sets: Box<[[Bucket; WAYS]]>,
    unit_ns: u64,
    burst: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    key: u64,
    /// When it is full again. In the past: it is full, and its place is free.
    full_ns: u64,
}

const _: () = assert!(size_of::<Bucket>() == 16);

impl RateLimiter {
    /// A limiter that remembers at least `buckets_min` clients, in 16 bytes each.
    pub fn new(rate: RateMeter, buckets_min: usize) -> RateLimiter {
        let sets = buckets_min.div_ceil(WAYS).max(1);
        RateLimiter {
            sets: vec![[Bucket::default(); WAYS]; sets].into(),
            unit_ns: 1_000_000_000 / u64::from(rate.per_second.max(1)),
            burst: rate.burst.max(1),
        }
    }

    /// Takes `units` from the bucket of `key`, if it has them. A demand for more than the burst is
    /// granted when the bucket is full, and delays what follows accordingly.
    ///
    /// # Errors
    ///
    /// [`TryLater`]; then nothing was taken.
    pub fn take(&mut self, key: LimitKey, units: u32, now_ms: u64) -> Result<(), TryLater> {
        self.check(key, units, now_ms)?;
        self.charge(key, units, now_ms);
        Ok(())
    }

    /// Whether [`RateLimiter::take`] would succeed.
    ///
    /// # Errors
    ///
    /// [`TryLater`] if not.
    pub fn check(&self, key: LimitKey, units: u32, now_ms: u64) -> Result<(), TryLater> {
        let now_ns = nanoseconds(now_ms);
        let known = self.sets[self.set_of(key)].iter().find(|bucket| bucket.key == key.0);
        let missing_ns = known.map_or(0, |bucket| bucket.full_ns.saturating_sub(now_ns));
        let wanted_ns = u64::from(units.min(self.burst)) * self.unit_ns;
        let burst_ns = u64::from(self.burst) * self.unit_ns;
        match (missing_ns + wanted_ns).checked_sub(burst_ns) {
            None | Some(0) => Ok(()),
            Some(over_ns) => Err(TryLater { after_ms: over_ns.div_ceil(1_000_000) }),
        }
    }

    /// Takes `units` from the bucket of `key`, whether it has them or not: for what has happened
    /// already, such as a wrong signature.
    pub fn charge(&mut self, key: LimitKey, units: u32, now_ms: u64) {
        self.miss(key, u64::from(units) * self.unit_ns, now_ms);
    }

    /// The time in which one unit comes back.
    pub(super) fn unit_ns(&self) -> u64 {
        self.unit_ns
    }

    /// The clients whose buckets are not full, and the time until they are.
    pub(super) fn missing(&self, now_ms: u64) -> impl Iterator<Item = (LimitKey, u64)> {
        let now_ns = nanoseconds(now_ms);
        let buckets = self.sets.iter().flatten();
        let missing = buckets.map(move |it| (LimitKey(it.key), it.full_ns.saturating_sub(now_ns)));
        missing.filter(|(_, missing_ns)| *missing_ns > 0)
    }

    /// Takes what makes the bucket of `key` full only after this time more.
    pub(super) fn miss(&mut self, key: LimitKey, missing_ns: u64, now_ms: u64) {
        let now_ns = nanoseconds(now_ms);
        let bucket = self.bucket(key);
        let empty_ns = if bucket.key == key.0 { bucket.full_ns.max(now_ns) } else { now_ns };
        *bucket = Bucket { key: key.0, full_ns: empty_ns.saturating_add(missing_ns) };
    }

    /// The bucket of `key`, or the one that makes room for it.
    fn bucket(&mut self, key: LimitKey) -> &mut Bucket {
        let set = self.set_of(key);
        let set = &mut self.sets[set];
        let known = set.iter().position(|bucket| bucket.key == key.0);
        let at = known.unwrap_or_else(|| {
            let soonest = (0..WAYS).min_by_key(|&at| set[at].full_ns);
            soonest.expect("a set has several buckets")
        });
        &mut set[at]
    }

    fn set_of(&self, key: LimitKey) -> usize {
        (key.0 % self.sets.len() as u64) as usize
    }
}

fn nanoseconds(time_ms: u64) -> u64 {
    time_ms.saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW_MS: u64 = 1_800_000_000_000;
    const RATE: RateMeter = RateMeter { per_second: 10, burst: 3 };

    fn key(number: u64) -> LimitKey {
        LimitKey(number)
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut limiter = RateLimiter::new(RATE, 8);
        let mut take = |after_ms| limiter.take(LimitKey(7), 1, NOW_MS + after_ms);
        for _ in 0..3 {
            assert_eq!(take(0), Ok(()));
        }
        assert_eq!(take(0), Err(TryLater { after_ms: 100 }));
        assert_eq!(take(99), Err(TryLater { after_ms: 1 }));
        assert_eq!(take(100), Ok(()));
        assert_eq!(take(100), Err(TryLater { after_ms: 100 }));
        assert_eq!(take(10_000), Ok(()), "it is full again, and not fuller");
        assert_eq!((take(10_000), take(10_000)), (Ok(()), Ok(())));
        assert_eq!(take(10_000), Err(TryLater { after_ms: 100 }));
    }

    #[test]
    fn a_demand_beyond_the_burst_needs_a_full_bucket() {
        let mut limiter = RateLimiter::new(RATE, 8);
        assert_eq!(limiter.take(LimitKey(7), 30, NOW_MS), Ok(()));
        assert_eq!(limiter.take(LimitKey(7), 1, NOW_MS), Err(TryLater { after_ms: 2800 }));
        assert_eq!(limiter.take(LimitKey(7), 30, NOW_MS + 2999), Err(TryLater { after_ms: 1 }));
        assert_eq!(limiter.take(LimitKey(7), 30, NOW_MS + 3000), Ok(()));
    }

    #[test]
    fn failures_are_charged_after_the_fact() {
        let mut limiter = RateLimiter::new(RATE, 8);
        for _ in 0..5 {
            limiter.charge(LimitKey(7), 1, NOW_MS);
        }
        assert_eq!(limiter.check(LimitKey(7), 1, NOW_MS), Err(TryLater { after_ms: 300 }));
        assert_eq!(limiter.check(LimitKey(8), 1, NOW_MS), Ok(()));
    }

    #[test]
    fn a_full_table_forgets_who_is_closest_to_a_full_bucket() {
        let mut limiter = RateLimiter::new(RATE, WAYS);
        for number in 0..WAYS as u64 {
            limiter.charge(LimitKey(number), 10 - number as u32, NOW_MS);
        }
        limiter.charge(LimitKey(99), 10, NOW_MS);
        let is_limited = |number| limiter.check(LimitKey(number), 1, NOW_MS).is_err();
        assert!((0..7).all(is_limited) && is_limited(99));
        assert!(!is_limited(7), "it had 3 of 10 missing");
    }

    proptest! {
        /// Against the definition: within any window at most the burst and the rate get through,
        /// and a client that keeps to the rate is never refused.
        #[test]
        fn the_rate_holds_in_any_window(
            pauses_ms in prop::collection::vec(0..300_u64, 1..200),
            per_second in 1..100_u32, burst in 1..20_u32,
        ) {
            let mut limiter = RateLimiter::new(RateMeter { per_second, burst }, 64);
            let (mut now_ms, mut granted) = (NOW_MS, Vec::new());
            for pause_ms in pauses_ms {
                now_ms += pause_ms;
                match limiter.take(key(1), 1, now_ms) {
                    Ok(()) => granted.push(now_ms),
                    Err(TryLater { after_ms }) => {
                        prop_assert!(after_ms >= 1);
                        prop_assert!(limiter.check(key(1), 1, now_ms + after_ms).is_ok());
                    }
                }
            }
            for (from, &start_ms) in granted.iter().enumerate() {
                for (to, &end_ms) in granted.iter().enumerate().skip(from) {
                    let allowed = u64::from(burst)
                        + (end_ms - start_ms) * u64::from(per_second) / 1000 + 1;
                    prop_assert!((to - from + 1) as u64 <= allowed);
                }
            }
        }
    }
}
