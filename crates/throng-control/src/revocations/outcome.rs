//! Errors of revocations, for the operator.

use throng_access::revocation::RevokeError;
use throng_wire::{ErrorCode, ErrorResponse};

/// `false` if there was nothing to lift.
pub(super) type Outcome = Result<bool, ErrorResponse>;

/// The response to an operator whose revocation was not made.
pub(super) fn refusal(error: RevokeError) -> ErrorResponse {
    let code = match error {
        RevokeError::Future => ErrorCode::BadParameter,
        RevokeError::Full(_) => ErrorCode::NotStored,
        RevokeError::Storage(ref cause) => {
            tracing::error!(%cause, "a revocation cannot be stored");
            return ErrorResponse::new(
                ErrorCode::NotStored,
                "the revocation could not be written to the disk, and does not hold",
            );
        }
    };
    ErrorResponse::new(code, error.to_string())
}
