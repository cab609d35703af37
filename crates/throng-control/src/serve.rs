//! Runs the control plane: accepts the sockets of both listeners, and shuts down.

mod admin;
mod public;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::api::erase_user;
use crate::canary;
use crate::control::Control;
use crate::edge::HandoffReceiver;
use crate::mortal;
use crate::service::Service;
use crate::status::history::StatusHistory;
use crate::status::sampler::Sampler;
pub use admin::AdminListener;
use public::PublicConnections;

/// Publications in progress end at `drain_timeout`. This much later their connections are closed,
/// whether or not the clients have read the responses.
const FINAL_RESPONSES: Duration = Duration::from_secs(1);

/// Serves the sockets of `receiver` until `drain` is ready, or until `receiver` ends and all
/// connections have ended.
///
/// Once `drain` is ready, each connection ends with the request in progress, and requests to
/// publish or to subscribe are refused. When no publication is in progress, and after
/// `drain_timeout` at the latest, calls `drain_workers`, which must start the drain of the workers.
/// Until the workers have ended, sockets that they hand off are still answered. Returns when both
/// planes have no connections left, or a few seconds after `drain_timeout`.
///
/// Connections to the listener `admin`, if there is one, are accepted until the end, so that
/// operators can watch the drain.
pub async fn serve(
    control: Arc<Control>,
    receiver: impl HandoffReceiver,
    admin: Option<AdminListener>,
    drain: impl Future<Output = ()>,
    drain_workers: impl FnOnce(),
) {
    let history = Arc::new(StatusHistory::new(Arc::clone(&control.charts)));
    let sampler = Sampler::new(Arc::clone(&control), Arc::clone(&history));
    let sampler = tokio::spawn(sampler.run());
    let revocations = control.take_revocation_task().map(|task| tokio::spawn(task.run()));
    let erasures = tokio::spawn(erase_user::run(Arc::clone(&control)));
    let mortal = tokio::spawn(mortal::run(Arc::clone(&control)));
    let canary = tokio::spawn(canary::run(Arc::clone(&control)));
    let service = Service::new(Arc::clone(&control), history);
    let (end_admin, admin_ends) = oneshot::channel();
    let admin = admin.map(|listener| {
        tokio::spawn(admin::serve(Arc::clone(&control), service.clone(), listener, admin_ends))
    });
    let mut public = PublicConnections::new(Arc::clone(&control), service, receiver);
    public.serve_until(drain).await;
    let deadline = Instant::now() + control.settings.drain_timeout;
    // Its connections must not delay the drain.
    canary.abort();
    erasures.abort();
    mortal.abort();
    let subscribers = control.edge.metrics().connections.iter().sum::<u64>();
    control.refusals.begin_drain(subscribers.saturating_add(control.connections()));
    control.drain.begin(deadline);
    let close_at = deadline + FINAL_RESPONSES;
    let finished = timeout_at(close_at, control.drain.publications_finished());
    public.serve_until(async { drop(finished.await) }).await;
    // Not before: the workers still have to deliver what these publications append.
    drain_workers();
    public.drain(deadline, close_at).await;
    drop(end_admin);
    if let Some(mut admin) = admin
        && timeout_at(close_at, &mut admin).await.is_err()
    {
        admin.abort();
    }
    sampler.abort();
    if let Some(revocations) = revocations {
        revocations.abort();
        // Until the task is dropped it holds the lock of its file.
        drop(revocations.await);
    }
    public.shutdown().await;
}
