//! Tokens: JSON Web Tokens (RFC 7519) in the compact serialisation (RFC 7515 section 7.1).
//!
//! | module | what it is |
//! |---|---|
//! | `limits` | sizes and numbers |
//! | `error` | why a token is refused |
//! | `compact` | the three parts of a token, and its header |
//! | `claims` | the claims, and whether they hold now |
//! | `identity` | what a verified token says |
//! | `sign` | makes tokens with a secret |
//! | `key_pair` | makes tokens with a private key |
//! | `decode` | reads tokens without trusting them |
//!
//! # What is checked, in this order
//!
//! Size and form; the header: a known algorithm, no critical extension, no other type of token; the
//! signature, with the keys that the server has and that accept the algorithm; then the claims. The
//! members `jku`, `x5u`, `x5c` and `jwk` of a header, by which a token would name its own key, are
//! ignored. Nothing of a claim is looked at before the signature holds.

mod claims;
mod compact;
mod decode;
mod error;
mod identity;
mod key_pair;
mod limits;
mod sign;

pub use claims::Policy;
pub use decode::{Untrusted, decode};
pub use error::TokenError;
pub use identity::{Identity, TokenId};
pub use key_pair::{KeyPair, KeyPairError};
pub use limits::{CLAIMS_MAX, TOKEN_BYTES_MAX};
pub use sign::Signer;

use crate::grants::GrantsPool;
use crate::keys::{Candidates, KeySet};
use compact::Compact;

/// Verifies a token at `now_s`, in seconds since 1970. `pool` shares grants among tokens with the
/// same claim. Whether the token is revoked is not checked here.
///
/// # Errors
///
/// See [`TokenError`]. [`TokenError::UnknownKey`] may be cured by a newer key set.
pub fn verify(
    token: &str,
    keys: &KeySet,
    policy: &Policy,
    pool: &GrantsPool,
    now_s: u64,
) -> Result<Identity, TokenError> {
    let compact = Compact::split(token)?;
    let header = compact.header()?;
    let (candidates, is_known) = match keys.candidates(header.key_id.as_deref(), header.algorithm) {
        Candidates::Keys { keys, is_known } => (keys, is_known),
        Candidates::AlgorithmRefused => return Err(TokenError::Algorithm),
        Candidates::Unknown => return Err(TokenError::UnknownKey),
    };
    let signature = compact.signature()?;
    let signed = compact.signed.as_bytes();
    let signer = candidates
        .into_iter()
        .find(|key| key.verifies(header.algorithm, signed, &signature))
        .ok_or(if is_known { TokenError::Signature } else { TokenError::UnknownKey })?;
    claims::check(&compact.payload()?, policy, pool, signer, now_s)
}

/// Roughly how long [`verify`] takes, in microseconds.
pub(crate) fn verification_us(token: &str, keys: &KeySet) -> u64 {
    let header = Compact::split(token).and_then(|compact| compact.header());
    // A token without a header that fits is refused at once.
    header.map_or(0, |header| keys.verification_us(header.key_id.as_deref(), header.algorithm))
}
