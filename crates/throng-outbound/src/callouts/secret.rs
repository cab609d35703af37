//! Signs requests after the Standard Webhooks convention, version 1, with HMAC-SHA256.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// The prefix of a secret in text.
const PREFIX: &str = "whsec_";

/// The sizes of secrets, in bytes, that the convention allows.
const BYTES_MIN: usize = 24;
const BYTES_MAX: usize = 64;

/// The most secrets of one callout: the new one, and the old one until the application has both.
pub const SECRETS_MAX: usize = 2;

/// Why a text is no secret. The text itself is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret is `whsec_` and {BYTES_MIN} to {BYTES_MAX} random bytes in base64; \
     `echo whsec_$(openssl rand -base64 32)` makes one"
)]
pub struct SecretError;

/// A secret that signs requests. Neither `Debug` nor any error shows it.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secret, SecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError);
        }
        Ok(Secret(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The value of `webhook-signature`: a signature with each of `secrets`, separated by spaces.
pub(super) fn sign(secrets: &[Secret], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let signatures = secrets.iter().map(|Secret(key)| {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{id}.{timestamp_s}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification's libraries.
    #[test]
    fn the_signature_of_the_convention_is_made() {
        let secret: Secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = sign(
            std::slice::from_ref(&secret),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            body,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let both =
            sign(&[secret.clone(), secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(both, format!("{signature} {signature}"));
    }

    #[test]
    fn a_malformed_secret_is_refused_and_not_shown() {
        let of = |length| format!("whsec_{}", STANDARD.encode(vec![7; length]));
        assert!(of(24).parse::<Secret>().is_ok() && of(64).parse::<Secret>().is_ok());
        let plain = of(32)[PREFIX.len()..].to_owned();
        for bad in ["", "whsec_", "whsec_%%%", &of(23), &of(65), &plain] {
            assert_eq!(bad.parse::<Secret>().unwrap_err(), SecretError, "{bad}");
        }
        assert_eq!(format!("{:?}", of(24).parse::<Secret>().unwrap()), "Secret");
    }
}
