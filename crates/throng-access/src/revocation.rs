//! Revocations: tokens that are refused although they have not expired.
//!
//! [`Revocations`] is the set that every verification asks. [`RevocationLog`] owns the file: it
//! writes a revocation to the disk before the set has it, so that an answered revocation holds
//! after a restart. [`SharedRevocations`] belong to several servers, in a table that each of them
//! has whole. A revocation that concerns no living token is forgotten.

mod bounds;
mod forgetting;
mod log;
mod page;
mod record;
mod shared;
mod storage;

pub use bounds::remembered_s;
pub use forgetting::Forgetting;
pub use log::{OpenError, RevocationLog, RevokeError};
pub use page::RevocationPage;
pub use shared::{SharedChange, SharedRevocations, SharedTable};
pub use storage::{FileStorage, PassedFile, RevocationStorage};

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::token::{Identity, TokenId};

/// One revocation. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    /// Of the tokens with this id.
    Token {
        /// The hash of their `jti`.
        id: TokenId,
        at_s: u32,
    },
    /// Of everything that a user was issued before a moment. A token without `iat` counts as issued
    /// before any moment.
    User {
        user: Box<str>,
        /// Tokens with an earlier `iat` are refused. Times of issue have no fractions, so that a
        /// revocation of everything until now names the next second.
        before_s: u32,
    },
}

/// The subject of a revocation. Ordered: tokens first, then users by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Token(TokenId),
    /// Everything that this user was issued.
    User(Box<str>),
}

impl Revocation {
    /// The revocation of `subject` at a moment: of a user, everything issued before it.
    pub fn of(subject: Subject, moment_s: u32) -> Revocation {
        match subject {
            Subject::Token(id) => Revocation::Token { id, at_s: moment_s },
            Subject::User(user) => Revocation::User { user, before_s: moment_s },
        }
    }

    /// The token or user that it revokes.
    pub fn subject(&self) -> Subject {
        match self {
            Revocation::Token { id, .. } => Subject::Token(*id),
            Revocation::User { user, .. } => Subject::User(user.clone()),
        }
    }

    /// The moment from which its time of being remembered counts.
    pub fn moment_s(&self) -> u32 {
        match self {
            Revocation::Token { at_s, .. } => *at_s,
            Revocation::User { before_s, .. } => *before_s,
        }
    }
}

/// The revocations that hold, for all threads that verify tokens.
#[derive(Debug, Default)]
pub struct Revocations {
    set: RwLock<Set>,
    generation: AtomicU64,
    /// Tokens may name a time of issue that is this much later than the right one, in seconds.
    ahead_s: AtomicU32,
}

#[derive(Debug, Default)]
struct Set {
    tokens: HashMap<TokenId, u32, RandomState>,
    users: HashMap<Box<str>, u32, RandomState>,
}

impl Revocations {
    /// The number of the current version, which grows with each revocation. Costs one atomic load.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// True if a token is revoked. Allocates nothing.
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        let set = self.read();
        let is_token = identity.token_id().is_some_and(|id| set.tokens.contains_key(&id));
        let before_s = identity.user().and_then(|user| set.users.get(user));
        let is_of_token = !identity.is_of_application() && !identity.is_of_certificate();
        let ahead_s = if is_of_token { self.ahead_s.load(Ordering::Relaxed) } else { 0 };
        let issued_s = identity.issued_s().saturating_sub(ahead_s);
        is_token || before_s.is_some_and(|&before_s| issued_s < before_s)
    }

    /// A token was shown before the time of issue that it names: the clock of its issuer is ahead.
    /// From now on every token may have been issued up to `leeway_s` seconds before the time that
    /// it names, so that one from before a revocation is not taken for one from after it.
    pub(crate) fn note_ahead(&self, leeway_s: u32) {
        if self.ahead_s.fetch_max(leeway_s, Ordering::Relaxed) < leeway_s {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// How far beyond its moment a revocation of a user reaches, in seconds: 0 unless the clock of
    /// an issuer is ahead.
    pub fn ahead_s(&self) -> u32 {
        self.ahead_s.load(Ordering::Relaxed)
    }

    /// How many revocations hold.
    pub fn len(&self) -> usize {
        let set = self.read();
        set.tokens.len() + set.users.len()
    }

    /// True if nothing is revoked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self) -> RwLockReadGuard<'_, Set> {
        self.set.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a revocation. Of two for one user the later moment holds.
    pub(crate) fn add(&self, revocation: &Revocation) {
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        match revocation {
            Revocation::Token { id, at_s } => {
                let known_s = set.tokens.entry(*id).or_insert(0);
                *known_s = (*known_s).max(*at_s);
            }
            Revocation::User { user, before_s } => {
                let known_s = set.users.entry(user.clone()).or_insert(0);
                *known_s = (*known_s).max(*before_s);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The moment of the revocation of `subject`, in seconds since 1970, if it is revoked.
    pub fn find(&self, subject: &Subject) -> Option<u32> {
        let set = self.read();
        match subject {
            Subject::Token(id) => set.tokens.get(id).copied(),
            Subject::User(user) => set.users.get(user).copied(),
        }
    }

    /// Takes a revocation back. Does not count as a new version, as in
    /// [`Revocations::forget_before`].
    pub(crate) fn remove(&self, subject: &Subject) {
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        match subject {
            Subject::Token(id) => set.tokens.remove(id),
            Subject::User(user) => set.users.remove(user),
        };
    }

    /// Forgets revocations with a moment before `moment_s`. Does not count as a new version: what
    /// is forgotten cannot make a valid token invalid.
    pub(crate) fn forget_before(&self, moment_s: u64) {
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        set.tokens.retain(|_, at_s| u64::from(*at_s) >= moment_s);
        set.users.retain(|_, before_s| u64::from(*before_s) >= moment_s);
    }

    /// All revocations that hold, in no particular order.
    pub(crate) fn list(&self) -> Vec<Revocation> {
        let set = self.read();
        let tokens = set.tokens.iter().map(|(&id, &at_s)| Revocation::Token { id, at_s });
        let users = set
            .users
            .iter()
            .map(|(user, &before_s)| Revocation::User { user: user.clone(), before_s });
        tokens.chain(users).collect()
    }
}
