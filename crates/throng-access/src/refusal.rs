//! Why a credential is refused, as the response that its client gets.

use std::sync::Arc;

use throng_wire::credential::Place;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::access_control::AccessControl;
use crate::authenticator::Refusal;
use crate::server_key::{PREFIX, ServerKey, ServerKeyError};
use crate::token::TokenError;

/// Why a server key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// A page sends the request: everybody who opens the page could read the key.
    #[error("a server key is refused from a page, and this request has an `Origin`")]
    FromPage,
    /// It stands in place of a token: in a URL, a cookie, a sub-protocol or a command, where it is
    /// logged or sent by itself, or where only pages show something.
    #[error("this is a server key, not a token: it counts in the header `Authorization` only")]
    Place,
    /// It is malformed or unknown.
    #[error(transparent)]
    Key(#[from] ServerKeyError),
}

impl KeyRefusal {
    /// A short word for counters.
    pub fn label(self) -> &'static str {
        match self {
            KeyRefusal::FromPage => "server_key_of_page",
            KeyRefusal::Place => "server_key_place",
            KeyRefusal::Key(error) => error.label(),
        }
    }
}

impl From<KeyRefusal> for ErrorResponse {
    fn from(refusal: KeyRefusal) -> ErrorResponse {
        let code = match refusal {
            KeyRefusal::FromPage | KeyRefusal::Place => ErrorCode::Forbidden,
            KeyRefusal::Key(_) => ErrorCode::InvalidToken,
        };
        ErrorResponse::new(code, refusal.to_string())
    }
}

impl From<TokenError> for ErrorResponse {
    fn from(error: TokenError) -> ErrorResponse {
        let code = match error {
            TokenError::Expired => ErrorCode::TokenExpired,
            TokenError::Revoked => ErrorCode::TokenRevoked,
            _ => ErrorCode::InvalidToken,
        };
        ErrorResponse::new(code, error.to_string())
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> ErrorResponse {
        match refusal {
            Refusal::Token(error) => error.into(),
            Refusal::KeysUnavailable { .. } | Refusal::TooManyWaiting => {
                ErrorResponse::new(ErrorCode::Busy, refusal.to_string())
            }
            Refusal::Limited(refusal) => refusal.into(),
        }
    }
}

impl AccessControl {
    /// The server key that a request shows as this text in this place; `None` if it shows a token.
    /// `has_origin` says whether the request has an `Origin`. A page learns nothing about whether a
    /// key is right.
    pub fn server_key(
        &self,
        (text, place): (&str, Place),
        has_origin: impl FnOnce() -> bool,
    ) -> Option<Result<Arc<ServerKey>, KeyRefusal>> {
        if !text.starts_with(PREFIX) {
            return None;
        }
        if has_origin() {
            return Some(Err(KeyRefusal::FromPage));
        }
        if place != Place::Header {
            return Some(Err(KeyRefusal::Place));
        }
        Some(self.server_keys.load().find(text).map_err(KeyRefusal::Key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::AllowAll;
    use crate::refused_credentials::OTHER_REASONS;
    use crate::server_key::{KeyHash, ServerKeys, generate};
    use arc_swap::ArcSwap;
    use throng_wire::credential::of_request;

    fn with_key(key: &str) -> AccessControl {
        let key = ServerKey::new("app", KeyHash::of(key).unwrap(), vec![], None);
        let server_keys = ServerKeys::new(vec![key]).unwrap();
        AccessControl {
            server_keys: ArcSwap::from_pointee(server_keys),
            ..AccessControl::open(Arc::new(AllowAll))
        }
    }

    /// The meaning of `text` in a header; `None` if it counts as a token.
    fn shown(
        access: &AccessControl,
        header: &'static str,
        text: &str,
        has_origin: bool,
    ) -> Option<Result<(), KeyRefusal>> {
        let values = |name: &'static str| (name == header).then_some(text.as_bytes()).into_iter();
        let credential = of_request(values, Some("c")).unwrap().expect("it shows something");
        let found = access.server_key((credential.text(), credential.place()), || has_origin)?;
        Some(found.map(|key| assert_eq!(key.name(), "app")))
    }

    #[test]
    fn a_key_counts_in_the_header_and_without_an_origin() {
        let [key, other] = [generate(), generate()].map(Result::unwrap);
        let access = with_key(&key);
        let bearer = |key: &str| format!("Bearer {key}");
        let shown = |header, text: &str, has_origin| shown(&access, header, text, has_origin);
        assert_eq!(shown("authorization", &bearer(&key), false), Some(Ok(())));
        let from_page = Some(Err(KeyRefusal::FromPage));
        assert_eq!(shown("authorization", &bearer(&key), true), from_page);
        assert_eq!(shown("authorization", &bearer(&other), true), from_page);
        assert_eq!(shown("cookie", &format!("c={key}"), false), Some(Err(KeyRefusal::Place)));
        let unknown = Some(Err(KeyRefusal::Key(ServerKeyError::Unknown)));
        assert_eq!(shown("authorization", &bearer(&other), false), unknown);
        let mistyped = Some(Err(KeyRefusal::Key(ServerKeyError::Mistyped)));
        assert_eq!(shown("authorization", &bearer(&key[..40]), false), mistyped);
        assert_eq!(shown("authorization", "Bearer a.b.c", true), None);
    }

    #[test]
    fn refusals_have_codes_and_labels() {
        for (error, code) in [
            (TokenError::Expired, ErrorCode::TokenExpired),
            (TokenError::Revoked, ErrorCode::TokenRevoked),
            (TokenError::Signature, ErrorCode::InvalidToken),
        ] {
            assert_eq!(ErrorResponse::from(error).code, code);
            assert_eq!(ErrorResponse::from(Refusal::Token(error)).code, code);
        }
        let unavailable = Refusal::KeysUnavailable { retry_ms: 1 };
        assert_eq!(ErrorResponse::from(unavailable).code, ErrorCode::Busy);
        for refusal in [
            KeyRefusal::FromPage,
            KeyRefusal::Place,
            KeyRefusal::Key(ServerKeyError::Unknown),
            KeyRefusal::Key(ServerKeyError::Mistyped),
        ] {
            assert!(OTHER_REASONS.contains(&refusal.label()));
            assert!(refusal.to_string().len() <= 123);
        }
    }
}
