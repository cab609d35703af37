//! Why a client is not identified.

use throng_wire::{ErrorCode, ErrorResponse};

use crate::authenticator::Refusal;
use crate::limit;
use crate::refusal::KeyRefusal;

/// Why it is not known who a client is, or why it is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The client gets this error.
    Error(ErrorResponse),
    /// A limit is reached. The client is told when there is room again.
    Limited(limit::Refusal),
}

impl Refused {
    /// The server has no keys for tokens, and got one.
    pub(super) fn no_token_keys() -> Refused {
        let message = "this server has no keys that verify tokens";
        Refused::Error(ErrorResponse::new(ErrorCode::InvalidToken, message))
    }

    /// True if the application does not know the client, or is not asked about strangers at its
    /// address any more. It may still show who it is.
    pub(super) fn is_of_stranger(&self) -> bool {
        match self {
            Refused::Error(error) => error.code == ErrorCode::Unauthorized,
            Refused::Limited(refusal) => refusal.quantity == limit::Quantity::BadTokens,
        }
    }

    /// The code of the client's error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Refused::Error(error) => error.code,
            Refused::Limited(_) => ErrorCode::TooManyRequests,
        }
    }
}

impl From<ErrorResponse> for Refused {
    fn from(error: ErrorResponse) -> Refused {
        Refused::Error(error)
    }
}

impl From<limit::Refusal> for Refused {
    fn from(refusal: limit::Refusal) -> Refused {
        Refused::Limited(refusal)
    }
}

impl From<KeyRefusal> for Refused {
    fn from(refusal: KeyRefusal) -> Refused {
        Refused::Error(refusal.into())
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        match refusal {
            Refusal::Limited(refusal) => Refused::Limited(refusal),
            refusal => Refused::Error(refusal.into()),
        }
    }
}
