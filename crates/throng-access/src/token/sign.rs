//! Makes tokens with a secret: for trying out, load tests and examples.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::algorithm::Algorithm;
use crate::keys::KeyError;

/// Signs claims with HMAC. A server that only verifies does not need it.
#[derive(Debug)]
pub struct Signer {
    key: hmac::Key,
    /// The header in base64url, and the dot.
    header: String,
}

impl Signer {
    /// A signer with a secret, for tokens that name `key_id`.
    ///
    /// # Errors
    ///
    /// [`KeyError::WrongFamily`] and [`KeyError::ShortSecret`].
    pub fn new(
        key_id: Option<&str>,
        algorithm: Algorithm,
        secret: &[u8],
    ) -> Result<Signer, KeyError> {
        let hash = match algorithm {
            Algorithm::Hs256 => hmac::HMAC_SHA256,
            Algorithm::Hs384 => hmac::HMAC_SHA384,
            Algorithm::Hs512 => hmac::HMAC_SHA512,
            _ => return Err(KeyError::WrongFamily),
        };
        if secret.len() < algorithm.secret_bytes_min() {
            return Err(KeyError::ShortSecret(algorithm.secret_bytes_min()));
        }
        Ok(Signer { key: hmac::Key::new(hash, secret), header: header(key_id, algorithm) })
    }

    /// A token with these claims, which are a JSON object.
    pub fn sign(&self, claims: &str) -> String {
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = hmac::sign(&self.key, token.as_bytes());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        token
    }
}

/// The header of a token in base64url, and the dot behind it.
pub(super) fn header(key_id: Option<&str>, algorithm: Algorithm) -> String {
    let mut header = serde_json::json!({"alg": algorithm.name(), "typ": "JWT"});
    if let Some(id) = key_id {
        header["kid"] = id.into();
    }
    URL_SAFE_NO_PAD.encode(header.to_string()) + "."
}
