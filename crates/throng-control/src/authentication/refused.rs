//! Counts the credentials that are refused, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use throng_access::{KeyRefusal, Refused, TokenError};

const REASONS: usize = TokenError::LABELS.len() + KeyRefusal::LABELS.len() + Refused::LABELS.len();

#[derive(Debug)]
pub(crate) struct RefusedCredentials([AtomicU64; REASONS]);

impl Default for RefusedCredentials {
    fn default() -> RefusedCredentials {
        RefusedCredentials(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RefusedCredentials {
    /// Counts a credential that is refused for this reason.
    pub(super) fn count(&self, reason: &'static str) {
        let at = reasons().position(|known| known == reason);
        debug_assert!(at.is_some(), "{reason} is not listed");
        if let Some(at) = at {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each reason, and how often it occurred since the start.
    pub(crate) fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        reasons().zip(&self.0).map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

fn reasons() -> impl Iterator<Item = &'static str> {
    let refused = TokenError::LABELS.into_iter().chain(KeyRefusal::LABELS);
    refused.chain(Refused::LABELS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let refused = RefusedCredentials::default();
        for reason in reasons() {
            refused.count(reason);
        }
        assert_eq!(refused.by_reason().count(), REASONS);
        assert!(refused.by_reason().all(|(_, count)| count == 1));
    }
}
