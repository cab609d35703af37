//! Revocations that several servers share: written to where all of them read, and then answered.

use throng_access::revocation::{ShareError, SharedChange, SharedRevocations};
use throng_core::{Ticket, clock};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;

use super::outcome::{Outcome, refusal};

/// Makes a change on all servers. When it returns, the change is stored, and made here; a server
/// that can be reached makes it within a moment.
pub(super) async fn change(shared: &SharedRevocations, change: SharedChange) -> Outcome {
    if let SharedChange::Lift(subject) = &change
        && shared.revocations().find(subject).is_none()
    {
        return Ok(false);
    }
    let (done, outcome) = oneshot::channel();
    let ticket = Ticket::new(|outcome| {
        // Fails if the operator has gone.
        let _ = done.send(outcome);
    });
    shared.change(change, clock::machine_ms() / 1000, ticket).map_err(refusal)?;
    match outcome.await.ok().flatten() {
        Some(Ok(())) => Ok(true),
        Some(Err(error)) => Err(unshared(error)),
        None => Err(ErrorCode::Draining.into()),
    }
}

/// The response to an operator whose change is not known to be made.
fn unshared(error: ShareError) -> ErrorResponse {
    let (code, message) = match error {
        ShareError::Busy => {
            (ErrorCode::Busy, "too many revocations wait for NATS; try again later")
        }
        ShareError::Away => (
            ErrorCode::Unavailable,
            "NATS cannot be reached, so nothing is changed on any node; try again later",
        ),
        ShareError::Unknown => (
            ErrorCode::OutcomeUnknown,
            "NATS did not answer in time: it is not known whether this is made; repeat it",
        ),
        ShareError::Refused(reason) => {
            tracing::error!("NATS does not store a revocation: {reason}");
            (
                ErrorCode::NotStored,
                "NATS does not store this, and the log says why: nothing is changed on any node",
            )
        }
    };
    ErrorResponse::new(code, message)
}
