//! The error for a client whose change may not have reached all servers.

use throng_access::shared::ShareError;
use throng_wire::{ErrorCode, ErrorResponse};

/// The response to a client whose change, for instance "a revocation", is not known to be made.
pub(crate) fn unshared(error: ShareError, what: &str) -> ErrorResponse {
    let (code, message) = match error {
        ShareError::Busy => (ErrorCode::Busy, "too many changes wait for NATS; try again later"),
        ShareError::Away => (
            ErrorCode::Unavailable,
            "NATS cannot be reached, so nothing is changed on any node; try again later",
        ),
        ShareError::Unknown => (
            ErrorCode::OutcomeUnknown,
            "NATS did not answer in time: it is not known whether this is made; repeat it",
        ),
        ShareError::Refused(reason) => {
            tracing::error!("NATS does not store {what}: {reason}");
            (
                ErrorCode::NotStored,
                "NATS does not store this, and the log says why: nothing is changed on any node",
            )
        }
    };
    ErrorResponse::new(code, message)
}
