//! Signatures: HMAC with SHA-256, in lower-case hexadecimal digits.

use std::fmt;

use ring::hmac;

/// The bytes of a signature.
const SIGNATURE_BYTES: usize = 32;

/// Signs with the secret of an application, and verifies.
pub struct Signer(hmac::Key);

impl Signer {
    /// A signer with this secret.
    pub fn new(secret: &[u8]) -> Signer {
        Signer(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The signature of a text.
    pub fn sign(&self, text: &str) -> String {
        use std::fmt::Write as _;

        let mut digits = String::with_capacity(2 * SIGNATURE_BYTES);
        for byte in hmac::sign(&self.0, text.as_bytes()).as_ref() {
            // Writing to a string does not fail.
            let _ = write!(digits, "{byte:02x}");
        }
        digits
    }

    /// True if this is the signature of the text. Takes the same time for each signature.
    pub fn verifies(&self, text: &str, digits: &str) -> bool {
        read_digits(digits)
            .is_some_and(|signature| hmac::verify(&self.0, text.as_bytes(), &signature).is_ok())
    }
}

/// Shows no secret.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

fn read_digits(digits: &str) -> Option<[u8; SIGNATURE_BYTES]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; SIGNATURE_BYTES];
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != SIGNATURE_BYTES {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The secret of the vectors that the protocol publishes.
    pub(crate) const SECRET: &str = "7ad3773142a6692b25b8";

    #[test]
    fn signatures_are_those_of_the_libraries() {
        let signer = Signer::new(SECRET.as_bytes());
        for (text, signature) in [
            (
                "1234.1234:private-foobar",
                "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4",
            ),
            (
                "1234.1234:presence-foobar:\
                 {\"user_id\":10,\"user_info\":{\"name\":\"Mr. Channels\"}}",
                "31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80",
            ),
            (
                "1234.1234::user::{\"id\":\"12345\"}",
                "4708d583dada6a56435fb8bc611c77c359a31eebde13337c16ab43aa6de336ba",
            ),
            (
                "{\"time_ms\":1327078148132,\"events\":\
                 [{\"name\":\"channel_occupied\",\"channel\":\"my-channel\"}]}",
                "c19001ae3963ccb13bf618e5b16ba9848e7e74df0993aa0689168e341c6833cf",
            ),
        ] {
            assert_eq!(signer.sign(text), signature, "{text}");
            assert!(signer.verifies(text, signature));
            assert!(!signer.verifies(&text[1..], signature));
            assert!(!signer.verifies(text, &signature[2..]));
            assert!(!signer.verifies(text, &signature.to_uppercase()));
            assert!(!Signer::new(b"another").verifies(text, signature));
        }
        assert_eq!(format!("{signer:?}"), "Signer");
        for bad in ["", "0", "zz", &"é".repeat(32), &"0".repeat(63), &"0".repeat(66)] {
            assert!(!signer.verifies("a", bad), "{bad}");
        }
    }
}
