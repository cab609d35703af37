//! Signs the tokens (JWT) that clients show.
//!
//! A client's token is the same at each of its connects for half a token's lifetime, so that a
//! server that remembers the tokens it has verified can find it again.
//!
//! Tokens and keys never appear in errors, reports or `Debug` output.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use ring::{hmac, rand};
use serde_json::{Map, Value, json};

use crate::template::{PerClient, Template, TemplateValues};

/// Claims that every token gets, so that `claims` must not have them.
const OWN_CLAIMS: [&str; 3] = ["sub", "iat", "exp"];

const NO_SECRET: &str = "the file is empty; it holds the secret, which the server has too";

const NO_KEY: &str = "the file holds no private key for ES256; `openssl genpkey -algorithm EC \
                      -pkeyopt ec_paramgen_curve:P-256` makes one (PKCS #8, PEM)";

/// A key that signs tokens.
pub(crate) enum Signer {
    /// Signs with HS256, the same each time.
    Secret(hmac::Key),
    /// Signs with ES256, differently each time, so that tokens are kept.
    Private(EcdsaKeyPair, SystemRandom),
}

impl Signer {
    /// Signs with HS256. A line end after the secret is not part of it.
    pub(crate) fn from_secret(file: &[u8]) -> Result<Signer, &'static str> {
        let secret = file.strip_suffix(b"\n").unwrap_or(file);
        match secret.strip_suffix(b"\r").unwrap_or(secret) {
            [] => Err(NO_SECRET),
            secret => Ok(Signer::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret))),
        }
    }

    /// Signs with ES256 and the key of a PEM file.
    pub(crate) fn from_private_key(file: &[u8]) -> Result<Signer, &'static str> {
        let der = std::str::from_utf8(file).ok().and_then(|pem| {
            let (_, rest) = pem.split_once("-----BEGIN PRIVATE KEY-----")?;
            let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
            STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()
        });
        let random = SystemRandom::new();
        let read = |der: Vec<u8>| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random).ok()
        };
        der.and_then(read).map(|key| Signer::Private(key, random)).ok_or(NO_KEY)
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Secret(_) => "HS256",
            Signer::Private(..) => "ES256",
        }
    }

    fn sign(&self, text: &str) -> Result<Vec<u8>, ring::error::Unspecified> {
        match self {
            Signer::Secret(key) => Ok(hmac::sign(key, text.as_bytes()).as_ref().to_vec()),
            Signer::Private(key, random) => {
                Ok(key.sign(random as &dyn rand::SecureRandom, text.as_bytes())?.as_ref().to_vec())
            }
        }
    }
}

/// The claims of a token besides its user and its times, as JSON.
pub(crate) fn read_claims(text: &str) -> Result<Map<String, Value>, String> {
    let claims = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let Value::Object(claims) = claims else {
        return Err("is an object, like {\"aud\": \"chat\"}".to_owned());
    };
    match OWN_CLAIMS.iter().find(|own| claims.contains_key(**own)) {
        Some(own) => Err(format!("{own:?} is set by --token-user and --token-lifetime")),
        None => Ok(claims),
    }
}

/// A token for `user`, signed with HS256 and `secret`, that is valid for `lifetime` from now on.
pub fn hs256_token(
    secret: &[u8],
    user: &str,
    claims: &Map<String, Value>,
    lifetime: Duration,
) -> String {
    let signer = Signer::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret));
    let tokens = SignedTokens::new(signer, None, Template::literal(user), claims, lifetime);
    tokens.token(&TemplateValues::default(), tokens.issued_s(tokens.start))
}

/// Tokens that are signed when a client connects.
pub(crate) struct SignedTokens {
    signer: Signer,
    /// The header, encoded, with the dot after it.
    header: String,
    user: Template,
    /// The further claims, as they stand behind the others: `,"aud":"chat"}`.
    further: String,
    lifetime_s: u64,
    start: SystemTime,
    /// The ES256 tokens of clients, with the time at which each was issued.
    kept: Mutex<HashMap<usize, (u64, Arc<str>)>>,
}

impl SignedTokens {
    /// Tokens for users that `user` names, valid for `lifetime`, which is at least a second.
    pub(crate) fn new(
        signer: Signer,
        key_id: Option<&str>,
        user: Template,
        claims: &Map<String, Value>,
        lifetime: Duration,
    ) -> SignedTokens {
        let mut header = json!({ "alg": signer.algorithm(), "typ": "JWT" });
        if let Some(id) = key_id {
            header["kid"] = id.into();
        }
        let further = Value::Object(claims.clone()).to_string();
        SignedTokens {
            signer,
            header: format!("{}.", URL_SAFE_NO_PAD.encode(header.to_string())),
            user,
            further: further.replacen('{', if claims.is_empty() { "" } else { "," }, 1),
            lifetime_s: lifetime.as_secs().max(1),
            start: SystemTime::now(),
            kept: Mutex::default(),
        }
    }

    /// The time at which the tokens that are shown now were issued: the start, then after each half
    /// of a lifetime. In seconds since 1970.
    fn issued_s(&self, now: SystemTime) -> u64 {
        let start_s = self.start.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let passed_s = now.duration_since(self.start).map_or(0, |time| time.as_secs());
        let half = (self.lifetime_s / 2).max(1);
        start_s + passed_s / half * half
    }

    fn token(&self, values: &TemplateValues<'_>, issued_s: u64) -> String {
        let user = Value::String(self.user.rendered(values));
        let expires_s = issued_s + self.lifetime_s;
        let further = &self.further;
        let claims = format!(r#"{{"sub":{user},"iat":{issued_s},"exp":{expires_s}{further}"#);
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        // Signing fails only without random numbers; the server then refuses the client.
        let signature = self.signer.sign(&token).unwrap_or_default();
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        token
    }

    fn kept(&self, values: &TemplateValues<'_>, issued_s: u64) -> Arc<str> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((issued, token)) = lock().get(&values.client)
            && *issued == issued_s
        {
            return Arc::clone(token);
        }
        // Other threads are not kept waiting for the signature.
        let token: Arc<str> = self.token(values, issued_s).into();
        lock().insert(values.client, (issued_s, Arc::clone(&token)));
        token
    }
}

impl PerClient for SignedTokens {
    fn write(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>) {
        let issued_s = self.issued_s(SystemTime::now());
        match self.signer {
            Signer::Secret(_) => to.extend_from_slice(self.token(values, issued_s).as_bytes()),
            Signer::Private(..) => to.extend_from_slice(self.kept(values, issued_s).as_bytes()),
        }
    }
}

impl fmt::Debug for SignedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedTokens").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, KeyPair as _, UnparsedPublicKey};

    use super::*;

    const CLAIMS: &str = r#"{"aud":"chat","throng":{"subscribe":["*"]}}"#;

    fn tokens(signer: Signer, claims: &str) -> SignedTokens {
        let claims = read_claims(claims).expect("claims");
        let user = Template::parse("u{i}\"").expect("a template");
        SignedTokens::new(signer, Some("k"), user, &claims, Duration::from_secs(60))
    }

    fn secret() -> Signer {
        Signer::from_secret(b"0123456789abcdef0123456789abcdef\r\n").expect("a secret")
    }

    fn written(tokens: &SignedTokens, client: usize) -> String {
        let mut written = Vec::new();
        tokens.write(&TemplateValues { client, ..TemplateValues::default() }, &mut written);
        String::from_utf8(written).expect("text")
    }

    fn part(token: &str, number: usize) -> Vec<u8> {
        let part = token.split('.').nth(number).expect("three parts");
        URL_SAFE_NO_PAD.decode(part).expect("base64url")
    }

    #[test]
    fn a_token_has_its_user_times_and_claims() {
        let tokens = tokens(secret(), CLAIMS);
        let token = written(&tokens, 7);
        let header: Value = serde_json::from_slice(&part(&token, 0)).unwrap();
        assert_eq!(header, json!({ "alg": "HS256", "typ": "JWT", "kid": "k" }));
        let claims: Value = serde_json::from_slice(&part(&token, 1)).unwrap();
        assert_eq!((&claims["sub"], &claims["aud"]), (&json!("u7\""), &json!("chat")));
        assert_eq!(claims["throng"], json!({ "subscribe": ["*"] }));
        assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 60);
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef0123456789abcdef");
        let (signed, _) = token.rsplit_once('.').unwrap();
        hmac::verify(&key, signed.as_bytes(), &part(&token, 2)).unwrap();
        assert_eq!(written(&tokens, 7), token);
        assert_ne!(written(&tokens, 8), token);
    }

    #[test]
    fn without_further_claims_a_token_is_complete() {
        let claims = part(&written(&tokens(secret(), "{}"), 0), 1);
        let claims: Map<String, Value> = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims.len(), 3);
    }

    #[test]
    fn a_client_shows_the_same_es256_token_again() {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            STANDARD.encode(der.as_ref())
        );
        let signer = Signer::from_private_key(pem.as_bytes()).expect("a key");
        let Signer::Private(key, _) = &signer else { panic!("a secret") };
        let public = key.public_key().as_ref().to_vec();
        let tokens = tokens(signer, CLAIMS);
        let token = written(&tokens, 3);
        let (signed, _) = token.rsplit_once('.').unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
        public.verify(signed.as_bytes(), &part(&token, 2)).unwrap();
        assert_eq!(written(&tokens, 3), token);
        assert_ne!(written(&tokens, 4), token);
    }

    #[test]
    fn a_single_token_is_like_those_of_clients() {
        let claims = read_claims(CLAIMS).expect("claims");
        let lifetime = Duration::from_secs(60);
        let token = hs256_token(b"0123456789abcdef0123456789abcdef", "u{i}", &claims, lifetime);
        let claims: Value = serde_json::from_slice(&part(&token, 1)).unwrap();
        assert_eq!((&claims["sub"], &claims["aud"]), (&json!("u{i}"), &json!("chat")));
        assert_eq!(part(&token, 2).len(), 32);
    }

    #[test]
    fn tokens_are_renewed_after_half_of_their_lifetime() {
        let tokens = tokens(secret(), "{}");
        let at = |seconds| tokens.issued_s(tokens.start + Duration::from_secs(seconds));
        assert_eq!((at(29) - at(0), at(30) - at(0), at(95) - at(0)), (0, 30, 90));
    }

    #[test]
    fn wrong_keys_and_claims_are_explained() {
        assert_eq!(Signer::from_secret(b"\n").err(), Some(NO_SECRET));
        let sec1 = b"-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n";
        let empty = b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";
        for bad in [&sec1[..], empty, b"secret", &[0xff]] {
            assert_eq!(Signer::from_private_key(bad).err(), Some(NO_KEY));
        }
        assert!(read_claims("[1]").unwrap_err().starts_with("is an object"));
        assert!(read_claims("{").unwrap_err().starts_with("is no JSON"));
        assert!(read_claims(r#"{"exp":1}"#).unwrap_err().starts_with("\"exp\" is set by"));
    }
}
