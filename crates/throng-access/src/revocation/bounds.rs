//! Which revocations may be made, and for how long they are remembered.

use super::{Revocation, Revocations, RevokeError};
use crate::token::Policy;

#[derive(Debug, Clone)]
pub(super) struct Bounds {
    max_entries: usize,
    /// How long a revocation can concern a living token.
    horizon_s: u64,
    leeway_s: u64,
}

impl Bounds {
    pub(super) fn new(policy: &Policy, max_entries: usize) -> Bounds {
        Bounds { max_entries, horizon_s: horizon_s(policy), leeway_s: policy.leeway_s.into() }
    }

    /// Fails if one of `all` is not allowed. If the table is full, first removes revocations of
    /// tokens that have all expired.
    pub(super) fn check(
        &self,
        revocations: &Revocations,
        all: &[Revocation],
        now_s: u64,
    ) -> Result<(), RevokeError> {
        // One second more, for a revocation of everything until now.
        let latest_s = now_s + self.leeway_s + 1;
        if all.iter().any(|one| u64::from(one.moment_s()) > latest_s) {
            return Err(RevokeError::Future);
        }
        if revocations.len() + all.len() > self.max_entries {
            self.forget(revocations, now_s);
            if revocations.len() + all.len() > self.max_entries {
                return Err(RevokeError::Full(self.max_entries));
            }
        }
        Ok(())
    }

    /// Forgets what concerns no living token.
    pub(super) fn forget(&self, revocations: &Revocations, now_s: u64) {
        revocations.forget_before(now_s.saturating_sub(self.horizon_s));
    }
}

/// A token is issued by a clock that is at most the leeway ahead, lives for the maximum, and is
/// accepted for the leeway after that.
fn horizon_s(policy: &Policy) -> u64 {
    u64::from(policy.max_age_s) + 2 * u64::from(policy.leeway_s)
}

/// How long a revocation has to be stored from the moment at which it was made, in seconds. Its own
/// moment may be the leeway, and a second, later.
pub fn remembered_s(policy: &Policy) -> u64 {
    horizon_s(policy) + u64::from(policy.leeway_s) + 1
}
