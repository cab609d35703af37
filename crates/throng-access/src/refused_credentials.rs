//! Counts the credentials that either plane refuses, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::token::TokenError;

/// A server that has no keys for tokens got one.
pub(crate) const NO_TOKEN_KEYS: &str = "no_token_keys";

/// There was no verdict on a token in time.
const UNANSWERED: &str = "unanswered";

/// Reasons to refuse a server key, then reasons to refuse a token before it has a verdict. The
/// verdicts on tokens have reasons of their own.
pub(crate) const OTHER_REASONS: [&str; 8] = [
    "server_key_of_page",
    "server_key_place",
    "malformed_server_key",
    "unknown_server_key",
    NO_TOKEN_KEYS,
    "keys_unavailable",
    UNANSWERED,
    "limited",
];

const REASONS: usize = TokenError::LABELS.len() + OTHER_REASONS.len();

/// How many credentials were refused for which reason. Any thread may count.
#[derive(Debug)]
pub struct RefusedCredentials([AtomicU64; REASONS]);

impl Default for RefusedCredentials {
    fn default() -> RefusedCredentials {
        RefusedCredentials(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RefusedCredentials {
    /// Counts a credential that is refused for this reason.
    pub fn count(&self, reason: &'static str) {
        let at = reasons().position(|known| known == reason);
        debug_assert!(at.is_some(), "{reason} is not listed");
        if let Some(at) = at {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a token on which there was no verdict in time.
    pub fn count_unanswered(&self) {
        self.count(UNANSWERED);
    }

    /// Each reason, and how often it occurred since the start.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        reasons().zip(&self.0).map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

fn reasons() -> impl Iterator<Item = &'static str> {
    TokenError::LABELS.into_iter().chain(OTHER_REASONS)
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
