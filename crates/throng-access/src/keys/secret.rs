//! Secrets, and what is no secret.

use ring::hmac;

use super::key::{Key, KeyError};
use super::pem;
use crate::algorithm::Algorithm;

impl Key {
    /// A secret that signs and verifies with `algorithm`.
    ///
    /// # Errors
    ///
    /// [`KeyError::ShortSecret`]; [`KeyError::PublicAsSecret`] if the secret has the form of a
    /// public key, because tokens that anybody can sign would pass; [`KeyError::WrongFamily`].
    pub fn from_secret(
        id: Option<&str>,
        algorithm: Algorithm,
        secret: &[u8],
    ) -> Result<Key, KeyError> {
        let hash = match algorithm {
            Algorithm::Hs256 => hmac::HMAC_SHA256,
            Algorithm::Hs384 => hmac::HMAC_SHA384,
            Algorithm::Hs512 => hmac::HMAC_SHA512,
            _ => return Err(KeyError::WrongFamily),
        };
        if looks_public(secret) {
            return Err(KeyError::PublicAsSecret);
        }
        if secret.len() < algorithm.secret_bytes_min() {
            return Err(KeyError::ShortSecret(algorithm.secret_bytes_min()));
        }
        Key::from_hmac(id, algorithm, hash, secret)
    }
}

/// True if a secret has the form of a key that is no secret: PEM, the DER of a public key, or a
/// JSON Web Key.
fn looks_public(secret: &[u8]) -> bool {
    let text = secret.trim_ascii();
    let has_pem = text.windows(10).any(|window| window == b"-----BEGIN");
    let has_jwk = text.starts_with(b"{") && text.windows(5).any(|window| window == b"\"kty\"");
    has_pem || has_jwk || pem::is_public_der(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_a_minimum() {
        for (algorithm, bytes) in
            [(Algorithm::Hs256, 32), (Algorithm::Hs384, 48), (Algorithm::Hs512, 64)]
        {
            let secret = vec![7; bytes];
            assert!(Key::from_secret(None, algorithm, &secret).is_ok());
            let short = Key::from_secret(None, algorithm, &secret[1..]);
            assert_eq!(short.unwrap_err(), KeyError::ShortSecret(bytes));
        }
        let wrong = Key::from_secret(None, Algorithm::Rs256, &[7; 64]);
        assert_eq!(wrong.unwrap_err(), KeyError::WrongFamily);
    }

    #[test]
    fn a_public_key_is_no_secret() {
        let pem = include_str!("../../tests/fixtures/es256.pem");
        let jwk = r#"{"kty": "RSA", "n": "xxxxxxxxxxxxxxxxxxxxxxxxx", "e": "AQAB"}"#;
        let der: &[u8] = include_bytes!("../../tests/fixtures/es256.der");
        for public in [pem.as_bytes(), jwk.as_bytes(), der, pem.trim().as_bytes()] {
            let key = Key::from_secret(None, Algorithm::Hs256, public);
            assert_eq!(key.unwrap_err(), KeyError::PublicAsSecret);
        }
    }
}
