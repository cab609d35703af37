//! Takes the sockets in, and sees them off when the server shuts down.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::answer::Code;
use crate::connection;
use crate::control::Control;
use crate::edge::Arrivals;
use crate::service::Service;

/// After an error sockets are asked for again so much later: it is not over at once, and the log
/// must not be flooded.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Connections beyond [`Settings::connections_max`](crate::Settings::connections_max) that are kept
/// for a moment, to tell them that there is no room. Still further ones are closed.
const REFUSALS_MAX: usize = 64;

/// Serves what arrives, until there is nothing more to come and all has ended, or until `drain` is
/// ready. From then on connections end with the request that they are at, and requests to publish
/// or to subscribe are refused; returns when all have ended, or after `drain_timeout`.
pub async fn serve(
    control: Arc<Control>,
    mut arrivals: impl Arrivals,
    drain: impl Future<Output = ()>,
) {
    let service = Service::new(Arc::clone(&control));
    let (announce, draining) = watch::channel(false);
    let connections_max = control.settings.connections_max;
    let mut connections = JoinSet::new();
    let mut drain = pin!(drain);
    let mut deadline = pin!(sleep_until(Instant::now()));
    let mut is_open = true;
    let mut is_draining = false;
    while is_open || is_draining || !connections.is_empty() {
        tokio::select! {
            biased;
            () = &mut drain, if !is_draining => {
                is_draining = true;
                control.start_draining();
                announce.send_replace(true);
                deadline.as_mut().reset(Instant::now() + control.settings.drain_timeout);
            }
            () = &mut deadline, if is_draining => {
                tracing::warn!(connections = connections.len(), "requests cut off by shutdown");
                break;
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            arrival = arrivals.next(), if is_open => match arrival {
                Ok(Some(arrival)) if connections.len() < connections_max => {
                    let life = Life::begin(&control);
                    let (service, draining) = (service.clone(), draining.clone());
                    connections.spawn(async move {
                        connection::run(&life.0, service, arrival, draining).await;
                    });
                }
                Ok(Some(arrival)) if connections.len() < connections_max + REFUSALS_MAX => {
                    let life = Life::begin(&control);
                    connections.spawn(async move {
                        connection::refuse(&life.0, arrival).await;
                    });
                }
                Ok(Some(_)) => control.figures.refused(Code::Full).add(1),
                Ok(None) => is_open = false,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken over");
                    sleep(ERROR_PAUSE).await;
                }
            },
            // Last of all: what has arrived by now is still served.
            () = ready(()), if is_draining && connections.is_empty() => break,
        }
    }
    connections.shutdown().await;
}

/// Counts a connection for as long as it is there.
struct Life(Arc<Control>);

impl Life {
    fn begin(control: &Arc<Control>) -> Life {
        control.figures.connections.add(1);
        Life(Arc::clone(control))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.figures.connections.subtract(1);
    }
}
