//! Reads a token without verifying it: for tools that show what is in one.

use super::compact::Compact;
use super::error::TokenError;

/// The header and the claims of a token, which anybody may have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    /// The header, which should be a JSON object.
    pub header: String,
    /// The claims, which should be a JSON object.
    pub claims: String,
}

/// The contents of a token, unverified.
///
/// # Errors
///
/// [`TokenError::TooLong`], and [`TokenError::Malformed`] if it does not have three parts in
/// base64url with text in the first two.
pub fn decode(token: &str) -> Result<Untrusted, TokenError> {
    let compact = Compact::split(token)?;
    compact.signature()?;
    Ok(Untrusted { header: compact.header_text()?, claims: compact.payload()? })
}
