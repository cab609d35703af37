//! One key, and the algorithms that it accepts.

use std::fmt;

use ring::digest::{Context, SHA256};
use ring::hmac;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};

use crate::algorithm::{Algorithm, Algorithms, Family};

/// The longest `kid`, in bytes.
pub(crate) const KEY_ID_BYTES_MAX: usize = 256;

/// The sizes of an RSA modulus, in bits. Smaller ones are weak (RFC 7518 section 3.3); larger ones
/// cost more time than a request should.
const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 8192;

/// Why a key is invalid. No sentence contains a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A secret is shorter than the algorithm's hash.
    #[error("a secret for this algorithm needs at least {0} bytes")]
    ShortSecret(usize),
    /// A secret has the form of a public key, which anybody may know.
    #[error("this is a public key or a certificate, and no secret")]
    PublicAsSecret,
    /// The algorithm does not work with this kind of key.
    #[error("this algorithm does not work with this kind of key")]
    WrongFamily,
    /// The text is neither `PUBLIC KEY` nor `RSA PUBLIC KEY` in PEM.
    #[error("this is not a public key in PEM (`PUBLIC KEY` or `RSA PUBLIC KEY`)")]
    NotPem,
    /// The text contains a private key, which the server must not have.
    #[error("this is a private key: give the server the public one")]
    PrivateKey,
    /// The key is of a kind that no algorithm here works with.
    #[error("this kind of public key is not supported")]
    UnsupportedKind,
    /// The numbers of the key are malformed.
    #[error("this public key is malformed")]
    Malformed,
    /// The modulus of an RSA key has the wrong size.
    #[error("an RSA key needs {RSA_BITS_MIN} to {RSA_BITS_MAX} bits")]
    RsaSize,
    /// The id is longer than [`KEY_ID_BYTES_MAX`].
    #[error("a key id has at most {KEY_ID_BYTES_MAX} bytes")]
    LongId,
}

/// Tells keys apart: a hash of what verifies, the algorithms and the id. Two keys with the same
/// fingerprint accept the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// Of no key: keys have hashes.
    pub(crate) const NONE: Fingerprint = Fingerprint([0; 16]);
    /// Of a certificate, likewise.
    pub(crate) const CERTIFICATE: Fingerprint = Fingerprint([0xff; 16]);
}

/// A key that verifies tokens.
pub struct Key {
    id: Option<Box<str>>,
    algorithms: Algorithms,
    material: Material,
    /// The prefix of the application whose tokens it signs.
    app: Option<Box<str>>,
    fingerprint: Fingerprint,
}

enum Material {
    Hmac(hmac::Key),
    Rsa {
        modulus: Box<[u8]>,
        exponent: Box<[u8]>,
    },
    /// An uncompressed point, or the 32 bytes of an Ed25519 key.
    Curve(Box<[u8]>),
}

impl Key {
    /// A secret with the hash of `algorithm`.
    pub(super) fn from_hmac(
        id: Option<&str>,
        algorithm: Algorithm,
        hash: hmac::Algorithm,
        secret: &[u8],
    ) -> Result<Key, KeyError> {
        let material = Material::Hmac(hmac::Key::new(hash, secret));
        Key::new(id, Algorithms::only(algorithm), material, &[secret])
    }

    /// An RSA key with big-endian numbers. `algorithm` restricts it to one; otherwise it accepts
    /// everything that works with RSA keys.
    pub(super) fn from_rsa(
        id: Option<&str>,
        algorithm: Option<Algorithm>,
        modulus: &[u8],
        exponent: &[u8],
    ) -> Result<Key, KeyError> {
        let [modulus, exponent] = [modulus, exponent].map(without_leading_zeros);
        let bits =
            modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros()) as usize;
        if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) {
            return Err(KeyError::RsaSize);
        }
        // The verifier accepts odd exponents from 3 to 2^33 - 1.
        if exponent.is_empty() || exponent.len() > 5 || exponent.ends_with(&[0]) {
            return Err(KeyError::Malformed);
        }
        let algorithms = algorithms(algorithm, Family::Rsa)?;
        let material = Material::Rsa { modulus: modulus.into(), exponent: exponent.into() };
        Key::new(id, algorithms, material, &[modulus, exponent])
    }

    /// A key on a curve: for NIST's an uncompressed point, for Ed25519 its 32 bytes.
    pub(super) fn from_curve(
        id: Option<&str>,
        algorithm: Option<Algorithm>,
        family: Family,
        point: &[u8],
    ) -> Result<Key, KeyError> {
        let has_form = match family {
            Family::P256 => point.len() == 65 && point[0] == 4,
            Family::P384 => point.len() == 97 && point[0] == 4,
            Family::Ed25519 => point.len() == 32,
            Family::Hmac | Family::Rsa => return Err(KeyError::WrongFamily),
        };
        if !has_form {
            return Err(KeyError::Malformed);
        }
        let algorithms = algorithms(algorithm, family)?;
        Key::new(id, algorithms, Material::Curve(point.into()), &[point])
    }

    fn new(
        id: Option<&str>,
        algorithms: Algorithms,
        material: Material,
        parts: &[&[u8]],
    ) -> Result<Key, KeyError> {
        if id.is_some_and(|id| id.len() > KEY_ID_BYTES_MAX) {
            return Err(KeyError::LongId);
        }
        let mut context = Context::new(&SHA256);
        context.update(&[algorithms.bits(), u8::from(id.is_some())]);
        for part in [id.unwrap_or_default().as_bytes()].iter().chain(parts) {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&context.finish().as_ref()[..16]);
        let fingerprint = Fingerprint(fingerprint);
        Ok(Key { id: id.map(Box::from), algorithms, material, app: None, fingerprint })
    }

    /// The same key, as one of the application whose names begin with `prefix`. It verifies tokens
    /// that name it, and these are good for no other names.
    #[must_use]
    pub fn of_app(self, prefix: &str) -> Key {
        let mut context = Context::new(&SHA256);
        context.update(&self.fingerprint.0);
        context.update(prefix.as_bytes());
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&context.finish().as_ref()[..16]);
        Key { app: Some(prefix.into()), fingerprint: Fingerprint(fingerprint), ..self }
    }

    /// The prefix of the application whose tokens it signs.
    pub fn app(&self) -> Option<&str> {
        self.app.as_deref()
    }

    /// The id that tokens name in `kid`.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The algorithms that it accepts.
    pub(crate) fn algorithms(&self) -> Algorithms {
        self.algorithms
    }

    /// True if the key also signs.
    pub fn is_secret(&self) -> bool {
        matches!(self.material, Material::Hmac(_))
    }

    /// Distinguishes it from other keys.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// True if `signature` is one of `message` by this key and `algorithm`. No signature is valid
    /// with an algorithm that the key does not accept.
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        // The key decides, not the token: otherwise a token could have a public RSA key taken for
        // an HMAC secret (RFC 8725 section 2.1).
        if !self.algorithms.contains(algorithm) {
            return false;
        }
        let verified = match (&self.material, algorithm) {
            (Material::Hmac(key), _) => hmac::verify(key, message, signature),
            (Material::Rsa { modulus, exponent }, _) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    _ => return false,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(parameters, message, signature)
            }
            (Material::Curve(point), _) => {
                let verification: &'static dyn VerificationAlgorithm = match algorithm {
                    // JWS concatenates the two numbers and has no DER (RFC 7518 section 3.4).
                    Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Algorithm::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
                    Algorithm::EdDsa => &signature::ED25519,
                    _ => return false,
                };
                UnparsedPublicKey::new(verification, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

/// Shows neither a secret nor a number.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Algorithm::ALL.into_iter().filter(|&one| self.algorithms.contains(one));
        let names: Vec<_> = names.map(Algorithm::name).collect();
        f.debug_struct("Key")
            .field("id", &self.id)
            .field("algorithms", &names)
            .finish_non_exhaustive()
    }
}

/// The algorithms of a public key: `algorithm`, or without one all of its family.
fn algorithms(algorithm: Option<Algorithm>, family: Family) -> Result<Algorithms, KeyError> {
    match algorithm {
        Some(algorithm) if algorithm.family() != family => Err(KeyError::WrongFamily),
        Some(algorithm) => Ok(Algorithms::only(algorithm)),
        None => Ok(Algorithms::of_public(family)),
    }
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_keys_apart() {
        let key = |id, algorithm, secret: u8| {
            Key::from_secret(id, algorithm, &[secret; 64]).unwrap().fingerprint()
        };
        let one = key(None, Algorithm::Hs256, 1);
        assert_eq!(one, key(None, Algorithm::Hs256, 1));
        for other in [
            key(None, Algorithm::Hs256, 2),
            key(None, Algorithm::Hs512, 1),
            key(Some(""), Algorithm::Hs256, 1),
            key(Some("a"), Algorithm::Hs256, 1),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn rsa_keys_have_limits() {
        let key = |bytes: usize, exponent: &[u8]| {
            Key::from_rsa(None, None, &vec![0xff; bytes], exponent).map(|_| ())
        };
        assert_eq!(key(256, &[1, 0, 1]), Ok(()));
        assert_eq!(key(1024, &[0, 1, 0, 1]), Ok(()));
        assert_eq!(key(255, &[1, 0, 1]), Err(KeyError::RsaSize));
        assert_eq!(key(1025, &[1, 0, 1]), Err(KeyError::RsaSize));
        assert_eq!(key(256, &[]), Err(KeyError::Malformed));
        assert_eq!(key(256, &[1, 0, 0, 0, 0, 1]), Err(KeyError::Malformed));
    }

    #[test]
    fn no_debug_output_contains_a_secret() {
        let key = Key::from_secret(Some("k1"), Algorithm::Hs256, &[b'S'; 32]).unwrap();
        assert_eq!(format!("{key:?}"), r#"Key { id: Some("k1"), algorithms: ["HS256"], .. }"#);
    }
}
