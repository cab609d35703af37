//! Keys and tokens for the tests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use throng_access::algorithm::Algorithm;
use throng_access::keys::{Jwks, JwksSource, Key, KeySet};
use throng_access::{GrantsPool, Identity, Policy, TokenError, token};

/// When the tokens of the fixtures were issued, and how long they are valid.
pub(super) const ISSUED_S: u64 = 1_800_000_000;
pub(super) const LIFE_S: u64 = 600;

pub(super) const JWKS: &str = include_str!("../fixtures/jwks.json");

/// The secret of an algorithm with HMAC.
pub(super) fn secret(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::Hs256 => include_bytes!("../fixtures/hs256.secret"),
        Algorithm::Hs384 => include_bytes!("../fixtures/hs384.secret"),
        Algorithm::Hs512 => include_bytes!("../fixtures/hs512.secret"),
        _ => panic!("not an algorithm with a secret"),
    }
}

/// The public key of an algorithm in PEM.
pub(super) fn pem(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Rs256 | Algorithm::Ps256 => include_str!("../fixtures/rs256.pem"),
        Algorithm::Es256 => include_str!("../fixtures/es256.pem"),
        Algorithm::Es384 => include_str!("../fixtures/es384.pem"),
        Algorithm::EdDsa => include_str!("../fixtures/eddsa.pem"),
        _ => panic!("not an algorithm with a public key"),
    }
}

/// The key for one algorithm, without an id.
pub(super) fn key(algorithm: Algorithm) -> Key {
    if algorithm.secret_bytes_min() > 0 {
        Key::from_secret(None, algorithm, secret(algorithm)).unwrap()
    } else {
        Key::from_pem(None, Some(algorithm), pem(algorithm)).unwrap()
    }
}

pub(super) fn set(keys: Vec<Key>) -> KeySet {
    KeySet::new(keys.into_iter().map(Arc::new).collect()).unwrap()
}

/// The keys of the key set, which have ids.
pub(super) fn jwks() -> KeySet {
    KeySet::new(Jwks::parse(JWKS.as_bytes(), JwksSource::Url).unwrap().keys).unwrap()
}

pub(super) fn policy() -> Policy {
    Policy {
        audiences: vec!["throng".into()],
        issuers: vec!["https://issuer.example".into()],
        ..Policy::default()
    }
}

pub(super) fn verify_at(token: &str, keys: &KeySet, now_s: u64) -> Result<Identity, TokenError> {
    token::verify(token, keys, &policy(), &GrantsPool::default(), now_s)
}

pub(super) fn verify(token: &str, keys: &KeySet) -> Result<Identity, TokenError> {
    verify_at(token, keys, ISSUED_S)
}

/// The tokens that a library made, by algorithm.
pub(super) fn tokens(json: &str) -> Vec<(Algorithm, String)> {
    let tokens: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).unwrap();
    let tokens = tokens.into_iter().map(|(name, token)| {
        (Algorithm::from_name(&name).unwrap(), token.as_str().unwrap().to_owned())
    });
    tokens.collect()
}

/// A token of PyJWT.
pub(super) fn token(algorithm: Algorithm) -> String {
    let all = tokens(include_str!("../fixtures/pyjwt.json"));
    all.into_iter().find(|(one, _)| *one == algorithm).unwrap().1
}

/// The three parts of a token, with header and payload decoded.
pub(super) fn parts(token: &str) -> (serde_json::Value, String, String) {
    let parts: Vec<_> = token.split('.').collect();
    let decoded = |part: &str| String::from_utf8(URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
    let header = serde_json::from_str(&decoded(parts[0])).unwrap();
    (header, decoded(parts[1]), parts[2].to_owned())
}

/// What is signed of a token with this header and payload.
pub(super) fn unsigned(header: &serde_json::Value, payload: &str) -> String {
    let [header, payload] =
        [&*header.to_string(), payload].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("{header}.{payload}")
}
