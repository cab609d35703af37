//! Public keys in PEM: `PUBLIC KEY` (RFC 5280 section 4.1.2.7) and `RSA PUBLIC KEY` (RFC 8017
//! appendix A.1.1).

use spki::der::asn1::UintRef;
use spki::der::{Decode, Document, Reader, SliceReader};
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use super::key::{Key, KeyError};
use crate::algorithm::{Algorithm, Family};

/// The longest text of a key. The largest RSA key takes 1.5 KB.
const PEM_BYTES_MAX: usize = 16 << 10;

const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

impl Key {
    /// The public key in a PEM text. `algorithm` restricts it to one; otherwise it accepts
    /// everything that works with such keys.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn from_pem(
        id: Option<&str>,
        algorithm: Option<Algorithm>,
        pem: &str,
    ) -> Result<Key, KeyError> {
        if pem.len() > PEM_BYTES_MAX {
            return Err(KeyError::NotPem);
        }
        if pem.contains("PRIVATE KEY-----") {
            return Err(KeyError::PrivateKey);
        }
        let (label, document) = Document::from_pem(pem.trim()).map_err(|_| KeyError::NotPem)?;
        match label {
            "PUBLIC KEY" => from_spki(id, algorithm, document.as_bytes()),
            "RSA PUBLIC KEY" => from_rsa(id, algorithm, document.as_bytes()),
            _ => Err(KeyError::NotPem),
        }
    }
}

fn from_spki(id: Option<&str>, algorithm: Option<Algorithm>, der: &[u8]) -> Result<Key, KeyError> {
    let info = SubjectPublicKeyInfoRef::from_der(der).map_err(|_| KeyError::Malformed)?;
    let bytes = info.subject_public_key.as_bytes().ok_or(KeyError::Malformed)?;
    let family = match info.algorithm.oid {
        RSA_ENCRYPTION => return from_rsa(id, algorithm, bytes),
        EC_PUBLIC_KEY => match info.algorithm.parameters_oid() {
            Ok(P256) => Family::P256,
            Ok(P384) => Family::P384,
            _ => return Err(KeyError::UnsupportedKind),
        },
        ED25519 => Family::Ed25519,
        _ => return Err(KeyError::UnsupportedKind),
    };
    Key::from_curve(id, algorithm, family, bytes)
}

fn from_rsa(id: Option<&str>, algorithm: Option<Algorithm>, der: &[u8]) -> Result<Key, KeyError> {
    let numbers = || {
        let mut reader = SliceReader::new(der)?;
        let numbers =
            reader.sequence(|inner| Ok((UintRef::decode(inner)?, UintRef::decode(inner)?)))?;
        reader.finish(numbers)
    };
    let (modulus, exponent): (UintRef<'_>, UintRef<'_>) =
        numbers().map_err(|_: spki::der::Error| KeyError::Malformed)?;
    Key::from_rsa(id, algorithm, modulus.as_bytes(), exponent.as_bytes())
}

pub(super) fn is_public_der(bytes: &[u8]) -> bool {
    SubjectPublicKeyInfoRef::from_der(bytes).is_ok() || from_rsa(None, None, bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: &str = include_str!("../../tests/fixtures/rs256.pem");
    const RSA_PKCS1: &str = include_str!("../../tests/fixtures/rs256-pkcs1.pem");
    const P256: &str = include_str!("../../tests/fixtures/es256.pem");
    const P384: &str = include_str!("../../tests/fixtures/es384.pem");
    const ED25519: &str = include_str!("../../tests/fixtures/eddsa.pem");
    const P521: &str = include_str!("../../tests/fixtures/unsupported-p521.pem");

    fn parse(pem: &str) -> Result<Key, KeyError> {
        Key::from_pem(None, None, pem)
    }

    #[test]
    fn every_supported_kind_is_read() {
        for (pem, algorithms) in [
            (RSA, vec![Algorithm::Rs256, Algorithm::Ps256]),
            (RSA_PKCS1, vec![Algorithm::Rs256, Algorithm::Ps256]),
            (P256, vec![Algorithm::Es256]),
            (P384, vec![Algorithm::Es384]),
            (ED25519, vec![Algorithm::EdDsa]),
        ] {
            let key = parse(pem).unwrap();
            for algorithm in Algorithm::ALL {
                let is_accepted = algorithms.contains(&algorithm);
                assert_eq!(key.algorithms().contains(algorithm), is_accepted);
                let restricted = Key::from_pem(None, Some(algorithm), pem);
                assert_eq!(restricted.map(|_| ()).is_ok(), is_accepted, "{algorithm:?}");
            }
        }
        let fingerprints = [RSA, RSA_PKCS1].map(|pem| parse(pem).unwrap().fingerprint());
        assert_eq!(fingerprints[0], fingerprints[1], "one key in two forms");
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(parse("").unwrap_err(), KeyError::NotPem);
        assert_eq!(parse("secret").unwrap_err(), KeyError::NotPem);
        assert_eq!(parse(P521).unwrap_err(), KeyError::UnsupportedKind);
        let private = P256.replace("PUBLIC KEY", "PRIVATE KEY");
        assert_eq!(parse(&private).unwrap_err(), KeyError::PrivateKey);
        let certificate = P256.replace("PUBLIC KEY", "CERTIFICATE");
        assert_eq!(parse(&certificate).unwrap_err(), KeyError::NotPem);
        let as_pkcs1 = P256.replace("PUBLIC KEY", "RSA PUBLIC KEY");
        assert_eq!(parse(&as_pkcs1).unwrap_err(), KeyError::Malformed);
    }

    #[test]
    fn a_cut_key_is_refused() {
        for pem in [RSA, P256, P384, ED25519] {
            for cut in 0..pem.trim().len() {
                assert!(parse(&pem[..cut]).is_err(), "cut at {cut}");
            }
        }
    }
}
