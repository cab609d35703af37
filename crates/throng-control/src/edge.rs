//! The control plane's view of the data plane: sockets that arrive, sockets that it hands back, and
//! the workers' metrics. The binary connects the two planes.

use std::future::Future;
use std::io;
use std::net::TcpStream;

use serde::Serialize;
use throng_access::CountedAddress;
use throng_core::{Answer, Later, Listener, ScanAction, ScanTarget, Scanned, Snapshot};
use throng_tls::{CertifiedUser, Incoming, Outgoing};

/// A socket that a worker has handed off to the control plane.
#[derive(Debug)]
pub struct Handoff {
    /// The socket, in nonblocking mode.
    pub stream: TcpStream,
    /// The bytes that the worker has read; they begin with a request head.
    pub bytes: Vec<u8>,
    /// The address of its client, which counts until this is dropped; `None` if addresses are not
    /// kept, or if this one is not known.
    pub client: Option<CountedAddress>,
    /// Its TLS; `None` for a plain connection. `bytes` were opened already.
    pub tls: Option<Box<TlsConnection>>,
}

/// A TLS connection after its handshake, without its socket. It moves and is never copied.
#[derive(Debug)]
pub struct TlsConnection {
    /// The half that seals.
    pub outgoing: Outgoing,
    /// The half that opens.
    pub incoming: Incoming,
    /// Records that came and are not opened yet. What the socket has comes after them.
    pub inbound: Vec<u8>,
    /// The rest of what the socket took a part of. It has to be written before anything else.
    pub outbound: Vec<u8>,
    /// The user that the client's certificate names, if there is one.
    pub user: Option<Box<CertifiedUser>>,
}

/// The source of sockets.
pub trait HandoffReceiver: Send {
    /// The next socket; `None` after the last one. Dropping the future must not lose a socket.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Handoff>>> + Send;
}

/// The workers' gauges, and their counters since the start.
#[derive(Debug, Clone, Default)]
pub struct EdgeMetrics {
    /// The open connections of each worker, in the order of their ids.
    pub connections: Vec<u64>,
    /// The connections that are subscribed now.
    pub subscribed: SubscribedConnections,
    /// Connections whose sockets have not taken all that was written.
    pub behind: u64,
    /// TLS handshakes of the workers that are under way.
    pub handshakes: u64,
    /// How new connections wait.
    pub admission: AdmissionMetrics,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Messages written to subscribers.
    pub deliveries: u64,
    /// Bytes written to subscribers.
    pub sent_bytes: u64,
    /// Messages that a subscriber did not get because it exceeded its lag limit.
    pub messages_skipped: u64,
    /// Messages that replay buffers dropped for want of memory.
    pub replay_messages_evicted: u64,
    /// Connections and requests that workers refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Connections that ended, by reason.
    pub closed: Vec<(&'static str, u64)>,
    /// The time from accepting a message to its last write.
    pub latency: Snapshot,
    /// All counters, for `/metrics`. Those of one metric are consecutive.
    pub counters: Vec<EdgeCounter>,
}

/// How new connections wait, and which moments clients were told.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct AdmissionMetrics {
    /// How long the first connection in the longest queue has waited, in milliseconds; 0 if the
    /// queues are short.
    pub queue_wait_ms: u64,
    /// Clients that were told a moment, since the start.
    pub told: u64,
    /// How far ahead the last moment is, in milliseconds; 0 if nobody waits for one.
    pub ahead_ms: u64,
    /// Retry times given per second.
    pub rate: u64,
}

/// Subscribed connections by transport.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubscribedConnections {
    /// Subscribed connections over WebSocket.
    pub websocket: u64,
    /// Subscribed connections with server-sent events.
    pub sse: u64,
    /// Subscribed chunked streams.
    pub stream: u64,
    /// Long polls that wait for a message.
    pub poll: u64,
    /// Viewers of the status page.
    pub status: u64,
}

impl SubscribedConnections {
    /// The number for each transport, by the value of the label `transport`.
    pub(crate) fn by_transport(&self) -> [(&'static str, u64); 5] {
        [
            ("websocket", self.websocket),
            ("sse", self.sse),
            ("stream", self.stream),
            ("poll", self.poll),
            ("status", self.status),
        ]
    }
}

/// One counter of the data plane, summed over the workers.
#[derive(Debug, Clone, Copy)]
pub struct EdgeCounter {
    /// The name of the metric, without the prefix `throng_`.
    pub metric: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// The name and the value of the label; `None` if the metric has none.
    pub label: Option<(&'static str, &'static str)>,
    /// How often it was counted since the start.
    pub count: u64,
}

/// The data plane.
pub trait Edge: Send + Sync {
    /// Hands a socket off to a worker, preferably one with free places. `bytes` have been read from
    /// the socket and begin with the head of a request that subscribes; on the admin listener, with
    /// a permitted request for the status stream. Returns the handoff if no worker accepts it.
    fn hand_off(&self, listener: Listener, handoff: Handoff) -> Result<(), Handoff>;

    /// Hands a socket of the server's own canary off to the worker of this number, counted in a
    /// circle. `request` is a request that subscribes; whatever it names, it follows
    /// [`ChannelName::canary`](throng_core::ChannelName::canary). Returns whether the worker takes
    /// the socket.
    fn hand_off_canary(&self, worker: usize, stream: &TcpStream, request: &[u8]) -> bool;

    /// Places for subscribers that are taken. Called for each handoff.
    fn subscribers(&self) -> u64;

    /// True if the queue of a worker is full, so that messages are refused.
    fn is_busy(&self) -> bool;

    /// Makes all workers pass their connections, and answers when the last one has. There is no
    /// answer if a worker ends before that.
    fn scan(
        &self,
        target: ScanTarget,
        action: ScanAction,
        later: Later<'_, Scanned>,
    ) -> Answer<Scanned>;

    /// True if all workers have ended and accept no more sockets.
    fn has_ended(&self) -> bool;

    /// The metrics of the workers. Called once a second, and for `/metrics`.
    fn metrics(&self) -> EdgeMetrics;
}
