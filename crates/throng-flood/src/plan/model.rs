//! A plan and its parts, complete: everything that a run needs has a value.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::assertions::Assertion;
use crate::redact::{REDACTED, is_secret};
use crate::template::Template;

/// A run, complete.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Names the run in its report.
    pub name: String,
    /// The profile that made the target.
    pub profile: Profile,
    /// The server, and how to speak to it.
    pub target: Target,
    /// Local addresses and ports of the clients.
    pub sources: Sources,
    /// How the clients' connections are carried.
    pub network: Network,
    /// Client threads; `None` for as many as cores and descriptors require.
    pub threads: Option<usize>,
    /// A closed loop: a client that fails, or that the server closes, reconnects after a pause, in
    /// every phase.
    pub keep: bool,
    /// Seed of all random choices: the streams that clients follow, and those that get messages.
    pub seed: u64,
    /// What happens, in order.
    pub phases: Vec<Phase>,
    /// What must hold at the end.
    pub assertions: Vec<Assertion>,
    /// Server processes on this machine. Their memory and processor time are measured, with those
    /// of their descendants.
    pub server_pids: Vec<u32>,
    /// The run ends after this time in any case.
    pub deadline: Duration,
}

impl Plan {
    /// The most clients at any time.
    pub(crate) fn clients_max(&self) -> usize {
        let of_ramp = |phase: &Phase| match phase {
            Phase::Ramp { to, .. } => Some(*to),
            _ => None,
        };
        self.phases.iter().filter_map(of_ramp).max().unwrap_or_default()
    }

    /// Whether any phase publishes.
    pub fn publishes(&self) -> bool {
        self.phases.iter().any(|phase| phase.publishing().is_some())
    }

    /// The highest publish rate of all phases; `None` if nothing is published.
    pub(crate) fn rate_max(&self) -> Option<f64> {
        let rates = self.phases.iter().filter_map(|phase| Some(phase.publishing()?.rate));
        rates.reduce(f64::max)
    }

    /// The plan as a report may show it: without the values of secret headers.
    pub(crate) fn without_secrets(&self) -> Plan {
        let mut plan = self.clone();
        let of_publish = match plan.target.publish.as_mut().map(|publish| &mut publish.by) {
            Some(PublishBy::Http { headers, .. }) => headers.as_mut_slice(),
            _ => &mut [],
        };
        for (name, value) in plan.target.headers.iter_mut().chain(of_publish) {
            if is_secret(name) {
                *value = Template::literal(REDACTED);
            }
        }
        plan
    }
}

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Throng, on any of its transports.
    Throng,
    /// Nchan's locations, on any of its transports.
    Nchan,
    /// Centrifugo's JSON protocol over WebSocket.
    Centrifugo,
    /// Centrifugo's one-way SSE.
    CentrifugoSse,
    /// A Mercure hub of version 1.
    Mercure,
    /// A Mercure hub before version 1.
    Mercure0,
    /// The Pusher protocol, version 7: Soketi, Reverb, Sockudo and others.
    Pusher,
    /// A plain WebSocket server that sends one client's message to all.
    WebSocket,
    /// Any server: the options alone say how to speak to it.
    Custom,
}

/// The server, and how to speak to it.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// How a client subscribes and receives messages.
    pub transport: Transport,
    /// The URL of client `{i}`, `http://…` or `ws://…`; names the host and port.
    pub url: Template,
    /// More ports of the same host: client `i` connects to port `i % n`.
    pub ports: Vec<u16>,
    /// Further request headers.
    pub headers: Vec<(String, Template)>,
    /// The WebSocket sub-protocol to ask for.
    pub subprotocol: Option<String>,
    /// Messages to send after the handshake, one frame each (WebSocket only).
    pub hello: Vec<Template>,
    /// When a client counts as subscribed.
    pub subscribed: Subscribed,
    /// A message without a mark that contains one of these texts rejects the client: before it is
    /// subscribed, or at any time if no message confirms the subscription.
    pub refused: Vec<String>,
    /// Answers to application-level pings of a protocol.
    pub pings: Vec<Ping>,
    /// Time limit for connect and handshake.
    pub handshake_timeout: Duration,
    /// How to publish, if anything is published.
    pub publish: Option<PublishTarget>,
    /// The streams that client `i` follows, for the audit.
    pub streams: Streams,
}

/// How a client receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One message per WebSocket frame.
    WebSocket,
    /// Server-sent events, a response of type `text/event-stream`.
    Sse,
    /// One message per line of an endless response.
    Stream,
    /// One response per request.
    LongPoll,
}

impl Transport {
    /// The response status that confirms a subscription.
    pub(crate) fn status(self) -> u16 {
        if self == Transport::WebSocket { 101 } else { 200 }
    }
}

/// When a client counts as subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Subscribed {
    /// With the response head, `101` or `200`.
    Handshake,
    /// With the first message, event or line that contains this text.
    Message(String),
}

/// An application-level ping: a message, or a line of one, that is exactly `ask` is answered with
/// `answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ping {
    /// The server's message.
    pub ask: String,
    /// The client's answer.
    pub answer: String,
}

/// How to publish.
#[derive(Debug, Clone, Serialize)]
pub struct PublishTarget {
    /// The request or frame of a message. In its templates `{payload}` is the message and
    /// `{stream}` the number of the stream.
    pub by: PublishBy,
    /// Publishing connections. A stream always uses the same one, so its messages stay in order.
    pub connections: usize,
    /// Requests in flight on a connection, at most; 1 for no pipelining.
    pub pipeline: usize,
    /// A response whose body contains this text rejects the message, whatever its status.
    pub refused: Option<String>,
}

/// How one message is published.
#[derive(Debug, Clone, Serialize)]
pub enum PublishBy {
    /// One request per message, over a kept-alive connection.
    Http {
        /// `POST` or `PUT`.
        method: String,
        /// May contain `{stream}` and `{payload}`.
        url: Template,
        /// Headers besides those that every request has.
        headers: Vec<(String, Template)>,
        /// The body; `{payload}` by default.
        body: Template,
    },
    /// A frame on a connection of its own, which opens like a subscriber's.
    WebSocket {
        /// The frame; `{payload}` by default.
        frame: Template,
    },
}

/// The streams that a client follows. A stream carries one sequence of messages: a channel or a
/// user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Streams {
    /// All clients follow stream 0.
    One,
    /// Client `i` follows stream `i % n`.
    Spread(u32),
    /// Client `i` follows only stream `i`.
    Own,
    /// Client `i` follows the streams of its friends. The number of followers has a power law.
    Friends {
        /// Edges of the graph per client, on average.
        edges: u32,
    },
}

/// Local addresses and ports of the clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sources {
    /// Addresses to connect from. If empty, the kernel chooses, or 127.x is used on loopback.
    pub addresses: Vec<IpAddr>,
    /// The range of local ports to use from each address; `None` if the kernel chooses.
    pub ports: Option<(u16, u16)>,
}

/// How the clients' connections are carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Sockets of the kernel.
    #[default]
    Sockets,
    /// User-space TCP over a network device of this machine: a connection to a server on this
    /// machine costs the kernel the server's half only.
    Tunnel,
}

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Phase {
    /// Brings the number of clients to `to`.
    Ramp {
        /// Clients at the end.
        to: usize,
        /// Connects (or closes) per second; `None` for no limit.
        rate: Option<f64>,
        /// Connects in progress at a time, at most.
        in_flight: usize,
    },
    /// Receives, and publishes if `publish` is set.
    Hold {
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Clients come and go: each second `rate` are closed and as many opened.
    Churn {
        /// The length of the phase.
        time: Duration,
        /// Clients per second.
        rate: f64,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// All clients lose their connections at once and reconnect as fast as they can. Ends when all
    /// are back, or at `timeout`.
    Storm {
        /// Time limit for all to be back.
        timeout: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Some of the clients stop reading for a while.
    Slow {
        /// The share of the clients, from 0 to 1.
        share: f64,
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
}

/// The messages of a phase: an open loop, each sent at its scheduled time whether or not the one
/// before has arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Publishing {
    /// Messages per second.
    pub rate: f64,
    /// Stops after this many.
    pub count: Option<u64>,
    /// Bytes of each payload, the mark included.
    pub size: usize,
    /// The streams that get them.
    pub to: Pattern,
}

/// Which streams get messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// Only stream 0.
    One,
    /// All streams, in turn.
    InTurn,
    /// Uniformly random streams.
    Random,
}

impl Pattern {
    /// The pattern of a plan that names none.
    pub(super) fn default_for(streams: Streams) -> Pattern {
        if streams == Streams::One { Pattern::One } else { Pattern::InTurn }
    }
}

impl Phase {
    /// The messages to publish in it, if there are any.
    pub(crate) fn publishing(&self) -> Option<&Publishing> {
        match self {
            Phase::Hold { publish, .. }
            | Phase::Churn { publish, .. }
            | Phase::Storm { publish, .. }
            | Phase::Slow { publish, .. } => publish.as_ref(),
            Phase::Ramp { .. } => None,
        }
    }

    /// Its length; 0 for a ramp, whose length depends on the server.
    pub(super) fn time(&self) -> Duration {
        match self {
            Phase::Hold { time, .. } | Phase::Churn { time, .. } | Phase::Slow { time, .. } => {
                *time
            }
            Phase::Storm { timeout, .. } => *timeout,
            Phase::Ramp { .. } => Duration::ZERO,
        }
    }
}

/// An error in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The option it is about, as a path of TOML keys: `target.url`, `phases.1.publish.size`. The
    /// reader of the file turns it into line and column, the command line into a flag.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl PlanError {
    /// An error in the value of `key`.
    pub(super) fn new(key: impl Into<String>, message: impl ToString) -> PlanError {
        PlanError { key: key.into(), message: message.to_string() }
    }
}
