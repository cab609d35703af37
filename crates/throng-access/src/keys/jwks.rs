//! JSON Web Key sets (RFC 7517).
//!
//! A set may contain keys that are of no use here: for encryption, of other kinds, or malformed.
//! They are counted and left out (RFC 7517 section 5), so that an issuer can add a new kind of key.
//! A set without any usable key is an error, so that the last good set stays.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::key::{Key, KeyError};
use super::set::KEYS_MAX;
use crate::algorithm::{Algorithm, Family};
use crate::json::is_object;

/// The largest key set, in bytes. Sets of the large issuers have 1 to 20 KB.
pub const JWKS_BYTES_MAX: usize = 256 << 10;

/// Where a key set comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwksSource {
    /// A file of the operator's, which may hold secrets (`oct`).
    File,
    /// A URL. A set that everybody may fetch is no secret, so secrets are left out.
    Url,
}

/// Why a key set is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// It is larger than [`JWKS_BYTES_MAX`].
    #[error("the key set is larger than {} KiB", JWKS_BYTES_MAX >> 10)]
    TooLarge,
    /// It is no JSON object with a list `keys`.
    #[error("the key set is not a JSON object with a list `keys`")]
    Form,
    /// It has more than [`KEYS_MAX`] keys.
    #[error("the key set has more than {KEYS_MAX} keys")]
    TooMany,
    /// None of its keys can be used.
    #[error("the key set has no key that verifies tokens")]
    NoUsableKey,
}

/// The keys of a set.
#[derive(Debug)]
pub struct Jwks {
    /// The keys that can be used.
    pub keys: Vec<Arc<Key>>,
    /// How many keys were left out.
    pub left_out: usize,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Jwk<'a> {
    #[serde(borrow)]
    kty: Cow<'a, str>,
    #[serde(borrow)]
    kid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    alg: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "use")]
    usage: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key_ops: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow)]
    crv: Option<Cow<'a, str>>,
    #[serde(borrow)]
    n: Option<Cow<'a, str>>,
    #[serde(borrow)]
    e: Option<Cow<'a, str>>,
    #[serde(borrow)]
    x: Option<Cow<'a, str>>,
    #[serde(borrow)]
    y: Option<Cow<'a, str>>,
    #[serde(borrow)]
    k: Option<Cow<'a, str>>,
}

impl Jwks {
    /// The keys of a set.
    ///
    /// # Errors
    ///
    /// See [`JwksError`].
    pub fn parse(json: &[u8], source: JwksSource) -> Result<Jwks, JwksError> {
        if json.len() > JWKS_BYTES_MAX {
            return Err(JwksError::TooLarge);
        }
        let json = str::from_utf8(json).map_err(|_| JwksError::Form)?;
        if !is_object(json) {
            return Err(JwksError::Form);
        }
        let document: Document<'_> = serde_json::from_str(json).map_err(|_| JwksError::Form)?;
        if document.keys.len() > KEYS_MAX {
            return Err(JwksError::TooMany);
        }
        let number = document.keys.len();
        let parse = |raw: &RawValue| Key::from_jwk(raw.get(), source).ok().map(Arc::new);
        let keys: Vec<_> = document.keys.into_iter().filter_map(parse).collect();
        if keys.is_empty() {
            return Err(JwksError::NoUsableKey);
        }
        let left_out = number - keys.len();
        Ok(Jwks { keys, left_out })
    }
}

impl Key {
    /// The key of one JSON Web Key.
    ///
    /// # Errors
    ///
    /// [`KeyError::UnsupportedKind`] if it is not for verifying signatures or of another kind; else
    /// see [`KeyError`].
    pub fn from_jwk(json: &str, source: JwksSource) -> Result<Key, KeyError> {
        if !is_object(json) {
            return Err(KeyError::Malformed);
        }
        let jwk: Jwk<'_> = serde_json::from_str(json).map_err(|_| KeyError::Malformed)?;
        // A set may have keys for encryption, too (RFC 7517 sections 4.2 and 4.3).
        let is_for_signatures = jwk.usage.as_ref().is_none_or(|usage| usage == "sig")
            && jwk
                .key_ops
                .as_ref()
                .is_none_or(|operations| operations.iter().any(|one| one == "verify"));
        if !is_for_signatures {
            return Err(KeyError::UnsupportedKind);
        }
        let algorithm = match &jwk.alg {
            Some(name) => Some(Algorithm::from_name(name).ok_or(KeyError::UnsupportedKind)?),
            None => None,
        };
        let id = jwk.kid.as_deref();
        match (&*jwk.kty, jwk.crv.as_deref()) {
            ("RSA", _) => Key::from_rsa(id, algorithm, &bytes(&jwk.n)?, &bytes(&jwk.e)?),
            ("EC", Some("P-256")) => {
                Key::from_curve(id, algorithm, Family::P256, &point(&jwk, 32)?)
            }
            ("EC", Some("P-384")) => {
                Key::from_curve(id, algorithm, Family::P384, &point(&jwk, 48)?)
            }
            ("OKP", Some("Ed25519")) => {
                Key::from_curve(id, algorithm, Family::Ed25519, &bytes(&jwk.x)?)
            }
            // A secret that a URL serves is known to all who can read the URL.
            ("oct", _) if source == JwksSource::File => {
                Key::from_secret(id, algorithm.unwrap_or(Algorithm::Hs256), &bytes(&jwk.k)?)
            }
            _ => Err(KeyError::UnsupportedKind),
        }
    }
}

/// The bytes of a member in base64url.
fn bytes(member: &Option<Cow<'_, str>>) -> Result<Vec<u8>, KeyError> {
    let text = member.as_deref().ok_or(KeyError::Malformed)?;
    URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyError::Malformed)
}

/// The uncompressed point of a curve whose coordinates have this many bytes (RFC 7518 section
/// 6.2.1.2).
fn point(jwk: &Jwk<'_>, coordinate_bytes: usize) -> Result<Vec<u8>, KeyError> {
    let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
    if x.len() != coordinate_bytes || y.len() != coordinate_bytes {
        return Err(KeyError::Malformed);
    }
    Ok([&[4], &*x, &*y].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithms;

    const JWKS: &str = include_str!("../../tests/fixtures/jwks.json");

    fn parse(json: &str) -> Result<Jwks, JwksError> {
        Jwks::parse(json.as_bytes(), JwksSource::Url)
    }

    #[test]
    fn a_set_of_another_library_is_read() {
        let jwks = parse(JWKS).unwrap();
        let ids: Vec<_> = jwks.keys.iter().map(|key| key.id().unwrap()).collect();
        assert_eq!(ids, ["rs256", "es256", "es384", "eddsa"]);
        assert_eq!(jwks.left_out, 2, "one for encryption, one on P-521");
        // Only the set's RSA key names one of several algorithms.
        for (id, algorithm, pem) in [
            ("es256", None, include_str!("../../tests/fixtures/es256.pem")),
            ("es384", None, include_str!("../../tests/fixtures/es384.pem")),
            ("eddsa", None, include_str!("../../tests/fixtures/eddsa.pem")),
            ("rs256", Some(Algorithm::Rs256), include_str!("../../tests/fixtures/rs256.pem")),
        ] {
            let key = jwks.keys.iter().find(|key| key.id() == Some(id)).unwrap();
            let from_pem = Key::from_pem(Some(id), algorithm, pem).unwrap();
            assert_eq!(from_pem.fingerprint(), key.fingerprint(), "{id}");
        }
    }

    #[test]
    fn secrets_come_from_files_only() {
        let secret = URL_SAFE_NO_PAD.encode([7; 32]);
        let json = format!(r#"{{"keys": [{{"kty": "oct", "k": "{secret}"}}]}}"#);
        assert_eq!(parse(&json).unwrap_err(), JwksError::NoUsableKey);
        assert_eq!(Jwks::parse(json.as_bytes(), JwksSource::File).unwrap().keys.len(), 1);
    }

    #[test]
    fn garbage_is_an_error() {
        for json in ["", "[]", "[[]]", "{}", r#"{"keys": {}}"#, r#"{"keys": "#, "<html>"] {
            assert_eq!(parse(json).unwrap_err(), JwksError::Form, "{json}");
        }
        for json in [
            r#"{"keys": []}"#,
            r#"{"keys": [1, null, "x", {}, []]}"#,
            r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#,
            r#"{"keys": [{"kty": "RSA", "n": "AA", "e": "AQAB"}]}"#,
        ] {
            assert_eq!(parse(json).unwrap_err(), JwksError::NoUsableKey, "{json}");
        }
        let many = format!(r#"{{"keys": [{}]}}"#, vec!["1"; KEYS_MAX + 1].join(","));
        assert_eq!(parse(&many).unwrap_err(), JwksError::TooMany);
        let large = format!(r#"{{"keys": [], "x": "{}"}}"#, "x".repeat(JWKS_BYTES_MAX));
        assert_eq!(parse(&large).unwrap_err(), JwksError::TooLarge);
    }

    #[test]
    fn a_key_that_names_a_use_is_for_that_use_only() {
        let x = URL_SAFE_NO_PAD.encode([7; 32]);
        let key = |more: &str| {
            let json = format!(r#"{{"kty": "OKP", "crv": "Ed25519", "x": "{x}"{more}}}"#);
            Key::from_jwk(&json, JwksSource::Url).map(|key| key.algorithms())
        };
        let eddsa = Ok(Algorithms::only(Algorithm::EdDsa));
        assert_eq!(key(""), eddsa);
        assert_eq!(key(r#", "use": "sig", "key_ops": ["verify"], "alg": "EdDSA""#), eddsa);
        assert_eq!(key(r#", "use": "enc""#), Err(KeyError::UnsupportedKind));
        assert_eq!(key(r#", "key_ops": ["encrypt"]"#), Err(KeyError::UnsupportedKind));
        assert_eq!(key(r#", "alg": "RSA-OAEP""#), Err(KeyError::UnsupportedKind));
        assert_eq!(key(r#", "alg": "RS256""#), Err(KeyError::WrongFamily));
        assert_eq!(key(r#", "alg": "HS256""#), Err(KeyError::WrongFamily));
        assert_eq!(key(r#", "kid": "a", "kid": "b""#), Err(KeyError::Malformed));
    }
}
