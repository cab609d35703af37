//! Keys by their id.

use std::sync::Arc;

use super::key::{Fingerprint, Key};
use crate::algorithm::Algorithm;

/// The most keys of a set, over all sources. The keys of applications do not count.
pub const KEYS_MAX: usize = 64;

/// The most keys that one token is tried with. Anybody can send a token without `kid`, and a wrong
/// signature costs up to a millisecond a key.
pub(crate) const KEYS_TRIED_MAX: usize = 8;

/// Why keys do not form a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There are more than [`KEYS_MAX`].
    #[error("there are more than {KEYS_MAX} keys for tokens")]
    TooMany,
    /// A secret and a public key have the same id.
    #[error("a secret and a public key have the same key id")]
    SecretAndPublic,
}

/// The keys of all sources: configuration, files and URLs.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<Arc<Key>>,
}

/// The keys to try for one token.
pub(crate) enum Candidates<'a> {
    /// These, in the order of the set.
    Keys {
        keys: Vec<&'a Key>,
        /// True if the token's id is among them, or the token names none. If not, a newer set may
        /// have the key.
        is_known: bool,
    },
    /// There are keys for the token, but none accepts its algorithm.
    AlgorithmRefused,
    /// No key has the token's id, or there is no key at all. A newer set may have one.
    Unknown,
}

impl KeySet {
    /// A set of keys. Keys with the same id are allowed (RFC 7517 section 4.5) unless one of them
    /// is a secret and the other is not.
    ///
    /// # Errors
    ///
    /// See [`SetError`].
    pub fn new(keys: Vec<Arc<Key>>) -> Result<KeySet, SetError> {
        if keys.iter().filter(|key| key.app().is_none()).count() > KEYS_MAX {
            return Err(SetError::TooMany);
        }
        for (at, key) in keys.iter().enumerate() {
            let is_mixed = |other: &Arc<Key>| {
                other.id().is_some()
                    && other.id() == key.id()
                    && other.is_secret() != key.is_secret()
            };
            if keys[..at].iter().any(is_mixed) {
                return Err(SetError::SecretAndPublic);
            }
        }
        Ok(KeySet { keys })
    }

    /// The keys for a token with this `kid` and algorithm: those with its id, and those without any
    /// id, because an issuer may name a key that the configuration does not name. A token has to
    /// name the key of an application.
    pub(crate) fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> Candidates<'_> {
        let is_named = |key: &&Arc<Key>| {
            let is_open = key.app().is_none() && (id.is_none() || key.id().is_none());
            is_open || (id.is_some() && key.id() == id)
        };
        let mut is_known = false;
        let mut fitting = Vec::new();
        for key in self.keys.iter().filter(is_named) {
            is_known |= id.is_none() || key.id() == id;
            if key.algorithms().contains(algorithm) && fitting.len() < KEYS_TRIED_MAX {
                fitting.push(&**key);
            }
        }
        if !fitting.is_empty() {
            Candidates::Keys { keys: fitting, is_known }
        } else if is_known && !self.keys.is_empty() {
            Candidates::AlgorithmRefused
        } else {
            Candidates::Unknown
        }
    }

    /// Roughly how long it takes to try a token with this `kid` and algorithm, in microseconds.
    pub(crate) fn verification_us(&self, id: Option<&str>, algorithm: Algorithm) -> u64 {
        match self.candidates(id, algorithm) {
            Candidates::Keys { keys, .. } => keys.len() as u64 * algorithm.verification_us(),
            Candidates::AlgorithmRefused | Candidates::Unknown => 0,
        }
    }

    /// The same for the token that takes longest.
    pub(crate) fn max_verification_us(&self) -> u64 {
        let costs = Algorithm::ALL.map(|algorithm| {
            let accepting = self.keys.iter().filter(|key| key.algorithms().contains(algorithm));
            accepting.count().min(KEYS_TRIED_MAX) as u64 * algorithm.verification_us()
        });
        costs.into_iter().max().unwrap_or(0)
    }

    /// True if the set has the key with this fingerprint.
    pub fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.keys.iter().any(|key| key.fingerprint() == fingerprint)
    }

    /// All keys of the set.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys.iter()
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if it has no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(id: Option<&str>, algorithm: Algorithm, byte: u8) -> Arc<Key> {
        Arc::new(Key::from_secret(id, algorithm, &[byte; 64]).unwrap())
    }

    fn set(keys: &[Arc<Key>]) -> KeySet {
        KeySet::new(keys.to_vec()).unwrap()
    }

    #[test]
    fn a_token_is_tried_with_the_keys_of_its_id() {
        let [a, b] = ["a", "b"].map(|id| secret(Some(id), Algorithm::Hs256, id.as_bytes()[0]));
        let unnamed = secret(None, Algorithm::Hs256, 0);
        let set = set(&[a, b, unnamed]);
        let ids = |id, algorithm| match set.candidates(id, algorithm) {
            Candidates::Keys { keys, .. } => keys.iter().map(|key| key.id()).collect(),
            _ => vec![],
        };
        assert_eq!(ids(Some("b"), Algorithm::Hs256), [Some("b"), None]);
        assert_eq!(ids(None, Algorithm::Hs256), [Some("a"), Some("b"), None]);
        assert_eq!(ids(Some("c"), Algorithm::Hs256), [None]);
        assert!(matches!(
            set.candidates(Some("b"), Algorithm::Hs384),
            Candidates::AlgorithmRefused
        ));
    }

    #[test]
    fn the_key_of_an_application_has_to_be_named() {
        let own = |id: &str, byte| {
            let key = Key::from_secret(Some(id), Algorithm::Hs256, &[byte; 32]).unwrap();
            Arc::new(key.of_app(&format!("{id}/")))
        };
        let many = (0..2 * KEYS_MAX).map(|nth| own(&format!("app{nth}"), 9));
        let others = [secret(None, Algorithm::Hs256, 0), own("shop", 1), own("mall", 1)];
        let set = set(&others.iter().cloned().chain(many).collect::<Vec<_>>());
        let ids = |id| match set.candidates(id, Algorithm::Hs256) {
            Candidates::Keys { keys, .. } => keys.iter().map(|key| key.id()).collect(),
            _ => vec![],
        };
        assert_eq!(ids(Some("shop")), [None, Some("shop")]);
        assert_eq!((ids(None), ids(Some("x"))), (vec![None], vec![None]));
        let [_, shop, mall] = others;
        let same = Arc::new(Key::from_secret(Some("shop"), Algorithm::Hs256, &[1; 32]).unwrap());
        assert_ne!(shop.fingerprint(), mall.fingerprint());
        assert_ne!(shop.fingerprint(), same.fingerprint());
    }

    #[test]
    fn only_an_unknown_id_asks_for_a_newer_set() {
        let only = set(&[secret(Some("a"), Algorithm::Hs256, 1)]);
        assert!(matches!(only.candidates(Some("x"), Algorithm::Hs256), Candidates::Unknown));
        assert!(matches!(
            only.candidates(Some("a"), Algorithm::Es256),
            Candidates::AlgorithmRefused
        ));
        assert!(matches!(only.candidates(None, Algorithm::Es256), Candidates::AlgorithmRefused));
    }

    #[test]
    fn a_token_is_tried_with_few_keys() {
        let many: Vec<_> = (0..20).map(|byte| secret(None, Algorithm::Hs256, byte)).collect();
        let set = set(&many);
        let candidates = set.candidates(None, Algorithm::Hs256);
        assert!(
            matches!(candidates, Candidates::Keys { keys, .. } if keys.len() == KEYS_TRIED_MAX)
        );
    }

    #[test]
    fn a_set_is_bounded_and_mixes_no_kinds() {
        let many = (0..=KEYS_MAX).map(|byte| secret(None, Algorithm::Hs256, byte as u8)).collect();
        assert_eq!(KeySet::new(many).unwrap_err(), SetError::TooMany);
        let public = include_str!("../../tests/fixtures/es256.pem");
        let public = Arc::new(Key::from_pem(Some("a"), None, public).unwrap());
        let mixed = KeySet::new(vec![public, secret(Some("a"), Algorithm::Hs256, 1)]);
        assert_eq!(mixed.unwrap_err(), SetError::SecretAndPublic);
    }
}
