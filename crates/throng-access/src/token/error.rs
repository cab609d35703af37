//! Why a token is refused.

use throng_wire::name::NameError;

use crate::grants::GrantsError;

/// Why a token is refused. No sentence contains a part of the token but the name of an unknown
/// member of a claim that its issuer has signed, and each fits into a WebSocket's close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is longer than [`TOKEN_BYTES_MAX`](super::TOKEN_BYTES_MAX).
    #[error("the token is longer than {} KiB", super::limits::TOKEN_BYTES_MAX >> 10)]
    TooLong,
    /// It does not have three parts in base64url with JSON objects in the first two.
    #[error("the token is malformed: it needs three parts in base64url, separated by dots")]
    Malformed,
    /// Its header has critical extensions (`crit`), none of which the server knows.
    #[error("the token needs an extension (`crit`) that this server does not have")]
    Critical,
    /// Its header names a type that is not one of an access token.
    #[error("the token has a type (`typ`) other than JWT and at+jwt")]
    Type,
    /// No key accepts the algorithm that it names.
    #[error("no key of this server accepts the algorithm (`alg`) of the token")]
    Algorithm,
    /// No key has the id that it names, and no key without an id made its signature. A newer key
    /// set may have the key.
    #[error("no key of this server has the id (`kid`) of the token, or made its signature")]
    UnknownKey,
    /// The signature is not one by a key of the server.
    #[error("the signature of the token is wrong")]
    Signature,
    /// The same claim is there twice, so that two programs could read it differently.
    #[error("the token has the same claim twice")]
    DuplicateClaim,
    /// It has more claims than [`CLAIMS_MAX`](super::CLAIMS_MAX).
    #[error("the token has more than {} claims", super::limits::CLAIMS_MAX)]
    TooManyClaims,
    /// A claim has the wrong form. The field is its name.
    #[error("the claim `{0}` of the token has the wrong form")]
    ClaimForm(&'static str),
    /// It has no `exp`.
    #[error("the token has no expiry (`exp`)")]
    NoExpiry,
    #[error("the token has expired")]
    Expired,
    /// Its `nbf` or its `iat` is yet to come.
    #[error("the token is not valid yet (`nbf`, `iat`)")]
    NotYetValid,
    /// It lives longer than the policy allows.
    #[error("the token is valid for longer than `max-token-age`")]
    LivesTooLong,
    /// Its `aud` is not one of the policy's.
    #[error("the token is for another audience (`aud`)")]
    Audience,
    /// Its `iss` is not one of the policy's.
    #[error("the token is from an issuer (`iss`) that this server does not accept")]
    Issuer,
    /// Its `sub` is no valid name of a user.
    #[error("the user (`sub`) of the token is invalid: {0}")]
    User(NameError),
    /// Its `sub` is no user of the application that has signed it.
    #[error("the user (`sub`) of the token is not one of its application: the prefix is missing")]
    App,
    #[error("{0}")]
    Grants(#[from] GrantsError),
    /// It was revoked, or everything that its user was issued at that time.
    #[error("the token is revoked")]
    Revoked,
}

impl TokenError {
    /// All values of [`TokenError::label`].
    pub(crate) const LABELS: [&str; 20] = [
        "too_long",
        "malformed",
        "critical",
        "type",
        "algorithm",
        "unknown_key",
        "signature",
        "duplicate_claim",
        "too_many_claims",
        "claim_form",
        "no_expiry",
        "expired",
        "not_yet_valid",
        "lives_too_long",
        "audience",
        "issuer",
        "user",
        "app",
        "grants",
        "revoked",
    ];

    /// A short word for counters.
    pub fn label(self) -> &'static str {
        match self {
            TokenError::TooLong => "too_long",
            TokenError::Malformed => "malformed",
            TokenError::Critical => "critical",
            TokenError::Type => "type",
            TokenError::Algorithm => "algorithm",
            TokenError::UnknownKey => "unknown_key",
            TokenError::Signature => "signature",
            TokenError::DuplicateClaim => "duplicate_claim",
            TokenError::TooManyClaims => "too_many_claims",
            TokenError::ClaimForm(_) => "claim_form",
            TokenError::NoExpiry => "no_expiry",
            TokenError::Expired => "expired",
            TokenError::NotYetValid => "not_yet_valid",
            TokenError::LivesTooLong => "lives_too_long",
            TokenError::Audience => "audience",
            TokenError::Issuer => "issuer",
            TokenError::User(_) => "user",
            TokenError::App => "app",
            TokenError::Grants(_) => "grants",
            TokenError::Revoked => "revoked",
        }
    }

    /// True if the signature is missing or wrong, so that the token may be a guess. Such refusals
    /// count against the client's address.
    pub(crate) fn is_forged(self) -> bool {
        matches!(
            self,
            TokenError::TooLong
                | TokenError::Malformed
                | TokenError::Critical
                | TokenError::Type
                | TokenError::Algorithm
                | TokenError::UnknownKey
                | TokenError::Signature
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::PatternError;

    #[test]
    fn sentences_fit_into_a_close_frame() {
        for error in [
            TokenError::Malformed,
            TokenError::Critical,
            TokenError::Issuer,
            TokenError::App,
            TokenError::ClaimForm("throng"),
            TokenError::User(NameError::DotSegment("user")),
            TokenError::Grants(GrantsError::Pattern(PatternError::NoSeparator)),
        ] {
            assert!(error.to_string().len() <= 123, "{error}");
            assert!(TokenError::LABELS.contains(&error.label()));
        }
    }
}
