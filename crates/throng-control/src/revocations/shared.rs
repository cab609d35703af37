//! Revocations that several servers share: written to where all of them read, and then answered.

use std::sync::Arc;
use std::time::Duration;

use throng_access::Revocations;
use throng_access::revocation::{SharedChange, SharedRevocations};
use throng_access::shared::ShareError;
use throng_core::{Ticket, clock};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::outcome::{Outcome, refusal};
use crate::unshared::unshared;

const WHAT: &str = "a revocation";

/// How long comparing with what the servers share may take: as long as a change.
const COMPARE: Duration = Duration::from_secs(4);

/// Makes a change on all servers. When it returns, the change is stored, and made here; a server
/// that can be reached makes it within a moment.
pub(super) async fn change(shared: &SharedRevocations, change: SharedChange) -> Outcome {
    if let SharedChange::Lift(subject) = &change
        && shared.revocations().find(subject).is_none()
    {
        // Another server may have made it a moment ago.
        compare(shared).await?;
        if shared.revocations().find(subject).is_none() {
            return Ok(false);
        }
    }
    let (done, outcome) = oneshot::channel();
    let ticket = Ticket::new(|outcome| {
        // Fails if the operator has gone.
        let _ = done.send(outcome);
    });
    shared.change(change, clock::machine_ms() / 1000, ticket).map_err(refusal)?;
    match outcome.await.ok().flatten() {
        Some(Ok(())) => Ok(true),
        Some(Err(error)) => Err(unshared(error, WHAT)),
        None => Err(ErrorCode::Draining.into()),
    }
}

/// Takes all that the servers share now.
async fn compare(shared: &SharedRevocations) -> Result<(), ErrorResponse> {
    let (done, compared) = oneshot::channel();
    shared.compare(Ticket::new(|outcome| {
        // Fails if the operator has gone, or was told that it takes too long.
        let _ = done.send(outcome);
    }));
    match timeout(COMPARE, compared).await {
        Ok(Ok(Some(()))) => Ok(()),
        _ => Err(unshared(ShareError::Away, WHAT)),
    }
}

/// The revocations that hold, once all that the servers share were taken.
pub(super) fn known(shared: &SharedRevocations) -> Result<&Arc<Revocations>, ErrorResponse> {
    if shared.is_known() {
        return Ok(shared.revocations());
    }
    let message = "this server has not read the revocations from NATS yet; try again later";
    Err(ErrorResponse::new(ErrorCode::Unavailable, message))
}
