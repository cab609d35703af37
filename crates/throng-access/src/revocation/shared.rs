//! Revocations that several servers share, in a table that each of them has whole.
//!
//! A change is written to the table first, and made here when it comes back from there, like the
//! changes of the other servers. So all servers make all changes in one order.
//!
//! # Entries
//!
//! | key | value |
//! |---|---|
//! | `token.HASH` | `{"at":SECONDS}` |
//! | `user.NAME` | `{"before":SECONDS}` |
//!
//! HASH is the start of the SHA-256 of a `jti`, in 32 hexadecimal digits. NAME has `=` and two
//! hexadecimal digits for each byte that is no letter, digit, `-` or `_`. With
//! `"spares_newer":true` clients with newer tokens may come back. An entry that was removed takes
//! the revocation back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use throng_core::Ticket;
use throng_core::key_text::{decode, encode};

use super::bounds::Bounds;
use super::{Revocation, Revocations, RevokeError, Subject};
use crate::shared::ShareError;
use crate::token::{Policy, TokenId};

/// A change of the revocations of several servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedChange {
    /// These tokens are revoked.
    Revoke {
        revocation: Revocation,
        /// True if clients with newer tokens may have connections that are closed, too.
        spares_newer: bool,
    },
    /// A revocation is taken back.
    Lift(Subject),
}

/// The value of an entry.
#[derive(Serialize, Deserialize)]
struct Value {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    spares_newer: bool,
}

impl SharedChange {
    /// The token or user that it revokes.
    pub fn subject(&self) -> Subject {
        match self {
            SharedChange::Revoke { revocation, .. } => revocation.subject(),
            SharedChange::Lift(subject) => subject.clone(),
        }
    }

    /// The key of its entry.
    pub fn key(&self) -> String {
        match self.subject() {
            Subject::Token(id) => format!("token.{id}"),
            Subject::User(user) => format!("user.{}", encode(&user)),
        }
    }

    /// The value of its entry; `None` if the entry is to be removed.
    pub fn value(&self) -> Option<Vec<u8>> {
        let SharedChange::Revoke { revocation, spares_newer } = self else { return None };
        let (at, before) = match revocation {
            Revocation::Token { at_s, .. } => (Some(*at_s), None),
            Revocation::User { before_s, .. } => (None, Some(*before_s)),
        };
        // Numbers always become JSON.
        serde_json::to_vec(&Value { at, before, spares_newer: *spares_newer }).ok()
    }

    /// Reads an entry; `None` if it is none of this format.
    pub fn read(key: &str, value: Option<&[u8]>) -> Option<SharedChange> {
        let subject = match key.split_once('.')? {
            ("token", digits) => Subject::Token(TokenId::from_digits(digits)?),
            ("user", name) => Subject::User(decode(name)?.into()),
            _ => return None,
        };
        let Some(value) = value else { return Some(SharedChange::Lift(subject)) };
        let Value { at, before, spares_newer } = serde_json::from_slice(value).ok()?;
        let moment_s = match subject {
            Subject::Token(_) => at?,
            Subject::User(_) => before?,
        };
        let revocation = Revocation::of(subject, moment_s);
        Some(SharedChange::Revoke { revocation, spares_newer })
    }
}

type WriteChange = Box<dyn Fn(&SharedChange, Ticket<Result<(), ShareError>>) + Send + Sync>;

/// The table, for one of its servers.
pub struct SharedTable {
    /// Writes a change, and answers when it was [taken](SharedRevocations::take) from the table.
    pub write: WriteChange,
    /// Compares what is known here with the table, and answers once all was
    /// [taken](SharedRevocations::take) that the table has now. There is no answer if the table
    /// cannot be reached.
    pub compare: Box<dyn Fn(Ticket<()>) + Send + Sync>,
}

/// See the module.
pub struct SharedRevocations {
    revocations: Arc<Revocations>,
    bounds: Bounds,
    table: SharedTable,
    is_known: AtomicBool,
}

impl fmt::Debug for SharedRevocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRevocations").finish_non_exhaustive()
    }
}

impl SharedRevocations {
    /// Keeps `revocations` as the table has them.
    pub fn new(
        revocations: Arc<Revocations>,
        policy: &Policy,
        max_entries: usize,
        table: SharedTable,
    ) -> SharedRevocations {
        let bounds = Bounds::new(policy, max_entries);
        SharedRevocations { revocations, bounds, table, is_known: AtomicBool::new(false) }
    }

    /// All that the table has was taken. Returns whether that is so for the first time.
    pub fn are_known(&self) -> bool {
        !self.is_known.swap(true, Ordering::AcqRel)
    }

    /// True if all that the table has was taken once.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Compares what is known here with the table: see [`SharedTable::compare`].
    pub fn compare(&self, done: Ticket<()>) {
        (self.table.compare)(done);
    }

    /// The revocations that hold.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Writes a change. The ticket is answered when it is made here.
    ///
    /// # Errors
    ///
    /// See [`RevokeError`]; then nothing is written.
    pub fn change(
        &self,
        mut change: SharedChange,
        now_s: u64,
        done: Ticket<Result<(), ShareError>>,
    ) -> Result<(), RevokeError> {
        if let SharedChange::Revoke { revocation, .. } = &mut change {
            self.bounds.check(&self.revocations, std::slice::from_ref(revocation), now_s)?;
            // The table has one entry for a user, and of two moments the later one holds.
            let subject = revocation.subject();
            let known_s = self.revocations.find(&subject).unwrap_or(0);
            *revocation = Revocation::of(subject, revocation.moment_s().max(known_s));
        }
        (self.table.write)(&change, done);
        Ok(())
    }

    /// Makes a change that the table has. Returns whether tokens are revoked that were not before.
    pub fn take(&self, change: &SharedChange) -> bool {
        match change {
            SharedChange::Revoke { revocation, .. } => {
                let known_s = self.revocations.find(&revocation.subject());
                let is_new = known_s.is_none_or(|known_s| known_s < revocation.moment_s());
                if is_new {
                    self.revocations.add(revocation);
                }
                is_new
            }
            SharedChange::Lift(subject) => {
                self.revocations.remove(subject);
                false
            }
        }
    }

    /// The changes that make what holds here, for a table that has lost some of it.
    pub fn changes(&self) -> Vec<SharedChange> {
        let all = self.revocations.list().into_iter();
        all.map(|revocation| {
            // Servers that do not know it may have clients with newer tokens.
            let spares_newer = matches!(revocation, Revocation::User { .. });
            SharedChange::Revoke { revocation, spares_newer }
        })
        .collect()
    }

    /// Forgets what concerns no living token at `now_s`, which [`Forgetting`](super::Forgetting)
    /// tells. To be called now and then.
    pub fn tidy(&self, now_s: u64) {
        self.bounds.forget(&self.revocations, now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::super::remembered_s;
    use super::*;
    use proptest::prelude::*;

    fn revoke(subject: Subject, moment_s: u32) -> SharedChange {
        let revocation = Revocation::of(subject, moment_s);
        SharedChange::Revoke { revocation, spares_newer: false }
    }

    #[test]
    fn entries_are_as_documented() {
        let user = |name: &str| Subject::User(name.into());
        let ann = revoke(user("ann@a.b"), 7);
        assert_eq!(ann.key(), "user.ann=40a=2Eb");
        assert_eq!(ann.value(), Some(br#"{"before":7}"#.to_vec()));
        let spares =
            SharedChange::Revoke { revocation: Revocation::of(user("bo"), 8), spares_newer: true };
        assert_eq!(spares.value(), Some(br#"{"before":8,"spares_newer":true}"#.to_vec()));
        let token = revoke(Subject::Token(TokenId::of("t1")), 9);
        assert_eq!(token.key(), "token.628b49d96dcde97a430dd4f597705899");
        assert_eq!(token.value(), Some(br#"{"at":9}"#.to_vec()));
        let lifted = SharedChange::Lift(user("bo"));
        assert_eq!((lifted.key(), lifted.value()), ("user.bo".into(), None));
        assert_eq!(SharedChange::read("user.bo", Some(b"{}")), None);
        assert_eq!(SharedChange::read("token.bo", None), None);
        assert_eq!(SharedChange::read("later.bo", None), None);
        assert_eq!(SharedChange::read("user.", None), None);
        assert_eq!(SharedChange::read("user.=4", None), None);
    }

    #[test]
    fn the_later_of_two_revocations_is_written() {
        let written = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let revocations = Arc::new(Revocations::default());
        let of = Arc::clone(&revocations);
        let policy = Policy::default();
        let write = move |change: &SharedChange, _| log.lock().unwrap().push(change.clone());
        let table = SharedTable { write: Box::new(write), compare: Box::new(drop) };
        let shared = SharedRevocations::new(of, &policy, 2, table);
        let ann = || Subject::User("ann".into());
        let change = |change, now_s| shared.change(change, now_s, Ticket::new(drop));
        change(revoke(ann(), 100), 100).unwrap();
        assert!(revocations.is_empty());
        assert!(shared.take(&revoke(ann(), 100)));
        assert!(!shared.take(&revoke(ann(), 90)), "an older one of another server");
        assert_eq!(revocations.find(&ann()), Some(100));
        change(revoke(ann(), 50), 100).unwrap();
        assert_eq!(*written.lock().unwrap(), [revoke(ann(), 100), revoke(ann(), 100)]);
        assert!(matches!(change(revoke(ann(), 1_000), 100), Err(RevokeError::Future)));
        shared.take(&revoke(Subject::User("bo".into()), 100));
        assert!(matches!(change(revoke(ann(), 100), 100), Err(RevokeError::Full(2))));
        change(SharedChange::Lift(ann()), 100).unwrap();
        assert_eq!(revocations.len(), 2);
        assert!(!shared.take(&SharedChange::Lift(ann())));
        assert_eq!(revocations.find(&ann()), None);
        shared.tidy(100 + remembered_s(&policy));
        assert!(revocations.is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            name in "\\PC{1,20}", is_user in any::<bool>(), moment_s in any::<u32>(),
            spares_newer in any::<bool>(), is_lifted in any::<bool>(),
        ) {
            let subject = if is_user {
                Subject::User(name.as_str().into())
            } else {
                Subject::Token(TokenId::of(&name))
            };
            let change = if is_lifted {
                SharedChange::Lift(subject)
            } else {
                let revocation = Revocation::of(subject, moment_s);
                SharedChange::Revoke { revocation, spares_newer }
            };
            let key = change.key();
            let is_key = |char: char| char.is_ascii_alphanumeric() || "-_=".contains(char);
            prop_assert!(key.split_once('.').unwrap().1.chars().all(is_key), "{key}");
            prop_assert_eq!(SharedChange::read(&key, change.value().as_deref()), Some(change));
        }
    }
}
