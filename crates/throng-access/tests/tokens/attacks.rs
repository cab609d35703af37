//! Forged tokens, and tokens that are made to do harm.

use super::support::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::json;
use throng_access::TokenError;
use throng_access::algorithm::Algorithm;
use throng_access::keys::{Key, KeySet};
use throng_access::token::{Signer, TOKEN_BYTES_MAX};

/// Everything that the server could be made to accept with these.
fn all_keys() -> KeySet {
    set(Algorithm::ALL.into_iter().map(key).collect())
}

fn claims() -> String {
    parts(&token(Algorithm::Hs256)).1
}

#[test]
fn unsigned_tokens_are_refused() {
    for name in ["none", "None", "NONE", "nOnE"] {
        let header = json!({"alg": name, "typ": "JWT"});
        let unsigned = unsigned(&header, &claims());
        assert_eq!(verify(&format!("{unsigned}."), &all_keys()), Err(TokenError::Malformed));
        assert_eq!(verify(&format!("{unsigned}.AA"), &all_keys()), Err(TokenError::Algorithm));
    }
    for algorithm in Algorithm::ALL {
        let header = json!({"alg": algorithm.name()});
        let unsigned = unsigned(&header, &claims());
        assert_eq!(verify(&format!("{unsigned}."), &all_keys()), Err(TokenError::Malformed));
        for signature in [&[0_u8][..], &[0; 32], &[0; 64], &[0; 96], &[0; 256]] {
            let signature = URL_SAFE_NO_PAD.encode(signature);
            let forged = format!("{unsigned}.{signature}");
            assert_eq!(verify(&forged, &all_keys()), Err(TokenError::Signature), "{algorithm:?}");
        }
    }
}

/// The classic confusion: a token signed with HMAC, with the public key as the secret.
#[test]
fn a_public_key_does_not_sign() {
    for algorithm in [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa] {
        let pem = pem(algorithm);
        for secret in [pem.as_bytes(), pem.trim().as_bytes(), JWKS.as_bytes()] {
            let Ok(signer) = Signer::new(None, Algorithm::Hs256, secret) else { continue };
            let forged = signer.sign(&claims());
            let keys = set(vec![key(algorithm)]);
            assert_eq!(verify(&forged, &keys), Err(TokenError::Algorithm));
            assert_eq!(verify(&forged, &all_keys()), Err(TokenError::Signature));
        }
        assert!(Key::from_secret(None, Algorithm::Hs256, pem.as_bytes()).is_err());
    }
}

/// A token that brings its own key, in each of the ways of RFC 7515 section 4.1.
#[test]
fn a_token_does_not_bring_its_own_key() {
    let secret = [b'x'; 32];
    let signer = Signer::new(None, Algorithm::Hs256, &secret).unwrap();
    let jwk = json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode(secret)});
    for header in [
        json!({"alg": "HS256", "jwk": jwk}),
        json!({"alg": "HS256", "jku": "https://evil.example/jwks.json"}),
        json!({"alg": "HS256", "x5u": "https://evil.example/x.pem"}),
        json!({"alg": "HS256", "x5c": ["AAAA"], "x5t": "AAAA"}),
    ] {
        let signed = unsigned(&header, &claims());
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
        let signature = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, signed.as_bytes()));
        let forged = format!("{signed}.{signature}");
        assert_eq!(verify(&forged, &all_keys()), Err(TokenError::Signature), "{header}");
    }
    assert_eq!(verify(&signer.sign(&claims()), &all_keys()), Err(TokenError::Signature));
}

#[test]
fn an_unknown_key_is_told_from_a_wrong_algorithm() {
    let (_, claims, signature) = parts(&token(Algorithm::Es256));
    for (kid, alg, error) in [
        ("unknown", "ES256", TokenError::UnknownKey),
        ("es256", "ES384", TokenError::Algorithm),
        ("es256", "HS256", TokenError::Algorithm),
        ("encryption", "RS256", TokenError::UnknownKey),
        ("eddsa", "EdDSA", TokenError::Signature),
    ] {
        let header = json!({"alg": alg, "kid": kid});
        let forged = format!("{}.{signature}", unsigned(&header, &claims));
        assert_eq!(verify(&forged, &jwks()), Err(error), "{kid} {alg}");
    }
}

/// A key without an id, in the configuration, does not hide that the issuer has a newer one.
#[test]
fn an_unknown_key_is_noticed_beside_a_key_without_an_id() {
    let keys = set(vec![key(Algorithm::Es256)]);
    let (_, claims, signature) = parts(&token(Algorithm::Es256));
    let with = |header| format!("{}.{signature}", unsigned(&header, &claims));
    let newer = with(json!({"alg": "ES256", "kid": "newer"}));
    assert_eq!(verify(&newer, &keys), Err(TokenError::UnknownKey));
    let unnamed = with(json!({"alg": "ES256"}));
    assert_eq!(verify(&unnamed, &keys), Err(TokenError::Signature));
}

/// ECDSA signatures in DER, and with the negated s, are other texts of the same signature; only the
/// fixed form of RFC 7518 section 3.4 is accepted.
#[test]
fn signatures_have_one_length() {
    for algorithm in Algorithm::ALL {
        let token = token(algorithm);
        let keys = set(vec![key(algorithm)]);
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        for other in
            [&signature[1..], &signature[..signature.len() - 1], &[&signature[..], &[0]].concat()]
        {
            let forged = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(other));
            // The token names an id, which the key does not have.
            assert_eq!(verify(&forged, &keys), Err(TokenError::UnknownKey), "{algorithm:?}");
        }
    }
}

#[test]
fn a_huge_token_is_refused_at_once() {
    let signer = Signer::new(None, Algorithm::Hs256, secret(Algorithm::Hs256)).unwrap();
    let claims = |bytes: usize| format!(r#"{{"exp": 1800000600, "x": "{}"}}"#, "x".repeat(bytes));
    let huge = signer.sign(&claims(100 << 10));
    assert!(huge.len() > 100 << 10);
    assert_eq!(verify(&huge, &all_keys()), Err(TokenError::TooLong));
    assert!(signer.sign(&claims(TOKEN_BYTES_MAX / 2)).len() < TOKEN_BYTES_MAX);
}

/// JSON that nests deeply must not exhaust the stack, in the header or below a good signature.
#[test]
fn deep_nesting_is_refused() {
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let header = format!(r#"{{"alg": "HS256", "x": {}}}"#, &deep[1400..2600]);
    let forged = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(header));
    assert!(verify(&forged, &all_keys()).is_err());
    let signer = Signer::new(None, Algorithm::Hs256, secret(Algorithm::Hs256)).unwrap();
    for claim in ["x", "throng", "aud", "sub", "exp"] {
        let signed = signer.sign(&format!(r#"{{"exp": 1800000600, "{claim}": {deep}}}"#));
        assert!(verify(&signed, &all_keys()).is_err(), "{claim}");
    }
}

#[test]
fn no_error_contains_a_part_of_the_token() {
    let signer = Signer::new(None, Algorithm::Hs256, secret(Algorithm::Hs256)).unwrap();
    let canary = "canary/../canary";
    for claims in [
        format!(r#"{{"exp": 1800000600, "aud": "throng", "sub": "{canary}"}}"#),
        format!(r#"{{"exp": "{canary}"}}"#),
        format!(r#"{{"exp": 1800000600, "aud": "{canary}"}}"#),
        format!(r#"{{"exp": 1800000600, "{canary}": 1, "{canary}": 2}}"#),
        format!(
            r#"{{"exp": 1800000600, "iss": "https://issuer.example", "aud": "throng",
            "throng": {{"{canary}": []}}}}"#
        ),
    ] {
        let error = verify(&signer.sign(&claims), &all_keys()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any other text is refused, and quickly: each character of a good token changed, cut or
    /// doubled.
    #[test]
    fn a_changed_token_is_refused(
        which in 0..8_usize, at in any::<prop::sample::Index>(),
        with in "[A-Za-z0-9_.=+/ -]", step in 0..3,
    ) {
        let algorithm = Algorithm::ALL[which];
        let token = token(algorithm);
        let at = at.index(token.len());
        let changed = match step {
            0 => format!("{}{with}{}", &token[..at], &token[at + 1..]),
            1 => token[..at].to_owned(),
            _ => format!("{}{with}{}", &token[..at], &token[at..]),
        };
        prop_assume!(changed != token);
        prop_assert!(verify(&changed, &set(vec![key(algorithm)])).is_err());
    }

    #[test]
    fn garbage_is_refused(token in "[A-Za-z0-9_.-]{0,200}|\\PC{0,100}") {
        prop_assert!(verify(&token, &all_keys()).is_err());
    }

    /// Payloads of any JSON below a good signature: no panic, and no user without a valid name.
    #[test]
    fn any_claims_are_parsed_or_refused(
        name in "sub|aud|iss|exp|nbf|iat|jti|throng|x",
        value in "\\PC{0,20}|[0-9e.+-]{1,9}|\\[\\]|\\{\\}",
    ) {
        let signer = Signer::new(None, Algorithm::Hs256, secret(Algorithm::Hs256)).unwrap();
        let payload = format!(
            r#"{{"exp":1800000600,"aud":"throng","iss":"https://issuer.example","{name}":{value}}}"#
        );
        if let Ok(identity) = verify(&signer.sign(&payload), &all_keys()) {
            prop_assert!(identity.user().is_none_or(|user| !user.is_empty() && user.len() <= 255));
        }
    }
}
