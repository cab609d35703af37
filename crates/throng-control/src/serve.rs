//! Takes the sockets in, and sees them off when the server shuts down.

mod admin;

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use throng_core::Listener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout_at};

use crate::control::Control;
use crate::edge::{Arrival, Arrivals};
use crate::service::Service;
use crate::socket::close;
use crate::socket::connection;
use crate::socket::connection_set::Guests;
use crate::status::Sampler;

/// After an error sockets are asked for again so much later: it is not over at once, and the log
/// must not be flooded.
pub(crate) const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Places beyond [`Settings::connections_max`](crate::Settings::connections_max), so that a server
/// full of subscribers can still be published to. When they are taken, whoever has been silent for
/// longest gives way.
const RESERVE: usize = 64;

/// Connections for which there is no room that are kept for a moment, until they have heard it.
/// Still further ones are told so and closed.
const REFUSALS_MAX: usize = 64;

/// At the end, whether the workers have ended is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// And they are found to have ended, and nobody to be here, so often in a row: a socket on its way
/// from one plane to the other is counted by neither for a moment.
const LOOKS: u32 = 2;

/// Publications under way end with the drain timeout, and their clients are told; so much later
/// the connections that are still there are cut off.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// And so much after the drain timeout nobody is waited for any more. By then the workers, which
/// have the same timeout, have closed everything.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Serves what arrives, until there is nothing more to come and all has ended, or until `drain` is
/// ready. From then on connections end with the request that they are at, and requests to publish
/// or to subscribe are refused.
///
/// Once no publication is under way, which is after `drain_timeout` at the latest, calls `part`,
/// which is to tell the workers to send everybody home. Meanwhile what still comes from them is
/// answered. Returns when neither plane has anybody left, or a few seconds after `drain_timeout`.
///
/// Connections to `admin`, if there is such a listener, are accepted until the end: they see the
/// drain.
pub async fn serve(
    control: Arc<Control>,
    arrivals: impl Arrivals,
    admin: Option<TcpListener>,
    drain: impl Future<Output = ()>,
    part: impl FnOnce(),
) {
    let sampler = tokio::spawn(Sampler::new(Arc::clone(&control)).run());
    let service = Service::new(Arc::clone(&control));
    let (end_admin, admin_ends) = oneshot::channel();
    let admin = admin.map(|listener| {
        tokio::spawn(admin::serve(Arc::clone(&control), service.clone(), listener, admin_ends))
    });
    let mut house = House {
        service,
        arrivals,
        is_open: true,
        guests: Guests::default(),
        refusals: JoinSet::new(),
        control: Arc::clone(&control),
    };
    house.receive_until(drain).await;
    let deadline = Instant::now() + control.settings.drain_timeout;
    control.drain.begin(deadline);
    let settled = timeout_at(deadline + LAST_WORDS, control.drain.settled());
    house.receive_until(async { drop(settled.await) }).await;
    part();
    house.see_off(deadline).await;
    drop(end_admin);
    if let Some(mut admin) = admin
        && timeout_at(deadline + LAST_WORDS, &mut admin).await.is_err()
    {
        admin.abort();
    }
    sampler.abort();
    house.guests.shutdown().await;
    house.refusals.shutdown().await;
}

/// Everybody who is here.
struct House<A> {
    control: Arc<Control>,
    service: Service,
    arrivals: A,
    /// Whether somebody may still come.
    is_open: bool,
    guests: Guests,
    refusals: JoinSet<()>,
}

impl<A: Arrivals> House<A> {
    /// Takes in what arrives until `end` is ready, or nobody is there nor will come.
    async fn receive_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        while self.is_open || !self.is_empty() {
            tokio::select! {
                biased;
                () = &mut end => return,
                () = self.turn() => {}
            }
        }
    }

    /// Answers what still comes from the workers, until they have ended.
    async fn see_off(&mut self, deadline: Instant) {
        let mut looks = interval(LOOK_INTERVAL);
        let mut empty_looks = 0;
        let mut is_cut = false;
        while empty_looks < LOOKS {
            tokio::select! {
                biased;
                now = looks.tick() => {
                    let is_empty = self.is_empty() && self.control.edge.has_ended();
                    empty_looks = if is_empty { empty_looks + 1 } else { 0 };
                    if now >= deadline + LAST_LOOK {
                        return;
                    }
                    if now >= deadline + LAST_WORDS && !is_cut {
                        is_cut = true;
                        self.cut_off();
                    }
                }
                () = self.turn() => {}
            }
        }
    }

    fn cut_off(&mut self) {
        if !self.guests.is_empty() {
            tracing::warn!(connections = self.guests.len(), "requests cut off by shutdown");
        }
        self.guests.abort_all();
    }

    fn is_empty(&self) -> bool {
        self.guests.is_empty() && self.refusals.is_empty()
    }

    /// Somebody leaves or comes. Nothing is lost if this is dropped before.
    async fn turn(&mut self) {
        tokio::select! {
            biased;
            Some(_) = self.guests.join_next() => {}
            Some(_) = self.refusals.join_next() => {}
            arrival = self.arrivals.next(), if self.is_open => self.take(arrival).await,
            // Nobody is here and nobody comes: whoever waits for a turn has something else to do.
            else => std::future::pending().await,
        }
    }

    async fn take(&mut self, arrival: io::Result<Option<Arrival>>) {
        match arrival {
            Ok(Some(arrival)) if self.has_room() || self.make_way() => {
                let (life, service) = (Life::begin(&self.control), self.service.clone());
                let listener = Listener::Public;
                self.guests.spawn(|activity| async move {
                    connection::run(&life.0, service, listener, arrival, &activity).await;
                });
            }
            Ok(Some(arrival)) if self.refusals.len() < REFUSALS_MAX => {
                let life = Life::begin(&self.control);
                self.refusals.spawn(async move {
                    connection::refuse(&life.0, arrival).await;
                });
            }
            Ok(Some(Arrival { stream, bytes })) => {
                close::refuse_full_at_once(&self.control, stream, &bytes);
            }
            Ok(None) => self.is_open = false,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken over");
                sleep(ERROR_PAUSE).await;
            }
        }
    }

    fn make_way(&mut self) -> bool {
        let is_made = self.guests.make_way();
        self.control.figures.closed_for_room.add(is_made.into());
        is_made
    }

    fn has_room(&self) -> bool {
        let settings = &self.control.settings;
        let own = self.guests.len();
        let subscribers = usize::try_from(self.control.edge.subscribers()).unwrap_or(usize::MAX);
        own < settings.own_connections_max
            && subscribers.saturating_add(own) < settings.connections_max.saturating_add(RESERVE)
    }
}

/// Counts a connection for as long as it is there.
pub(crate) struct Life(pub(crate) Arc<Control>);

impl Life {
    pub(crate) fn begin(control: &Arc<Control>) -> Life {
        control.figures.connections.add(1);
        Life(Arc::clone(control))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.figures.connections.subtract(1);
    }
}
