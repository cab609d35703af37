//! Makes tokens with a private key: for trying out and for tests of an operator's keys.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaKeyPair,
};
use spki::der::Document;

use crate::algorithm::{Algorithm, Family};

/// Why a private key cannot sign. No sentence contains a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyPairError {
    /// It is not a private key in PEM.
    #[error("this is not a private key in PEM (`PRIVATE KEY` or `RSA PRIVATE KEY`)")]
    NotPem,
    /// It is encrypted, or in the form of RFC 5915 (`EC PRIVATE KEY`).
    #[error(
        "this private key is in another form; `openssl pkcs8 -topk8 -nodes -in KEY` converts it"
    )]
    OtherForm,
    /// It is malformed, or of a kind that no algorithm here works with.
    #[error("this private key is malformed, or of a kind that is not supported")]
    Unsupported,
    /// The algorithm does not work with this kind of key.
    #[error("this algorithm does not work with this kind of key")]
    WrongFamily,
    /// The system gave no random bytes, or the key is inconsistent.
    #[error("this private key cannot sign")]
    CannotSign,
}

/// A private key that signs claims. A server that only verifies must not have it.
pub struct KeyPair {
    material: Material,
    algorithm: Algorithm,
    /// The header in base64url, and the dot.
    header: String,
}

enum Material {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl KeyPair {
    /// The private key in a PEM text, for tokens that name `key_id`. Without `algorithm`, RSA keys
    /// sign with RS256.
    ///
    /// # Errors
    ///
    /// See [`KeyPairError`].
    pub fn from_pem(
        key_id: Option<&str>,
        algorithm: Option<Algorithm>,
        pem: &str,
    ) -> Result<KeyPair, KeyPairError> {
        if ["EC PRIVATE KEY-----", "ENCRYPTED"].iter().any(|mark| pem.contains(mark)) {
            return Err(KeyPairError::OtherForm);
        }
        // `openssl ecparam` writes the curve before the key.
        let start = pem.find("-----BEGIN").ok_or(KeyPairError::NotPem)?;
        let (label, document) =
            Document::from_pem(pem[start..].trim()).map_err(|_| KeyPairError::NotPem)?;
        let (material, family) = match label {
            "PRIVATE KEY" => material(document.as_bytes())?,
            "RSA PRIVATE KEY" => {
                let pair = RsaKeyPair::from_der(document.as_bytes());
                (Material::Rsa(Box::new(pair.map_err(|_| KeyPairError::Unsupported)?)), Family::Rsa)
            }
            _ => return Err(KeyPairError::NotPem),
        };
        let fits = |algorithm: &Algorithm| algorithm.family() == family;
        let algorithm = match algorithm {
            Some(algorithm) if !fits(&algorithm) => return Err(KeyPairError::WrongFamily),
            Some(algorithm) => algorithm,
            None => Algorithm::ALL.into_iter().find(fits).ok_or(KeyPairError::Unsupported)?,
        };
        Ok(KeyPair { material, algorithm, header: super::sign::header(key_id, algorithm) })
    }

    /// A token with these claims, which are a JSON object.
    ///
    /// # Errors
    ///
    /// [`KeyPairError::CannotSign`].
    pub fn sign(&self, claims: &str) -> Result<String, KeyPairError> {
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = self.signature(token.as_bytes()).map_err(|_| KeyPairError::CannotSign)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = SystemRandom::new();
        match &self.material {
            Material::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                if self.algorithm == Algorithm::Ps256 {
                    pair.sign(&RSA_PSS_SHA256, &random, message, &mut signature)?;
                } else {
                    pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)?;
                }
                Ok(signature)
            }
            Material::Ecdsa(pair) => Ok(pair.sign(&random, message)?.as_ref().to_vec()),
            Material::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

/// The key of PKCS #8 (RFC 5958). Each parser accepts one kind only.
fn material(der: &[u8]) -> Result<(Material, Family), KeyPairError> {
    let random = SystemRandom::new();
    if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
        return Ok((Material::Ed25519(pair), Family::Ed25519));
    }
    for (parameters, family) in [
        (&ECDSA_P256_SHA256_FIXED_SIGNING, Family::P256),
        (&ECDSA_P384_SHA384_FIXED_SIGNING, Family::P384),
    ] {
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(parameters, der, &random) {
            return Ok((Material::Ecdsa(pair), family));
        }
    }
    let pair = RsaKeyPair::from_pkcs8(der).map_err(|_| KeyPairError::Unsupported)?;
    Ok((Material::Rsa(Box::new(pair)), Family::Rsa))
}

/// Shows nothing of the key.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use ring::signature::KeyPair as _;

    use super::*;
    use crate::grants::GrantsPool;
    use crate::keys::{Jwks, JwksSource, KeySet};
    use crate::token::{Policy, verify};

    const CLAIMS: &str = r#"{"sub": "ann", "iat": 1800000000, "exp": 1800000060}"#;

    fn pem(label: &str, der: &[u8]) -> String {
        let lines: Vec<_> =
            STANDARD.encode(der).into_bytes().chunks(64).map(<[u8]>::to_vec).collect();
        let body = String::from_utf8(lines.join(&b'\n')).unwrap();
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    }

    /// A private key in PEM, and the JSON Web Key set of its public key.
    fn p256() -> (String, String) {
        let random = SystemRandom::new();
        let parameters = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let der = EcdsaKeyPair::generate_pkcs8(parameters, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(parameters, der.as_ref(), &random).unwrap();
        let [x, y] =
            [1..33, 33..65].map(|part| URL_SAFE_NO_PAD.encode(&pair.public_key().as_ref()[part]));
        let jwk = format!(r#"{{"kty": "EC", "crv": "P-256", "kid": "a", "x": "{x}", "y": "{y}"}}"#);
        (pem("PRIVATE KEY", der.as_ref()), format!(r#"{{"keys": [{jwk}]}}"#))
    }

    fn ed25519() -> (String, String) {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key());
        let jwk = format!(r#"{{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "{x}"}}"#);
        (pem("PRIVATE KEY", der.as_ref()), format!(r#"{{"keys": [{jwk}]}}"#))
    }

    #[test]
    fn the_public_key_verifies_what_the_private_one_signs() {
        for (private, jwks) in [p256(), ed25519()] {
            let pair = KeyPair::from_pem(Some("a"), None, &private).unwrap();
            let token = pair.sign(CLAIMS).unwrap();
            let keys = Jwks::parse(jwks.as_bytes(), JwksSource::Url).unwrap().keys;
            let keys = KeySet::new(keys).unwrap();
            let (policy, pool) = (Policy::default(), GrantsPool::default());
            let identity = verify(&token, &keys, &policy, &pool, 1_800_000_000).unwrap();
            assert_eq!(identity.user(), Some("ann"));
            assert!(!format!("{pair:?}").contains(&private[40..60]));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let (private, _) = p256();
        let error = |algorithm, pem: &str| KeyPair::from_pem(None, algorithm, pem).unwrap_err();
        assert_eq!(error(Some(Algorithm::Rs256), &private), KeyPairError::WrongFamily);
        assert_eq!(error(Some(Algorithm::Hs256), &private), KeyPairError::WrongFamily);
        assert_eq!(error(None, "hunter2"), KeyPairError::NotPem);
        let public = include_str!("../../tests/fixtures/es256.pem");
        assert_eq!(error(None, public), KeyPairError::NotPem);
        assert_eq!(error(None, &pem("EC PRIVATE KEY", b"a")), KeyPairError::OtherForm);
        assert_eq!(error(None, &pem("ENCRYPTED PRIVATE KEY", b"a")), KeyPairError::OtherForm);
        assert_eq!(error(None, &pem("PRIVATE KEY", &[0x30, 0])), KeyPairError::Unsupported);
        assert_eq!(error(None, &pem("RSA PRIVATE KEY", &[0x30, 0])), KeyPairError::Unsupported);
    }
}
