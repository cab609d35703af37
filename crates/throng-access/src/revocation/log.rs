//! The owner of the file of revocations.

use std::io;
use std::sync::Arc;

use super::bounds::Bounds;
use super::record::{self, Damaged, HEADER, Record};
use super::{Revocation, RevocationStorage, Revocations, Subject};
use crate::token::Policy;

/// The file is rewritten when it has this many lines more than twice what still holds, so that a
/// line is rewritten once on average.
const SPARE_LINES_MAX: usize = 1000;

/// Why the file cannot be used. The server must not start then: it would accept revoked tokens.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the file of revocations cannot be read: {0}")]
    Storage(#[from] io::Error),
    /// A line before the last good one is damaged.
    #[error("line {0} of the file of revocations is damaged: repair or remove it")]
    Damaged(usize),
    /// A later version wrote it.
    #[error(
        "the file of revocations begins with {0:?}, and this version reads {own:?}; use the \
         version of Throng that wrote it",
        own = record::HEADER.trim_end()
    )]
    Newer(String),
}

/// Why a revocation was not made. The tokens stay valid.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// There is no room for it.
    #[error("the server has its maximum of {0} revocations")]
    Full(usize),
    /// Its moment is in the future, where it would concern tokens that are not issued yet.
    #[error("a revocation cannot be in the future")]
    Future,
    /// It could not be stored.
    #[error("the revocation cannot be stored: {0}")]
    Storage(#[from] io::Error),
}

/// Writes revocations to the medium, and then into the set that verifications ask.
///
/// Storing takes as long as the medium does, a millisecond or more: not a call for a thread that
/// serves connections.
#[derive(Debug)]
pub struct RevocationLog<S> {
    storage: S,
    revocations: Arc<Revocations>,
    bounds: Bounds,
    /// The good bytes of the medium, and their lines.
    length: u64,
    lines: usize,
    /// A write failed, so that there may be more than the good bytes.
    has_torn_end: bool,
}

impl<S: RevocationStorage> RevocationLog<S> {
    /// Reads what is stored into `revocations`, which should be empty, without what concerns no
    /// living token at `now_s`. The set takes new revocations up to `max_entries`; those that are
    /// stored all hold, whatever their number.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        storage: S,
        revocations: Arc<Revocations>,
        policy: &Policy,
        max_entries: usize,
        now_s: u64,
    ) -> Result<RevocationLog<S>, OpenError> {
        let mut log = RevocationLog::take_over(storage, revocations, policy, max_entries, now_s)?;
        // A torn end has to go before a record is appended behind it.
        if log.length == 0 || log.has_torn_end || log.is_long() {
            log.compact()?;
        }
        Ok(log)
    }

    /// As [`RevocationLog::open`], but changes nothing that is stored before a revocation is made:
    /// for a medium that another process may go on with.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn take_over(
        mut storage: S,
        revocations: Arc<Revocations>,
        policy: &Policy,
        max_entries: usize,
        now_s: u64,
    ) -> Result<RevocationLog<S>, OpenError> {
        let stored = storage.read()?;
        if let Some(header) = record::other_version(&stored) {
            return Err(OpenError::Newer(header.into()));
        }
        let contents = record::read(&stored).map_err(|Damaged(line)| OpenError::Damaged(line))?;
        let log = RevocationLog {
            storage,
            revocations,
            bounds: Bounds::new(policy, max_entries),
            length: contents.good_bytes as u64,
            lines: contents.records.len(),
            has_torn_end: contents.good_bytes < stored.len(),
        };
        for record in &contents.records {
            match record {
                Record::Revoked(revocation) => log.revocations.add(revocation),
                Record::Lifted(subject, _) => log.revocations.remove(subject),
            }
        }
        log.forget(now_s);
        Ok(log)
    }

    /// Stores revocations, all at once, and makes them hold. When it returns they survive a crash.
    ///
    /// # Errors
    ///
    /// See [`RevokeError`]; then none of them holds.
    pub fn revoke(&mut self, all: &[Revocation], now_s: u64) -> Result<(), RevokeError> {
        self.bounds.check(&self.revocations, all, now_s)?;
        let mut lines = String::new();
        for revocation in all {
            record::write(&mut lines, revocation);
        }
        self.append(&lines, all.len())?;
        for revocation in all {
            self.revocations.add(revocation);
        }
        Ok(())
    }

    /// Takes a revocation back, on the medium first. Tokens that it concerns are valid again.
    /// Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`RevokeError::Storage`]; then the revocation still holds.
    pub fn lift(&mut self, subject: &Subject, now_s: u64) -> Result<bool, RevokeError> {
        if self.revocations.find(subject).is_none() {
            return Ok(false);
        }
        let mut line = String::new();
        record::write_lifted(&mut line, subject, u32::try_from(now_s).unwrap_or(u32::MAX));
        self.append(&line, 1)?;
        self.revocations.remove(subject);
        Ok(true)
    }

    /// The revocations that hold.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Where they are stored.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Adds lines to the medium, after what a failed write has left there is removed.
    fn append(&mut self, lines: &str, count: usize) -> io::Result<()> {
        if self.length == 0 {
            // Somebody has emptied it while another process had it.
            self.compact()?;
        }
        if self.has_torn_end {
            self.storage.truncate(self.length)?;
            self.has_torn_end = false;
        }
        if let Err(error) = self.storage.append(lines.as_bytes()) {
            self.has_torn_end = true;
            return Err(error);
        }
        self.length += lines.len() as u64;
        self.lines += count;
        Ok(())
    }

    /// Forgets what concerns no living token at `now_s`, which [`Forgetting`](super::Forgetting)
    /// tells, and rewrites the file if most of it is forgotten. To be called now and then.
    ///
    /// # Errors
    ///
    /// An error of the medium. Every revocation still holds, and the next call tries again.
    pub fn tidy(&mut self, now_s: u64) -> io::Result<()> {
        self.forget(now_s);
        if self.is_long() { self.compact() } else { Ok(()) }
    }

    fn forget(&self, now_s: u64) {
        self.bounds.forget(&self.revocations, now_s);
    }

    fn is_long(&self) -> bool {
        self.lines > 2 * self.revocations.len() + SPARE_LINES_MAX
    }

    /// Replaces the file by one with what holds.
    fn compact(&mut self) -> io::Result<()> {
        let all = self.revocations.list();
        let mut file = HEADER.to_owned();
        for revocation in &all {
            record::write(&mut file, revocation);
        }
        self.storage.replace(file.as_bytes())?;
        self.length = file.len() as u64;
        self.lines = all.len();
        self.has_torn_end = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenId;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    const NOW_S: u64 = 1_800_000_000;
    const HORIZON_S: u64 = 24 * 60 * 60 + 20;

    /// A medium that outlives its log, and fails where it is asked to.
    #[derive(Debug, Clone, Default)]
    struct Medium(Rc<RefCell<State>>);

    #[derive(Debug, Default)]
    struct State {
        bytes: Vec<u8>,
        /// The next append stores only this many bytes and fails.
        fails_after: Option<usize>,
        truncate_fails: bool,
        replace_fails: bool,
        replaced: usize,
    }

    impl RevocationStorage for Medium {
        fn read(&mut self) -> io::Result<Vec<u8>> {
            Ok(self.0.borrow().bytes.clone())
        }

        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let mut state = self.0.borrow_mut();
            if let Some(stored) = state.fails_after.take() {
                state.bytes.extend_from_slice(&bytes[..stored.min(bytes.len())]);
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.bytes.extend_from_slice(bytes);
            Ok(())
        }

        fn truncate(&mut self, length: u64) -> io::Result<()> {
            let mut state = self.0.borrow_mut();
            if state.truncate_fails {
                return Err(io::ErrorKind::Other.into());
            }
            state.bytes.truncate(length as usize);
            Ok(())
        }

        fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
            let mut state = self.0.borrow_mut();
            if state.replace_fails {
                return Err(io::ErrorKind::Other.into());
            }
            state.bytes = bytes.to_vec();
            state.replaced += 1;
            Ok(())
        }
    }

    fn open(medium: &Medium, now_s: u64) -> Result<RevocationLog<Medium>, OpenError> {
        let revocations = Arc::new(Revocations::default());
        RevocationLog::open(medium.clone(), revocations, &Policy::default(), 100, now_s)
    }

    fn token(number: u64, at_s: u64) -> Revocation {
        Revocation::Token { id: TokenId::of(&number.to_string()), at_s: at_s as u32 }
    }

    fn user(name: &str, before_s: u64) -> Revocation {
        Revocation::User { user: name.into(), before_s: before_s as u32 }
    }

    fn held(log: &RevocationLog<Medium>) -> Vec<String> {
        let mut all: Vec<_> = log.revocations.list().iter().map(|one| format!("{one:?}")).collect();
        all.sort();
        all
    }

    #[test]
    fn a_restart_forgives_nothing() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        log.revoke(&[token(1, NOW_S), user("ann", NOW_S)], NOW_S).unwrap();
        log.revoke(&[user("ann", NOW_S + 1)], NOW_S).unwrap();
        assert_eq!(log.revocations.len(), 2);
        let again = open(&medium, NOW_S + HORIZON_S).unwrap();
        assert_eq!(held(&again), held(&log));
        let later = open(&medium, NOW_S + HORIZON_S + 1).unwrap();
        assert_eq!(later.revocations.list(), [user("ann", NOW_S + 1)], "the token is dead");
    }

    #[test]
    fn what_is_lifted_stays_lifted() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        log.revoke(&[token(1, NOW_S), user("ann", NOW_S), user("bob", NOW_S)], NOW_S).unwrap();
        let ann = Subject::User("ann".into());
        assert!(log.lift(&ann, NOW_S).unwrap());
        assert!(!log.lift(&ann, NOW_S).unwrap(), "it is not there any more");
        medium.0.borrow_mut().fails_after = Some(10);
        assert!(log.lift(&Subject::User("bob".into()), NOW_S).is_err());
        assert_eq!(log.revocations.len(), 2, "what is not stored is not lifted");
        assert_eq!(held(&open(&medium, NOW_S).unwrap()), held(&log));
        log.revoke(&[user("ann", NOW_S)], NOW_S).unwrap();
        assert_eq!(log.revocations.find(&ann), Some(NOW_S as u32));
        assert_eq!(held(&open(&medium, NOW_S).unwrap()), held(&log));
    }

    #[test]
    fn nothing_holds_that_is_not_stored() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        log.revoke(&[token(1, NOW_S)], NOW_S).unwrap();
        medium.0.borrow_mut().fails_after = Some(10);
        let failed = log.revoke(&[token(2, NOW_S)], NOW_S);
        assert!(matches!(failed, Err(RevokeError::Storage(_))));
        assert_eq!(log.revocations.len(), 1);
        assert_eq!(held(&open(&medium, NOW_S).unwrap()), held(&log), "after a crash here");
        log.revoke(&[token(3, NOW_S)], NOW_S).unwrap();
        assert_eq!(log.revocations.len(), 2);
        assert_eq!(held(&open(&medium, NOW_S).unwrap()), held(&log));
    }

    #[test]
    fn nothing_is_written_behind_a_torn_end() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        medium.0.borrow_mut().fails_after = Some(10);
        medium.0.borrow_mut().truncate_fails = true;
        for number in 0..3 {
            assert!(log.revoke(&[token(number, NOW_S)], NOW_S).is_err());
        }
        medium.0.borrow_mut().truncate_fails = false;
        log.revoke(&[token(1, NOW_S)], NOW_S).unwrap();
        assert_eq!(open(&medium, NOW_S).unwrap().revocations.len(), 1);
    }

    #[test]
    fn a_damaged_file_is_not_opened() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        for number in 0..3 {
            log.revoke(&[token(number, NOW_S)], NOW_S).unwrap();
        }
        medium.0.borrow_mut().bytes[HEADER.len() + 10] ^= 1;
        assert!(matches!(open(&medium, NOW_S), Err(OpenError::Damaged(2))));
        let newer = b"throng revocations 2\nanything\n".to_vec();
        medium.0.borrow_mut().bytes = newer.clone();
        let Err(refused) = open(&medium, NOW_S) else { panic!("it is opened") };
        let expected = "begins with \"throng revocations 2\", and this version reads \"throng \
                        revocations 1\"; use the version of Throng that wrote it";
        assert_eq!(refused.to_string(), format!("the file of revocations {expected}"));
        assert_eq!(medium.0.borrow().bytes, newer);
    }

    #[test]
    fn the_number_is_limited() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        let all: Vec<_> = (0..100).map(|number| token(number, NOW_S)).collect();
        log.revoke(&all, NOW_S).unwrap();
        let more = [token(100, NOW_S)];
        assert!(matches!(log.revoke(&more, NOW_S), Err(RevokeError::Full(100))));
        let later_s = NOW_S + HORIZON_S + 1;
        log.revoke(&[token(100, later_s)], later_s).unwrap();
        assert_eq!(log.revocations.len(), 1, "the others are forgotten");
    }

    #[test]
    fn a_moment_in_the_future_is_refused() {
        let mut log = open(&Medium::default(), NOW_S).unwrap();
        assert!(log.revoke(&[user("ann", NOW_S + 11)], NOW_S).is_ok());
        let future = log.revoke(&[user("ann", NOW_S + 12)], NOW_S);
        assert!(matches!(future, Err(RevokeError::Future)));
    }

    #[test]
    fn the_file_is_rewritten_when_most_of_it_is_forgotten() {
        let medium = Medium::default();
        let mut log = open(&medium, NOW_S).unwrap();
        let before = medium.0.borrow().replaced;
        for number in 0..SPARE_LINES_MAX as u64 + 100 {
            let now_s = NOW_S + number * HORIZON_S;
            log.revoke(&[token(number, now_s)], now_s).unwrap();
            medium.0.borrow_mut().replace_fails = number < SPARE_LINES_MAX as u64 + 50;
            log.forget(now_s);
            let is_due = log.is_long();
            assert_eq!(log.tidy(now_s).is_err(), is_due && medium.0.borrow().replace_fails);
        }
        assert_eq!(medium.0.borrow().replaced, before + 1);
        assert!(medium.0.borrow().bytes.len() < 100 * 70);
    }

    proptest! {
        /// Revocations, failures at any byte and crashes in any order: acknowledged ones hold after
        /// each restart. Others may hold, too, if the crash followed the failure.
        #[test]
        fn what_is_acknowledged_survives(
            steps in prop::collection::vec((0..5_u8, 0..200_usize), 0..60),
        ) {
            let medium = Medium::default();
            let mut log = open(&medium, NOW_S).unwrap();
            let mut acknowledged = std::collections::BTreeSet::new();
            for (number, (step, bytes)) in steps.into_iter().enumerate() {
                let one = token(number as u64, NOW_S);
                match step {
                    0 => log = open(&medium, NOW_S).unwrap(),
                    1 => {
                        medium.0.borrow_mut().fails_after = Some(bytes);
                        prop_assert!(log.revoke(&[one], NOW_S).is_err());
                    }
                    2 => {
                        let earlier = token(bytes as u64 % 60, NOW_S);
                        log.lift(&earlier.subject(), NOW_S).unwrap();
                        acknowledged.remove(&format!("{earlier:?}"));
                    }
                    _ => {
                        log.revoke(std::slice::from_ref(&one), NOW_S).unwrap();
                        acknowledged.insert(format!("{one:?}"));
                    }
                }
                let held: std::collections::BTreeSet<_> = held(&log).into_iter().collect();
                prop_assert!(held.is_superset(&acknowledged));
            }
        }
    }
}
