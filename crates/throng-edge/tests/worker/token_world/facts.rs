//! The oracle's facts: tokens, revocations, messages, and the time of each event.

use std::collections::BTreeSet;

use super::{CHANNELS, LEEWAY_S};

/// A token, as its issuer knows it.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) id: String,
    pub(super) user: Option<&'static str>,
    pub(super) granted: BTreeSet<usize>,
    pub(super) issued_s: u64,
    pub(super) expires_s: u64,
    /// It is signed with the key that the server learns later.
    pub(super) has_late_key: bool,
}

impl Token {
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms / 1000 >= self.expires_s + LEEWAY_S
    }
}

/// The tokens that a revocation is about.
#[derive(Debug)]
pub(super) enum Revoked {
    /// The token with this id.
    Id(String),
    /// Those that this user was issued before a moment.
    User(&'static str, u64),
}

impl Revoked {
    fn is_about(&self, token: &Token) -> bool {
        match self {
            Revoked::Id(id) => *id == token.id,
            Revoked::User(user, before_s) => {
                token.user == Some(*user) && token.issued_s < *before_s
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The time of each step in milliseconds. The last one is the current step.
    pub(super) times_ms: Vec<u64>,
    /// Revocations, and the step in which the server had closed the connections that were there.
    pub(super) revocations: Vec<(Revoked, Option<u64>)>,
    /// True if the server has the late key.
    pub(super) has_late_key: bool,
    /// True if decisions of the application may come later.
    pub(super) is_late: bool,
    /// Per channel its messages; the first has the offset 1.
    pub(super) logs: [Vec<String>; CHANNELS.len()],
    /// Events so far, so that the test can tell that all kinds happen.
    pub(super) seen: BTreeSet<&'static str>,
}

impl Facts {
    pub(super) fn step(&self) -> u64 {
        self.times_ms.len() as u64 - 1
    }

    /// The time of a step in milliseconds.
    pub(super) fn time_ms(&self, step: u64) -> u64 {
        self.times_ms[step as usize]
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.time_ms(self.step())
    }

    /// True if a token has expired or is revoked.
    pub(super) fn is_bad(&self, token: &Token) -> bool {
        token.is_over(self.now_ms()) || self.is_revoked(token)
    }

    pub(super) fn is_over(&self, token: &Token) -> bool {
        token.is_over(self.now_ms())
    }

    pub(super) fn is_revoked(&self, token: &Token) -> bool {
        self.revocations.iter().any(|(revoked, _)| revoked.is_about(token))
    }

    /// True if the server accepts a token that it is shown now.
    pub(super) fn is_good(&self, token: &Token) -> bool {
        !self.is_bad(token) && (!token.has_late_key || self.has_late_key)
    }

    /// True if nothing may be written any more in a step to connections with a token that was
    /// valid: it has expired, or all connections were closed before that it was revoked for.
    pub(super) fn is_cut_off(&self, token: &Token, step: u64) -> bool {
        let is_closed = |closed: &Option<u64>| closed.is_some_and(|closed| closed < step);
        token.is_over(self.time_ms(step))
            || self
                .revocations
                .iter()
                .any(|(revoked, closed)| is_closed(closed) && revoked.is_about(token))
    }
}
