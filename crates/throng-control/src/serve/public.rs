//! The connections that workers hand off to the control plane.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use throng_core::Listener;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use crate::control::Control;
use crate::edge::{Handoff, HandoffReceiver};
use crate::metrics::HttpCounter;
use crate::service::Service;
use crate::socket::close;
use crate::socket::connection::ControlConnection;
use crate::socket::connection_set::ConnectionSet;

/// How long to wait before the next attempt after a socket could not be received. The cause lasts,
/// and the log must not be flooded.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Control connections allowed beyond
/// [`Settings::max_connections`](crate::Settings::max_connections), so that a server full of
/// subscribers can still be published to. Beyond these, the connection that has been idle for
/// longest is closed for a new one.
const EXTRA_CONNECTIONS: usize = 64;

/// Over-limit connections kept open long enough to receive the 503. Further ones are closed right
/// after the response is written.
const REFUSALS_MAX: usize = 64;

/// How often shutdown checks whether all connections have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Consecutive checks without connections before shutdown completes; a socket being handed off is
/// briefly counted by neither plane.
const EMPTY_CHECKS: u32 = 2;

/// Hard deadline after `drain_timeout`. By then the workers, which have the same timeout, have
/// closed all connections.
const HARD_DEADLINE: Duration = Duration::from_secs(5);

/// All public connections, and the source of new ones.
pub(super) struct PublicConnections<A> {
    control: Arc<Control>,
    service: Service,
    receiver: A,
    /// True if `receiver` may have more sockets.
    is_open: bool,
    connections: ConnectionSet,
    /// Over-limit connections that are receiving their 503.
    refusals: JoinSet<()>,
}

impl<A: HandoffReceiver> PublicConnections<A> {
    pub(super) fn new(control: Arc<Control>, service: Service, receiver: A) -> Self {
        let (connections, refusals) = (ConnectionSet::default(), JoinSet::new());
        PublicConnections { control, service, receiver, is_open: true, connections, refusals }
    }

    /// Accepts sockets until `end` is ready, or until no connection is left and none will arrive.
    pub(super) async fn serve_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        while self.is_open || !self.is_empty() {
            tokio::select! {
                biased;
                () = &mut end => return,
                () = self.next_event() => {}
            }
        }
    }

    /// Waits until both planes have no connections left. Sockets that the workers hand off
    /// meanwhile are still answered. Connections that are open at `close_at` are closed.
    pub(super) async fn drain(&mut self, deadline: Instant, close_at: Instant) {
        let mut checks = interval(CHECK_INTERVAL);
        let mut empty_checks = 0;
        let mut is_closed = false;
        while empty_checks < EMPTY_CHECKS {
            tokio::select! {
                biased;
                now = checks.tick() => {
                    let is_empty = self.is_empty() && self.control.edge.has_ended();
                    empty_checks = if is_empty { empty_checks + 1 } else { 0 };
                    if now >= deadline + HARD_DEADLINE {
                        return;
                    }
                    if now >= close_at && !is_closed {
                        is_closed = true;
                        self.close_all();
                    }
                }
                () = self.next_event() => {}
            }
        }
    }

    /// Closes all connections and waits for their tasks.
    pub(super) async fn shutdown(&mut self) {
        self.connections.shutdown().await;
        self.refusals.shutdown().await;
    }

    fn close_all(&mut self) {
        if !self.connections.is_empty() {
            let connections = self.connections.len();
            tracing::warn!(connections, "shutdown closes connections with unfinished requests");
        }
        self.connections.abort_all();
    }

    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.refusals.is_empty()
    }

    /// Waits until a connection ends or arrives. Nothing is lost if the future is dropped.
    async fn next_event(&mut self) {
        let control = Arc::clone(&self.control);
        tokio::select! {
            biased;
            Some(_) = self.connections.join_next() => {}
            Some(_) = self.refusals.join_next() => {}
            handoffs = control.hold.served(Listener::Public) => for handoff in handoffs {
                self.accept(Ok(Some(handoff))).await;
            },
            handoff = self.receiver.next(), if self.is_open => self.accept(handoff).await,
        }
    }

    async fn accept(&mut self, handoff: io::Result<Option<Handoff>>) {
        match handoff {
            Ok(Some(handoff)) if self.has_capacity() || self.evict_idle() => {
                let connection = ControlConnection::open(&self.control, Listener::Public);
                let service = self.service.clone();
                self.connections.spawn(|activity| async move {
                    let answer = |request| service.answer(connection.control(), request);
                    connection.run(handoff, &activity, answer).await;
                });
            }
            Ok(Some(handoff)) if self.refusals.len() < REFUSALS_MAX => {
                let connection = ControlConnection::open(&self.control, Listener::Public);
                self.refusals.spawn(async move { connection.refuse(handoff).await });
            }
            Ok(Some(handoff)) => close::refuse_full_at_once(&self.control, handoff),
            Ok(None) => self.is_open = false,
            Err(error) => {
                tracing::warn!(%error, "cannot receive a connection from a worker");
                sleep(ERROR_PAUSE).await;
            }
        }
    }

    fn evict_idle(&mut self) -> bool {
        let is_evicted = self.connections.evict_idle();
        if is_evicted {
            self.control.metrics.count(HttpCounter::Evicted);
        }
        is_evicted
    }

    fn has_capacity(&self) -> bool {
        let settings = &self.control.settings;
        let own = self.connections.len();
        let subscribers = usize::try_from(self.control.edge.subscribers()).unwrap_or(usize::MAX);
        let max_connections = settings.max_connections.saturating_add(EXTRA_CONNECTIONS);
        own < settings.max_control_connections && subscribers.saturating_add(own) < max_connections
    }
}
