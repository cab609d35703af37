//! Used rates of clients, as bytes, for a process that takes over.
//!
//! # Format
//!
//! The kind of client and the quantity, as the labels of `throng_limits_refused_total` name them,
//! with a zero byte behind each; the time in nanoseconds in which one unit comes back (8); the
//! machine's clock when it was written, in milliseconds since 1970 (8); and for each client its key
//! (8) and the nanoseconds until all has come back that it has used (8). Numbers are little-endian.
//!
//! Only clients that have used something are in it: at most as many as the server remembers.

use throng_core::clock;

use super::key::LimitKey;
use super::rate::RateLimiter;
use super::refusal::{Quantity, Subject};

const NUMBER_BYTES: usize = size_of::<u64>();

/// The use of a rate by some clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedRates {
    pub(super) subject: Subject,
    pub(super) quantity: Quantity,
    unit_ns: u64,
    pub(super) clients: Vec<UsedRate>,
}

/// The use of a rate by one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UsedRate {
    pub(super) key: LimitKey,
    /// The time until all of it has come back.
    pub(super) missing_ns: u64,
}

impl UsedRates {
    pub(super) fn of(
        rate: &RateLimiter,
        (subject, quantity): (Subject, Quantity),
        now_ms: u64,
    ) -> UsedRates {
        let missing = rate.missing(now_ms);
        let clients = missing.map(|(key, missing_ns)| UsedRate { key, missing_ns }).collect();
        UsedRates { subject, quantity, unit_ns: rate.unit_ns(), clients }
    }

    /// The time until the same units have come back at another rate.
    pub(super) fn missing_at(&self, unit_ns: u64, missing_ns: u64) -> u64 {
        let at = u128::from(missing_ns) * u128::from(unit_ns) / u128::from(self.unit_ns.max(1));
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// Appends all of it.
    pub fn write(&self, now_ms: u64, bytes: &mut Vec<u8>) {
        for name in [self.subject.name(), self.quantity.name()] {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        let head = [self.unit_ns, clock::wall_ms(now_ms)];
        let clients = self.clients.iter().flat_map(|it| [it.key.0, it.missing_ns]);
        for number in head.into_iter().chain(clients) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Reads what [`UsedRates::write`] has written, without what has come back since; `None` for
    /// anything else, and for limits that this version does not have.
    pub fn read(bytes: &[u8], now_ms: u64) -> Option<UsedRates> {
        let (subject, rest) = name(bytes)?;
        let (quantity, rest) = name(rest)?;
        let subject = Subject::ALL.into_iter().find(|it| it.name().as_bytes() == subject)?;
        let quantity = Quantity::of(subject).find(|it| it.name().as_bytes() == quantity)?;
        let (numbers, []) = rest.as_chunks::<NUMBER_BYTES>() else { return None };
        let (&[unit, written], clients) = numbers.split_first_chunk()?;
        let passed_ms = clock::wall_ms(now_ms).saturating_sub(u64::from_le_bytes(written));
        let passed_ns = passed_ms.saturating_mul(1_000_000);
        let (clients, []) = clients.as_chunks::<2>() else { return None };
        let clients = clients.iter().map(|[key, missing]| UsedRate {
            key: LimitKey(u64::from_le_bytes(*key)),
            missing_ns: u64::from_le_bytes(*missing).saturating_sub(passed_ns),
        });
        let clients = clients.filter(|client| client.missing_ns > 0).collect();
        Some(UsedRates { subject, quantity, unit_ns: u64::from_le_bytes(unit), clients })
    }
}

/// The bytes before the first zero, and those behind it.
fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{ClientKeys, ClientLimits, LimitKeys, LimitSettings, Limiter};
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn limiter(publishes_per_s: u32) -> Limiter {
        let user = ClientLimits { publishes_per_s, ..ClientLimits::default() };
        let settings = LimitSettings { user, bad_tokens_per_s: 1, ..LimitSettings::default() };
        Limiter::new(settings).with_keys(LimitKeys::with_secret([7; 32]))
    }

    fn user(limiter: &Limiter, tag: u64) -> ClientKeys {
        limiter.user(Some(tag))
    }

    /// Another server with these limits, which goes on after some milliseconds.
    fn after(before: &Limiter, publishes_per_s: u32, pause_ms: u64) -> Limiter {
        let next = limiter(publishes_per_s);
        before.used_rates(NOW_MS, |used| {
            let mut bytes = Vec::new();
            used.write(NOW_MS, &mut bytes);
            let read = UsedRates::read(&bytes, NOW_MS + pause_ms).unwrap();
            next.resume_rates(&read, NOW_MS + pause_ms);
        });
        next
    }

    /// When a client may publish a message.
    fn waits_ms(limiter: &Limiter, tag: u64, now_ms: u64) -> u64 {
        let refused = limiter.publish(user(limiter, tag), 1, 0, now_ms).err();
        refused.and_then(|refusal| refusal.after_ms).unwrap_or(0)
    }

    #[test]
    fn what_is_used_is_used_in_the_next_process() {
        let before = limiter(10);
        for tag in 1..=100 {
            before.publish(user(&before, tag), tag as u32, 0, NOW_MS).unwrap();
        }
        let address = "192.0.2.1".parse().ok();
        (0..3).for_each(|_| before.charge_bad_token(address, NOW_MS));
        let next = after(&before, 10, 0);
        for tag in 1..=100 {
            assert_eq!(waits_ms(&next, tag, NOW_MS), waits_ms(&before, tag, NOW_MS), "{tag}");
        }
        assert_eq!(waits_ms(&next, 101, NOW_MS), 0);
        let bad_tokens = |limiter: &Limiter| limiter.may_verify(address, NOW_MS).unwrap_err();
        assert_eq!(bad_tokens(&next), bad_tokens(&before));
    }

    #[test]
    fn used_rates_recover_at_their_own_pace() {
        let before = limiter(10);
        before.publish(user(&before, 1), 30, 0, NOW_MS).unwrap();
        let next = after(&before, 10, 500);
        assert_eq!(waits_ms(&next, 1, NOW_MS + 500), 2_100 - 500);
        // 30 messages come back in 15 s; the last second's worth is the burst.
        assert_eq!(waits_ms(&after(&before, 2, 0), 1, NOW_MS), 14_500);
        // All of it has.
        let mut count = 0;
        before.used_rates(NOW_MS + 3_000, |_| count += 1);
        assert_eq!(count, 0);
        let none = Limiter::new(LimitSettings::default());
        before.used_rates(NOW_MS, |used| none.resume_rates(used, NOW_MS));
    }

    #[test]
    fn what_is_something_else_is_passed_over() {
        let before = limiter(10);
        before.publish(user(&before, 1), 3, 0, NOW_MS).unwrap();
        let mut bytes = Vec::new();
        before.used_rates(NOW_MS, |used| used.write(NOW_MS, &mut bytes));
        assert!(UsedRates::read(&bytes, NOW_MS).is_some());
        for end in 0..bytes.len() {
            let part = UsedRates::read(&bytes[..end], NOW_MS);
            assert!(part.is_none_or(|part| part.clients.is_empty()), "{end}");
        }
        // Of other clients, and of another quantity.
        for at in ["", "user\0"].map(str::len) {
            let mut other = bytes.clone();
            other[at] = b'o';
            assert_eq!(UsedRates::read(&other, NOW_MS), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, now_ms: u64) {
            let named = [b"user\0publishes\0".as_slice(), &bytes].concat();
            for bytes in [bytes, named] {
                if let Some(used) = UsedRates::read(&bytes, now_ms) {
                    limiter(10).resume_rates(&used, now_ms);
                }
            }
        }
    }
}
