//! Verifies tokens as a running server does: keys that rotate, a cache, revocations.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::cache::{CacheCounts, TokenCache, TokenHash, Versions};
use crate::grants::GrantsPool;
use crate::keys::{KeySet, PublishedKeys, Reader};
use crate::revocation::Revocations;
use crate::token::{self, Identity, Policy, TokenError};

/// How long a verification may take on a thread that serves other connections meanwhile, in
/// microseconds. One signature of any algorithm but ES384 is below it.
const SHORT_US: u64 = 200;

/// State that all threads share to verify tokens.
#[derive(Debug)]
pub struct Authority {
    keys: Arc<PublishedKeys<KeySet>>,
    demands: ArcSwap<Demands>,
    revocations: Arc<Revocations>,
    max_cache_entries: usize,
    pool: GrantsPool,
}

/// Demands on tokens, and the cache of tokens that met them.
#[derive(Debug)]
struct Demands {
    policy: Policy,
    cache: TokenCache,
    /// Cache counters under earlier demands.
    before: CacheCounts,
}

impl Authority {
    /// An authority with these keys, which the owner replaces as they rotate. `max_cache_entries`
    /// verified tokens are remembered.
    pub fn new(
        keys: Arc<PublishedKeys<KeySet>>,
        policy: Policy,
        revocations: Arc<Revocations>,
        max_cache_entries: usize,
    ) -> Arc<Authority> {
        let cache = TokenCache::new(max_cache_entries);
        let demands = Demands { policy, cache, before: CacheCounts::default() };
        Arc::new(Authority {
            keys,
            demands: ArcSwap::from_pointee(demands),
            revocations,
            max_cache_entries,
            pool: GrantsPool::default(),
        })
    }

    /// The verifier of one thread.
    pub fn verifier(self: &Arc<Authority>) -> Verifier {
        Verifier { keys: self.keys.reader(), authority: Arc::clone(self) }
    }

    /// The server's demands on tokens.
    pub fn policy(&self) -> Policy {
        self.demands.load().policy.clone()
    }

    /// Demands something else of tokens from now on, also of those that were verified before.
    pub fn demand(&self, policy: Policy) {
        let cache = TokenCache::new(self.max_cache_entries);
        let before = self.cache_counts();
        self.demands.store(Arc::new(Demands { policy, cache, before }));
    }

    /// The tokens that are revoked.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Counters of the cache so far.
    pub fn cache_counts(&self) -> CacheCounts {
        let demands = self.demands.load();
        let (now, before) = (demands.cache.counts(), demands.before);
        CacheCounts {
            hits: before.hits + now.hits,
            misses: before.misses + now.misses,
            evictions: before.evictions + now.evictions,
            entries: now.entries,
        }
    }
}

/// Verifies tokens for one thread.
#[derive(Debug)]
pub struct Verifier {
    authority: Arc<Authority>,
    keys: Reader<KeySet>,
}

impl Verifier {
    /// The claims of a token, if it is valid at `now_s`, in seconds since 1970. For a token that
    /// was verified lately this costs one hash and the lock of one shard, and allocates nothing.
    ///
    /// # Errors
    ///
    /// See [`TokenError`]. After [`TokenError::UnknownKey`] ask the sources of keys for newer ones
    /// ([`Refresh::unknown_key`](crate::keys::Refresh::unknown_key)), and verify again once they
    /// have answered.
    pub fn verify(&mut self, token: &str, now_s: u64) -> Result<Arc<Identity>, TokenError> {
        self.verify_if(token, now_s, || Ok(()))
    }

    /// As [`Verifier::verify`]; but a token that was not verified lately is verified only if
    /// `admit` allows it.
    ///
    /// # Errors
    ///
    /// That of `admit`, or [`TokenError`].
    pub(crate) fn verify_if<E: From<TokenError>>(
        &mut self,
        token: &str,
        now_s: u64,
        admit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Arc<Identity>, E> {
        // A longer one cannot be in the cache, and is not worth a hash.
        if token.len() > token::TOKEN_BYTES_MAX {
            admit()?;
            return Err(TokenError::TooLong.into());
        }
        let Authority { demands, revocations, pool, .. } = &*self.authority;
        // One value for both: what an older policy accepted is in its own cache.
        let demands = demands.load();
        let Demands { policy, cache, .. } = &**demands;
        let (keys, generation) = self.keys.get();
        // Read before anything is looked up: a revocation in between is found at the next hit.
        let versions = Versions { keys: generation, revocations: revocations.generation() };
        let hash = TokenHash::of(token);
        let is_trusted =
            |known: &Identity| keys.contains(known.key) && !revocations.is_revoked(known);
        if let Some(known) = cache.find(&hash, now_s, versions, is_trusted) {
            return Ok(known);
        }
        admit()?;
        let identity = Arc::new(token::verify(token, keys, policy, pool, now_s)?);
        // Times have no fractions: a second is no difference between clocks.
        if u64::from(identity.issued_s()) > now_s + 1 {
            revocations.note_ahead(policy.leeway_s);
        }
        // Only now: a token tells nothing before its signature has been verified.
        if revocations.is_revoked(&identity) {
            return Err(TokenError::Revoked.into());
        }
        cache.insert(hash, &identity, versions);
        Ok(identity)
    }

    /// True if a token was verified lately and is valid still.
    pub fn knows(&mut self, token: &str, now_s: u64) -> bool {
        self.verify_if(token, now_s, || Err(TokenError::UnknownKey)).is_ok()
    }

    /// True if [`Verifier::verify`] is too slow for a worker, which serves other connections
    /// meanwhile. Costs nothing if the server has no slow key.
    pub fn takes_long(&mut self, token: &str) -> bool {
        let (keys, _) = self.keys.get();
        // A token that is not remembered would be verified elsewhere again and again.
        self.authority.max_cache_entries > 0
            && keys.max_verification_us() > SHORT_US
            && token::verification_us(token, keys) > SHORT_US
            && !self.authority.demands.load().cache.contains(&TokenHash::of(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::keys::Key;
    use crate::revocation::Revocation;
    use crate::token::{Signer, TokenId};

    const NOW_S: u64 = 1_800_000_000;

    struct World {
        keys: Arc<PublishedKeys<KeySet>>,
        revocations: Arc<Revocations>,
        authority: Arc<Authority>,
        verifier: Verifier,
    }

    fn key(id: &str) -> Arc<Key> {
        let secret = [id.as_bytes()[0]; 32];
        Arc::new(Key::from_secret(Some(id), Algorithm::Hs256, &secret).unwrap())
    }

    fn keys(ids: &[&str]) -> KeySet {
        KeySet::new(ids.iter().map(|id| key(id)).collect()).unwrap()
    }

    fn world() -> World {
        let keys = PublishedKeys::new(keys(&["a", "b"]));
        let revocations = Arc::new(Revocations::default());
        let authority =
            Authority::new(Arc::clone(&keys), Policy::default(), Arc::clone(&revocations), 100);
        let verifier = authority.verifier();
        World { keys, revocations, authority, verifier }
    }

    fn token(key_id: &str, more: &str) -> String {
        let secret = [key_id.as_bytes()[0]; 32];
        let signer = Signer::new(Some(key_id), Algorithm::Hs256, &secret).unwrap();
        signer.sign(&format!(r#"{{"sub": "ann", "exp": {}{more}}}"#, NOW_S + 60))
    }

    #[test]
    fn the_second_look_is_a_hit() {
        let mut world = world();
        let token = token("a", "");
        let first = world.verifier.verify(&token, NOW_S).unwrap();
        let second = world.authority.verifier().verify(&token, NOW_S).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let counts = world.authority.cache_counts();
        assert_eq!((counts.hits, counts.misses), (1, 1));
        assert_eq!(world.verifier.verify(&token, NOW_S + 70), Err(TokenError::Expired));
    }

    #[test]
    fn refused_tokens_are_not_remembered() {
        let mut world = world();
        let forged = token("a", "").replace('.', ".x");
        assert!(world.verifier.verify(&forged, NOW_S).is_err());
        assert_eq!(world.authority.cache_counts().entries, 0);
        let long = "x".repeat(100 << 10);
        assert_eq!(world.verifier.verify(&long, NOW_S), Err(TokenError::TooLong));
    }

    #[test]
    fn a_known_token_needs_no_admission() {
        let mut world = world();
        let [known, other] =
            ["known", "other"].map(|id| token("a", &format!(r#", "jti": "{id}""#)));
        assert!(world.verifier.verify(&known, NOW_S).is_ok());
        let mut verify = |token: &str| {
            let admit = || Err(TokenError::Critical);
            world.verifier.verify_if(token, NOW_S, admit).map(drop)
        };
        assert_eq!(verify(&known), Ok(()));
        assert_eq!(verify(&other), Err(TokenError::Critical), "the one of `admit`");
        assert_eq!(verify(&"x".repeat(100 << 10)), Err(TokenError::Critical));
    }

    #[test]
    fn only_tokens_for_slow_keys_take_long() {
        let mut world = world();
        // Their headers demand ES384 and HS256.
        let [slow, fast] = ["eyJhbGciOiJFUzM4NCJ9.e30.AA", "eyJhbGciOiJIUzI1NiJ9.e30.AA"];
        assert!(!world.verifier.takes_long(slow), "no key accepts it");
        let pem = include_str!("../tests/fixtures/es384.pem");
        let es384 = Arc::new(Key::from_pem(None, None, pem).unwrap());
        world.keys.publish(KeySet::new(vec![key("a"), es384]).unwrap());
        assert!(world.verifier.takes_long(slow));
        for token in [fast, "x", "", &token("a", "")] {
            assert!(!world.verifier.takes_long(token), "{token}");
        }
    }

    #[test]
    fn keys_rotate() {
        let mut world = world();
        let (a, b, c) = (token("a", ""), token("b", ""), token("c", ""));
        assert!(world.verifier.verify(&a, NOW_S).is_ok());
        assert!(world.verifier.verify(&b, NOW_S).is_ok());
        assert_eq!(world.verifier.verify(&c, NOW_S), Err(TokenError::UnknownKey));
        world.keys.publish(keys(&["b", "c"]));
        assert_eq!(world.verifier.verify(&a, NOW_S), Err(TokenError::UnknownKey));
        assert!(world.verifier.verify(&b, NOW_S).is_ok(), "still trusted");
        assert!(world.verifier.verify(&c, NOW_S).is_ok());
        let counts = world.authority.cache_counts();
        assert_eq!((counts.hits, counts.misses), (1, 5));
    }

    #[test]
    fn other_demands_hold_for_tokens_that_are_known_too() {
        let mut world = world();
        let token = token("a", r#", "iss": "one""#);
        for _ in 0..2 {
            assert!(world.verifier.verify(&token, NOW_S).is_ok());
        }
        let of_other = Policy { issuers: vec!["other".into()], ..world.authority.policy() };
        world.authority.demand(of_other);
        assert_eq!(world.verifier.verify(&token, NOW_S), Err(TokenError::Issuer));
        world.authority.demand(Policy::default());
        assert!(world.verifier.verify(&token, NOW_S).is_ok());
        let counts = world.authority.cache_counts();
        assert_eq!((counts.hits, counts.misses, counts.entries), (1, 3, 1));
    }

    #[test]
    fn a_revocation_spares_no_token_that_is_ahead_of_the_clock() {
        let mut world = world();
        let revoke = Revocation::User { user: "ann".into(), before_s: NOW_S as u32 + 3 };
        let issued = |ahead: u64| token("a", &format!(r#", "iat": {}"#, NOW_S + ahead));
        world.revocations.add(&revoke);
        let fresh = issued(4);
        assert!(world.verifier.verify(&fresh, NOW_S + 4).is_ok(), "issued after it");
        let ahead = issued(8);
        for shown_s in [NOW_S, NOW_S + 5, NOW_S + 20] {
            assert_eq!(world.verifier.verify(&ahead, shown_s), Err(TokenError::Revoked));
        }
        assert!(world.verifier.verify(&issued(13), NOW_S + 13).is_ok(), "beyond the leeway");
        assert_eq!(world.verifier.verify(&fresh, NOW_S + 5), Err(TokenError::Revoked));
    }

    #[test]
    fn a_revoked_token_is_refused_although_it_is_known() {
        let mut world = world();
        let [one, other] = ["t1", "t2"].map(|id| token("a", &format!(r#", "jti": "{id}""#)));
        assert!(world.verifier.verify(&one, NOW_S).is_ok());
        assert!(world.verifier.verify(&other, NOW_S).is_ok());
        world.revocations.add(&Revocation::Token { id: TokenId::of("t1"), at_s: NOW_S as u32 });
        assert_eq!(world.verifier.verify(&one, NOW_S), Err(TokenError::Revoked));
        assert!(world.verifier.verify(&other, NOW_S).is_ok());
        let ann = Revocation::User { user: "ann".into(), before_s: NOW_S as u32 };
        world.revocations.add(&ann);
        assert_eq!(world.verifier.verify(&other, NOW_S), Err(TokenError::Revoked), "no `iat`");
        let newer = token("a", &format!(r#", "iat": {NOW_S}"#));
        assert!(world.verifier.verify(&newer, NOW_S).is_ok());
    }
}
