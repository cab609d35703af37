//! Connects the two planes: implements the traits of the control plane with the data plane.
//!
//! Descriptors here belong to the process's own table. A worker's sockets come out of
//! [`Handover`] already in that table. A socket for a worker is closed here after it was sent.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_access::CountedAddress;
use throng_control::{
    AdmissionMetrics, EdgeCounter, EdgeMetrics, Handoff, SubscribedConnections, TlsConnection,
};
use throng_core::{
    Admission, Answer, ConnectionScan, Later, Listener, Notification, ScanAction, ScanTarget,
    Scanned, Ticket, WorkerQueue, clock,
};
use throng_edge::{Counter, Edge, Metrics, Parked, WorkerBusyError, WorkerHandoffs};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;

/// The metrics whose labels the status page shows as reasons.
const REFUSED: &str = "refused_total";
const DISCONNECTS: &str = "disconnects_total";

/// Receives the connections that workers hand off.
#[derive(Debug)]
pub(crate) struct Handover {
    /// Shared with shutdown.
    edge: Arc<Edge>,
    /// A duplicate of the receiving descriptor, for the runtime's readiness events. Its type does
    /// not matter, because nothing is read through it.
    watched: UnixDatagram,
}

/// The readiness events of what workers hand off.
#[derive(Debug)]
pub(crate) struct HandoffEvents(UnixDatagram);

impl HandoffEvents {
    pub(crate) fn of(edge: &Edge) -> io::Result<HandoffEvents> {
        let duplicate = edge.to_control.as_fd().try_clone_to_owned()?;
        Ok(HandoffEvents(UnixDatagram::from_std(StdUnixDatagram::from(duplicate))?))
    }
}

impl Handover {
    /// Receives what the workers of `edge` hand off, of which these are the events.
    pub(crate) fn new(edge: Arc<Edge>, HandoffEvents(watched): HandoffEvents) -> Handover {
        Handover { edge, watched }
    }
}

impl throng_control::HandoffReceiver for Handover {
    async fn next(&mut self) -> io::Result<Option<Handoff>> {
        // "None now" is what tells the runtime to wait for the next one.
        let receive = || self.edge.to_control.receive()?.ok_or(io::ErrorKind::WouldBlock.into());
        let arrival = self.watched.async_io(Interest::READABLE, receive).await?;
        Ok(Some(from_edge(arrival)))
    }
}

/// A connection, as the control plane has it.
pub(crate) fn from_edge(handoff: throng_edge::Handoff) -> Handoff {
    let throng_edge::Handoff { stream, bytes, client, tls } = handoff;
    Handoff { stream, bytes, client, tls: tls.map(of_edge) }
}

/// A connection, as the data plane has it.
pub(crate) fn to_edge(handoff: Handoff) -> throng_edge::Handoff {
    let Handoff { stream, bytes, client, tls } = handoff;
    throng_edge::Handoff { stream, bytes, client, tls: tls.map(of_control) }
}

/// The TLS of a connection, as the control plane has it.
fn of_edge(tls: Box<throng_edge::TlsConnection>) -> Box<TlsConnection> {
    let throng_edge::TlsConnection { outgoing, incoming, inbound, outbound, user } = *tls;
    Box::new(TlsConnection { outgoing, incoming, inbound, outbound, user })
}

/// The TLS of a connection, as the data plane has it.
fn of_control(tls: Box<TlsConnection>) -> Box<throng_edge::TlsConnection> {
    let TlsConnection { outgoing, incoming, inbound, outbound, user } = *tls;
    Box::new(throng_edge::TlsConnection { outgoing, incoming, inbound, outbound, user })
}

/// The workers, for the control plane.
#[derive(Debug)]
pub(crate) struct Workers {
    /// The way to them.
    pub(crate) handoffs: WorkerHandoffs,
    /// Their queues of notifications, one for each.
    pub(crate) queues: Vec<Arc<WorkerQueue>>,
    pub(crate) metrics: Metrics,
    /// The moments that clients were told.
    pub(crate) admission: Arc<Admission>,
}

impl Workers {
    /// Makes all workers look for connections. The last one answers.
    pub(crate) fn post_scan(
        &self,
        target: ScanTarget,
        action: ScanAction,
        ticket: Ticket<Scanned>,
    ) {
        let scan = ConnectionScan::new(target, action, self.queues.len(), ticket);
        for queue in &self.queues {
            queue.post(Notification::Scan(Arc::clone(&scan)));
            queue.wake();
        }
    }
}

impl Workers {
    /// Makes all workers ask their clients to leave, at an even pace that has come to the last one
    /// after `over`. New subscriptions are refused, and the others are served.
    pub(crate) fn leave(&self, over: Duration) {
        let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX);
        self.post_all(|| Notification::Leave { over_ms });
    }

    /// Makes all workers serve as before [`Workers::leave`]. The returned receiver fails once all
    /// do.
    pub(crate) fn stay(&self) -> oneshot::Receiver<Infallible> {
        let (held, all_serve) = oneshot::channel();
        let held: Arc<dyn Any + Send + Sync> = Arc::new(held);
        self.post_all(|| Notification::Stay { held: Arc::clone(&held) });
        all_serve
    }

    fn post_all(&self, notification: impl Fn() -> Notification) {
        for queue in &self.queues {
            queue.post(notification());
            queue.wake();
        }
    }

    /// The clients that follow channels, without viewers of the status.
    pub(crate) fn clients(&self) -> u64 {
        let kinds = [Parked::WebSocket, Parked::Sse, Parked::Stream, Parked::Poll];
        kinds.into_iter().map(|kind| self.metrics.parked(kind)).sum()
    }
}

impl throng_control::Edge for Workers {
    fn hand_off(&self, listener: Listener, handoff: Handoff) -> Result<(), Handoff> {
        let Handoff { stream, bytes, client, tls } = handoff;
        let address = client.as_ref().map(CountedAddress::address);
        let is_tls = tls.is_some();
        match self.handoffs.send(listener, &stream, &bytes, address, tls.map(of_control)) {
            Ok(()) => {
                // The worker has the address now, which goes on counting.
                let _ = client.map(CountedAddress::into_address);
                Ok(())
            }
            // Its TLS is gone, so that nothing can be said to its client any more.
            Err(WorkerBusyError { tls: None }) if is_tls => Ok(()),
            Err(WorkerBusyError { tls }) => {
                Err(Handoff { stream, bytes, client, tls: tls.map(of_edge) })
            }
        }
    }

    fn subscribers(&self) -> u64 {
        let workers = self.metrics.workers().iter();
        workers.map(|worker| u64::from(worker.taken.load(Ordering::Relaxed))).sum()
    }

    fn hand_off_canary(&self, worker: usize, stream: &TcpStream, request: &[u8]) -> bool {
        self.handoffs.send_canary(worker, stream, request).is_ok()
    }

    fn is_busy(&self) -> bool {
        self.queues.iter().any(|queue| !queue.has_room())
    }

    fn scan(
        &self,
        target: ScanTarget,
        action: ScanAction,
        later: Later<'_, Scanned>,
    ) -> Answer<Scanned> {
        let (ticket, answer) = later.ticket();
        self.post_scan(target, action, ticket);
        answer
    }

    fn has_ended(&self) -> bool {
        self.metrics.workers().iter().all(|worker| worker.is_ended.load(Ordering::Acquire))
    }

    fn metrics(&self) -> EdgeMetrics {
        let metrics = &self.metrics;
        let connections = metrics.workers().iter().map(|worker| &worker.connections);
        EdgeMetrics {
            connections: connections.map(|open| u64::from(open.load(Ordering::Relaxed))).collect(),
            subscribed: SubscribedConnections {
                websocket: metrics.parked(Parked::WebSocket),
                sse: metrics.parked(Parked::Sse),
                stream: metrics.parked(Parked::Stream),
                poll: metrics.parked(Parked::Poll),
                status: metrics.parked(Parked::Status),
            },
            behind: metrics.behind(),
            handshakes: metrics.handshakes(),
            admission: AdmissionMetrics {
                queue_wait_ms: metrics.queue_wait_ms(),
                told: metrics.sum(Counter::RefusedStorm),
                ahead_ms: self.admission.ahead_ms(clock::now_ms()),
                rate: self.admission.rate(),
            },
            accepted: metrics.sum(Counter::Accepted),
            deliveries: metrics.sum(Counter::Deliveries),
            sent_bytes: metrics.sum(Counter::SentBytes),
            messages_skipped: metrics.sum(Counter::MessagesSkipped),
            replay_messages_evicted: metrics.sum(Counter::ReplayMessagesEvicted),
            refused: metrics.by_label(REFUSED).collect(),
            closed: metrics.by_label(DISCONNECTS).collect(),
            latency: metrics.latency(),
            counters: Counter::ALL.iter().map(|&counter| sample(metrics, counter)).collect(),
        }
    }
}

fn sample(metrics: &Metrics, counter: Counter) -> EdgeCounter {
    EdgeCounter {
        metric: counter.metric(),
        help: counter.help(),
        label: counter.label().map(|name| (name, counter.label_value())),
        count: metrics.sum(counter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_the_status_page_exist() {
        let metrics = Metrics::new([1].into_iter());
        let has = |metric, reason| metrics.by_label(metric).any(|(label, _)| label == reason);
        assert!(has(REFUSED, "full") && has(DISCONNECTS, "lag"));
    }
}
