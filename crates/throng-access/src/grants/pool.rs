//! Grants that were parsed lately, by the text of their claim.
//!
//! Tokens of a million users mostly carry the same few claims, byte for byte. The pool parses each
//! once, and lets the cache of verified tokens and all workers share it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Grants, GrantsError};

/// The most claims that are kept. Beyond it, claims that nothing holds are forgotten; if everything
/// is held, further claims are parsed each time and not shared. A claim is part of a token, so that
/// the texts have at most 8 MiB.
pub(super) const POOL_CLAIMS_MAX: usize = 1024;

/// How many new claims pass before a full pool looks again for claims that nothing holds. Looking
/// takes time for each claim of the pool.
const TRIM_INTERVAL: usize = 256;

/// Shares grants among tokens with the same claim.
#[derive(Debug, Default)]
pub struct GrantsPool(Mutex<Claims>);

#[derive(Debug, Default)]
struct Claims {
    by_text: HashMap<Box<str>, Arc<Grants>, RandomState>,
    /// New claims since the pool was full and trimmed.
    untrimmed: usize,
}

impl Claims {
    fn add(&mut self, json: &str, grants: &Arc<Grants>) {
        if self.by_text.len() >= POOL_CLAIMS_MAX {
            if self.untrimmed == 0 {
                self.by_text.retain(|_, grants| Arc::strong_count(grants) > 1);
            }
            self.untrimmed = (self.untrimmed + 1) % TRIM_INTERVAL;
        }
        if self.by_text.len() < POOL_CLAIMS_MAX {
            self.by_text.insert(json.into(), Arc::clone(grants));
        }
    }
}

impl GrantsPool {
    /// The grants of a claim, which is JSON: of the application whose names begin with `app`, if it
    /// is one's.
    ///
    /// # Errors
    ///
    /// As [`Grants::from_claim`].
    pub fn get(&self, json: &str, app: Option<&str>) -> Result<Arc<Grants>, GrantsError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No claim begins with a name.
        let text = app.map_or(Cow::Borrowed(json), |app| [app, json].concat().into());
        if let Some(known) = lock().by_text.get(&*text) {
            return Ok(Arc::clone(known));
        }
        let mut grants = Grants::from_claim(json)?;
        if let Some(app) = app {
            grants = grants.confined_to(app);
        }
        let grants = Arc::new(grants);
        lock().add(&text, &grants);
        Ok(grants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: usize) -> String {
        format!(r#"{{"subscribe": ["c{number}"]}}"#)
    }

    #[test]
    fn the_same_claim_is_parsed_once() {
        let pool = GrantsPool::default();
        let [one, same, other] = [1, 1, 2].map(|number| pool.get(&claim(number), None).unwrap());
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn the_number_of_claims_is_limited() {
        let pool = GrantsPool::default();
        let length = || pool.0.lock().unwrap().by_text.len();
        let held: Vec<_> = (0..10).map(|number| pool.get(&claim(number), None).unwrap()).collect();
        for number in 10..POOL_CLAIMS_MAX {
            pool.get(&claim(number), None).unwrap();
        }
        assert_eq!(length(), POOL_CLAIMS_MAX);
        pool.get(&claim(POOL_CLAIMS_MAX), None).unwrap();
        assert_eq!(length(), held.len() + 1, "only what is held, and the new one");
        assert!(Arc::ptr_eq(&held[3], &pool.get(&claim(3), None).unwrap()));
    }

    #[test]
    fn a_pool_of_held_claims_takes_no_more() {
        let pool = GrantsPool::default();
        let held: Vec<_> =
            (0..=POOL_CLAIMS_MAX).map(|number| pool.get(&claim(number), None).unwrap()).collect();
        assert_eq!(pool.0.lock().unwrap().by_text.len(), POOL_CLAIMS_MAX);
        assert_eq!(held.len(), POOL_CLAIMS_MAX + 1);
    }
}
