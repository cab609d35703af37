//! Verdicts about tokens, at once or later.

use std::sync::Arc;

use crate::limit;
use crate::token::{Identity, TokenError};

/// Why a client is not who it claims to be, or why this cannot be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token is refused. The status is 401.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The key set that may have the token's key cannot be fetched. The status is 503.
    #[error("the keys that verify this token cannot be fetched now")]
    KeysUnavailable {
        /// Until the next attempt, in milliseconds.
        retry_ms: u64,
    },
    /// [`WAITING_MAX`](super::WAITING_MAX) tokens wait for a key set. The status is 503.
    #[error("too many tokens wait for the keys that verify them")]
    TooManyWaiting,
    /// The address that it comes from has sent too many forged tokens, or too many tokens from
    /// there wait for a key set. The status is 429.
    #[error(transparent)]
    Limited(#[from] limit::Refusal),
}

impl Refusal {
    /// A short word for counters: one of those that
    /// [`RefusedCredentials`](crate::RefusedCredentials) tells apart.
    pub fn label(self) -> &'static str {
        match self {
            Refusal::Token(error) => error.label(),
            Refusal::KeysUnavailable { .. } | Refusal::TooManyWaiting => "keys_unavailable",
            Refusal::Limited(_) => "limited",
        }
    }
}

/// The identity of a valid token, or the reason to refuse it.
pub type Verdict = Result<Arc<Identity>, Refusal>;

/// The current time, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Of a clock that never goes back, in milliseconds: for fetching.
    pub steady_ms: u64,
    /// Of the machine's clock, in seconds since 1970: for tokens.
    pub unix_s: u64,
}
