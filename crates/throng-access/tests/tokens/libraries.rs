//! Tokens of PyJWT, jose and golang-jwt. `fixtures/README.md` says how they were made.

use super::support::*;
use throng_access::algorithm::Algorithm;
use throng_access::token::TokenId;
use throng_access::{Permission, TokenError};
use throng_core::ChannelName;

const LIBRARIES: [(&str, &str); 3] = [
    ("pyjwt", include_str!("../fixtures/pyjwt.json")),
    ("jose", include_str!("../fixtures/jose.json")),
    ("golang-jwt", include_str!("../fixtures/golang-jwt.json")),
];

#[test]
fn tokens_of_all_libraries_and_algorithms_are_accepted() {
    for (library, json) in LIBRARIES {
        let tokens = tokens(json);
        assert_eq!(tokens.len(), Algorithm::ALL.len());
        for (algorithm, token) in tokens {
            let identity = verify(&token, &set(vec![key(algorithm)])).unwrap();
            assert_eq!(identity.user(), Some("ann"), "{library} {algorithm:?}");
            assert_eq!(identity.token_id(), Some(TokenId::of(library)));
            assert_eq!(u64::from(identity.issued_s()), ISSUED_S);
            assert_eq!(u64::from(identity.expires_s()), ISSUED_S + LIFE_S + 10);
            let may = |permission, channel: &str| {
                let name = ChannelName::channel(channel);
                identity.grants().allow(permission, &name, identity.user())
            };
            assert!(may(Permission::Subscribe, "private/ann"));
            assert!(!may(Permission::Subscribe, "private/bob"));
            assert!(may(Permission::Publish, "rooms/a"));
            assert!(!may(Permission::Publish, "private/ann"));
        }
    }
}

#[test]
fn tokens_are_accepted_with_a_key_set() {
    for (_, json) in LIBRARIES {
        for (algorithm, token) in tokens(json) {
            let expected = match algorithm {
                Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => {
                    Err(TokenError::UnknownKey)
                }
                // The set has the RSA key under the id of RS256 only.
                Algorithm::Ps256 => Err(TokenError::UnknownKey),
                _ => Ok(()),
            };
            assert_eq!(verify(&token, &jwks()).map(|_| ()), expected, "{algorithm:?}");
        }
    }
}

#[test]
fn a_token_is_good_for_its_own_key_and_algorithm_only() {
    for (algorithm, token) in tokens(LIBRARIES[0].1) {
        let others = Algorithm::ALL.into_iter().filter(|&other| other != algorithm);
        let others = set(others.map(key).collect());
        // The token names an id, and a newer set could have the key.
        assert_eq!(verify(&token, &others), Err(TokenError::UnknownKey), "{algorithm:?}");
        let all = set(Algorithm::ALL.into_iter().map(key).collect());
        assert!(verify(&token, &all).is_ok(), "{algorithm:?}");
    }
}

#[test]
fn tokens_end() {
    let token = token(Algorithm::Es256);
    let keys = set(vec![key(Algorithm::Es256)]);
    let at = |now_s| verify_at(&token, &keys, now_s).map(|_| ());
    assert_eq!(at(ISSUED_S - 11), Err(TokenError::NotYetValid));
    assert_eq!(at(ISSUED_S - 10), Ok(()));
    assert_eq!(at(ISSUED_S + LIFE_S + 9), Ok(()));
    assert_eq!(at(ISSUED_S + LIFE_S + 10), Err(TokenError::Expired));
}
