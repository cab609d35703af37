//! What a run does: the target, its clients, what is published, and what must hold at the end.
//!
//! A plan comes from flags ([`crate::cli`]) or from a file (`file`); after [`Plan::check`] nothing
//! in it can be refused any more.

pub mod addresses;
mod check;
pub mod draft;
pub mod file;
pub mod show;
pub mod words;

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::profile::Profile;
use crate::report::subject::{LEFT_OUT, is_secret};
use crate::template::Template;

/// A run, complete.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Names the run in its report.
    pub name: String,
    /// What the target was made by.
    pub profile: Profile,
    /// Who is loaded, and how one speaks to it.
    pub target: Target,
    /// Where the clients come from.
    pub sources: Sources,
    /// What carries their connections.
    pub network: Network,
    /// Client threads; `None` for as many as descriptors and cores ask for.
    pub threads: Option<usize>,
    /// A closed loop: a client that fails or is closed by the server comes back after a pause, in
    /// every phase.
    pub keep: bool,
    /// Makes what is drawn at random (who follows whom, where messages go) the same in each run.
    pub seed: u64,
    /// What happens, one after the other.
    pub phases: Vec<Phase>,
    /// What must hold at the end.
    pub assertions: Vec<crate::assertions::Assertion>,
    /// Processes of the server on this machine, whose memory and CPU time are measured, with those
    /// of their descendants.
    pub server_pids: Vec<u32>,
    /// The run ends after this whatever happens.
    pub deadline: Duration,
}

impl Plan {
    /// The same without the values of headers that are secrets: what a report may say.
    pub fn without_secrets(&self) -> Plan {
        let mut plan = self.clone();
        let of_publish = match plan.target.publish.as_mut().map(|publish| &mut publish.by) {
            Some(PublishBy::Http { headers, .. }) => headers.as_mut_slice(),
            _ => &mut [],
        };
        for (name, value) in plan.target.headers.iter_mut().chain(of_publish) {
            if is_secret(name) {
                *value = Template::literal(LEFT_OUT);
            }
        }
        plan
    }
}

/// Who is loaded, and how one speaks to it.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// How a client subscribes and how messages come.
    pub transport: Transport,
    /// `http://…` or `ws://…` of client `{i}`; host and ports are taken from it.
    pub url: Template,
    /// Further ports of the same host: client `i` goes to port `i % n`.
    pub ports: Vec<u16>,
    /// Further request headers.
    pub headers: Vec<(String, Template)>,
    /// WebSocket sub-protocol to ask for.
    pub subprotocol: Option<String>,
    /// Sent after the handshake, one frame each (WebSocket only).
    pub hello: Vec<Template>,
    /// When a client counts as subscribed.
    pub subscribed: Subscribed,
    /// A message without a mark that contains one of these is the server's refusal: until the
    /// client is subscribed, or at any time if no message says that it is.
    pub refused: Vec<String>,
    /// What is answered to application-level pings of a protocol.
    pub pings: Vec<Ping>,
    /// A client's connect and handshake may take so long.
    pub handshake_timeout: Duration,
    /// How to publish, if anything is to be published.
    pub publish: Option<PublishTarget>,
    /// The streams that client `i` follows, for the audit.
    pub streams: Streams,
}

/// How messages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Frames.
    WebSocket,
    /// `text/event-stream`.
    Sse,
    /// One message a line, without end.
    Stream,
    /// One answer a request.
    LongPoll,
}

impl Transport {
    /// The status of an answer that subscribes.
    pub fn status(self) -> u16 {
        if self == Transport::WebSocket { 101 } else { 200 }
    }
}

/// When a client counts as subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Subscribed {
    /// With the response head, `101` or `200`.
    Handshake,
    /// With the first message (or event, or line) that contains this.
    Message(String),
}

/// An application-level ping: a message, or a line of one, that is exactly `ask` is answered with
/// `answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ping {
    /// What the server sends.
    pub ask: String,
    /// What the client answers.
    pub answer: String,
}

/// How to publish.
#[derive(Debug, Clone, Serialize)]
pub struct PublishTarget {
    /// Over HTTP: method, URL, headers and body; over a WebSocket: a frame. In the templates
    /// `{payload}` stands for the message, `{stream}` for the number of the stream.
    pub by: PublishBy,
    /// Publishing connections. A stream always goes over the same one, so that the server gets its
    /// messages in order.
    pub connections: usize,
    /// Requests under way on a connection, at most; 1 for no pipelining.
    pub pipeline: usize,
    /// An answer whose body contains this is a refusal, whatever its status.
    pub refused: Option<String>,
}

/// The request of one publish.
#[derive(Debug, Clone, Serialize)]
pub enum PublishBy {
    /// One request a message, kept alive.
    Http {
        /// `POST` or `PUT`.
        method: String,
        /// `{stream}` and `{payload}` may stand in it.
        url: Template,
        /// Further headers.
        headers: Vec<(String, Template)>,
        /// The body; `{payload}` unless given.
        body: Template,
    },
    /// A frame on a connection of its own, which is made like a subscriber's.
    WebSocket {
        /// The frame; `{payload}` unless given.
        frame: Template,
    },
}

/// Which streams a client follows. A stream is what one sequence of messages goes to: a channel or
/// a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Streams {
    /// All clients follow stream 0.
    One,
    /// Client `i` follows stream `i % n`.
    Spread(u32),
    /// Client `i` follows stream `i` alone.
    Own,
    /// Client `i` follows the streams of its friends: a graph with a power-law number of followers,
    /// so many edges a client on average.
    Friends {
        /// Edges a client.
        edges: u32,
    },
}

/// Where the clients come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sources {
    /// Local addresses to connect from; empty for the kernel's choice, or 127.x on loopback.
    pub addresses: Vec<IpAddr>,
    /// Local ports to use from each address; `None` for the kernel's choice.
    pub ports: Option<(u16, u16)>,
}

/// What carries the clients' connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Sockets of the kernel.
    #[default]
    Sockets,
    /// A network device of this machine with TCP of our own behind it, so that a connection to a
    /// server on this machine costs the kernel the server's half only.
    Tunnel,
}

impl Network {
    /// As it is written in plans and flags.
    pub fn name(self) -> &'static str {
        match self {
            Network::Sockets => "sockets",
            Network::Tunnel => "tunnel",
        }
    }
}

/// Something that happens for a while.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Phase {
    /// Brings the number of clients to `to`.
    Ramp {
        /// Clients at the end.
        to: usize,
        /// Connects (or closes) a second; `None` for as fast as it goes.
        rate: Option<f64>,
        /// Connects under way at once, at most.
        in_flight: usize,
    },
    /// Publishes (if `publish`) and receives for a time.
    Hold {
        /// So long.
        time: Duration,
        /// What is published meanwhile.
        publish: Option<Publishing>,
    },
    /// Clients come and go: each second `rate` are closed and as many opened.
    Churn {
        /// So long.
        time: Duration,
        /// Clients a second.
        rate: f64,
        /// What is published meanwhile.
        publish: Option<Publishing>,
    },
    /// All clients lose their connection at once and come back as fast as they can; ends when all
    /// are back, or at `timeout`.
    Storm {
        /// All must be back by then.
        timeout: Duration,
        /// What is published meanwhile.
        publish: Option<Publishing>,
    },
    /// This share of the clients stops reading for a time.
    Slow {
        /// 0 to 1.
        share: f64,
        /// So long.
        time: Duration,
        /// What is published meanwhile.
        publish: Option<Publishing>,
    },
}

/// What is published in a phase: an open loop, each message at its intended time whether or not the
/// one before has arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Publishing {
    /// Messages a second.
    pub rate: f64,
    /// Stops after so many.
    pub count: Option<u64>,
    /// Bytes of each payload, the mark included.
    pub size: usize,
    /// To which streams.
    pub to: Pattern,
}

/// To which streams messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// Stream 0.
    One,
    /// One after the other.
    InTurn,
    /// At random, evenly.
    Random,
}

impl Phase {
    /// What is published in it.
    pub fn publishing(&self) -> Option<&Publishing> {
        match self {
            Phase::Hold { publish, .. }
            | Phase::Churn { publish, .. }
            | Phase::Storm { publish, .. }
            | Phase::Slow { publish, .. } => publish.as_ref(),
            Phase::Ramp { .. } => None,
        }
    }
}
