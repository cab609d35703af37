//! A plan and its parts, complete: everything that a run needs has a value.

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use super::files::CertificateFile;
use super::options::Options;
use super::phases::Phase;
use super::values::{
    Header, Network, Node, Ping, PortRange, Profile, Streams, Subscribed, Transport,
};
use crate::assertions::Assertion;
use crate::protocol::url::Place;
use crate::redact::{REDACTED, is_secret};
use crate::template::{Template, TemplateValues};

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
    pub phases: Vec<Phase>,
    pub assertions: Vec<Assertion>,
    /// Server processes on this machine. Their memory and processor time are measured, with those
    /// of their descendants.
    pub server_pids: Vec<u32>,
    /// The run ends after this time in any case.
    pub deadline: Duration,
    /// The source of the fields above, completed by the profile: the plan as a file.
    #[serde(skip)]
    pub options: Options,
}

impl Plan {
    /// The most clients at any time.
    pub(crate) fn max_clients(&self) -> usize {
        let of_ramp = |phase: &Phase| match phase {
            Phase::Ramp { to, .. } => Some(*to),
            _ => None,
        };
        self.phases.iter().filter_map(of_ramp).max().unwrap_or_default()
    }

    /// True if any phase publishes.
    pub fn publishes(&self) -> bool {
        self.phases.iter().any(|phase| phase.publishing().is_some())
    }

    /// The highest publish rate of all phases; `None` if nothing is published.
    pub(crate) fn max_rate(&self) -> Option<f64> {
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
        let Options { target, publish, tokens, .. } = &mut plan.options;
        tokens.template = tokens.template.take().map(|_| REDACTED.to_owned());
        for Header(name, value) in target.headers.iter_mut().chain(&mut publish.headers).flatten() {
            if is_secret(name) {
                *value = REDACTED.to_owned();
            }
        }
        plan
    }
}

/// The server, and how to speak to it.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// How a client subscribes and receives messages.
    pub transport: Transport,
    /// The URL of client `{i}`, `http://…`, `ws://…`, `https://…` or `wss://…`; names the host and
    /// port.
    pub url: Template,
    /// More ports of the same host: client `i` connects to port `i % n`.
    pub ports: Vec<u16>,
    /// Further nodes: client `i` connects to address `i % n` of all of them.
    pub nodes: Vec<Node>,
    /// The servers that clients come back to once theirs has closed or refused them.
    pub failover: Vec<Node>,
    /// Further request headers.
    pub headers: Vec<(String, Template)>,
    /// The WebSocket sub-protocol to ask for.
    pub subprotocol: Option<Template>,
    /// True to offer compression of messages, each by itself (WebSocket only).
    pub deflate: bool,
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
    /// The streams that clients follow, for the audit.
    pub streams: Streams,
    /// How many of them each client follows, over one connection.
    pub streams_each: u32,
    /// TLS of clients and publishers, where their URLs ask for it.
    pub tls: TlsSettings,
}

impl Target {
    /// The URL of the first client.
    pub(crate) fn first_url(&self) -> String {
        self.url.rendered(&TemplateValues::default())
    }

    /// How many streams a run with this many clients has.
    pub(crate) fn stream_count(&self, clients: usize) -> u32 {
        let clients = u32::try_from(clients).unwrap_or(u32::MAX).max(1);
        match self.streams {
            Streams::One => 1,
            Streams::Spread(count) => count.max(1),
            Streams::Own => clients.saturating_mul(self.streams_each),
            Streams::Friends { .. } => clients,
        }
    }

    /// The port that the first client connects to; `None` if its URL is invalid.
    pub(crate) fn port(&self) -> Option<u16> {
        let url = self.first_url();
        let of_url = || Place::of(&url).ok().map(|place| place.port.unwrap_or(place.default_port));
        self.ports.first().copied().or_else(of_url)
    }
}

/// Which server is trusted, and what handshakes are like.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TlsSettings {
    /// The authorities of the server's certificate; `None` for those that this system trusts.
    pub authorities: Option<CertificateFile>,
    /// True to accept any certificate.
    pub is_insecure: bool,
    /// The name that clients ask for, and that the certificate is for; `None` for the URL's host.
    pub sni: Option<String>,
    /// True if clients resume the session of their last connection.
    pub resumes: bool,
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

/// Local addresses and ports of the clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sources {
    /// Addresses to connect from. If empty, the kernel chooses, or 127.x is used on loopback.
    pub addresses: Vec<IpAddr>,
    /// The range of local ports to use from each address; `None` if the kernel chooses.
    pub ports: Option<PortRange>,
}

/// An error in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The option it is about, as a path of TOML keys: `target.url`, `phases.1.publish.size`. The
    /// reader of the file turns it into line and column, the command line into a flag.
    pub key: String,
    /// The fault, and what is accepted.
    pub message: String,
}

impl PlanError {
    /// An error in the value of `key`.
    pub(super) fn new(key: impl Into<String>, message: impl ToString) -> PlanError {
        PlanError { key: key.into(), message: message.to_string() }
    }
}
