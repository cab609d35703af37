//! Why a client, or a publishing connection, failed.

use std::fmt;

use rustix::io::Errno;
use serde::{Deserialize, Deserializer};

use crate::tls::TlsFailure;

/// Why a client failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// The connect timed out.
    ConnectTimeout,
    /// The handshake timed out after the connect.
    HandshakeTimeout,
    /// The response has another status than `101` or `200`.
    Status(u16),
    /// The response violates the protocol.
    Handshake(&'static str),
    /// The server closed the connection before the client was subscribed.
    ClosedInHandshake,
    /// The server closed a subscribed connection, with a WebSocket close code if it sent one.
    Closed(Option<u16>),
    /// Received data violates the protocol.
    Protocol(&'static str),
    /// A TLS handshake failed, or a connection under TLS.
    Tls(TlsFailure),
    /// No local port or address is free.
    NoPorts,
    /// No descriptor is free.
    NoDescriptors,
    /// Another error of the kernel, by number.
    Os(i32),
    /// Another status than `101` or `200`, and the first line of the response body.
    Refusal(u16, String),
    /// A rejection in a message of the server.
    Message(String),
    /// A failure counted by an agent, as text.
    Reported(String),
    /// The client's agent is lost.
    AgentLost,
    /// A refusal with the moment to come back, in milliseconds from then. Never counted as such:
    /// clients that come back have not failed, and for all others the refusal is counted.
    ComeBack {
        /// The time until then, in milliseconds.
        after_ms: u64,
        /// Why the server did not take it now.
        refusal: Box<Failure>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused => f.write_str("refused"),
            Failure::Reset => f.write_str("reset"),
            Failure::ConnectTimeout => f.write_str("timeout while connecting"),
            Failure::HandshakeTimeout => f.write_str("timeout in the handshake"),
            Failure::Status(status) => write!(f, "status {status}"),
            Failure::Handshake(what) => write!(f, "handshake: {what}"),
            Failure::ClosedInHandshake => f.write_str("closed in the handshake"),
            Failure::Closed(Some(code)) => write!(f, "closed by the server with code {code}"),
            Failure::Closed(None) => f.write_str("closed by the server"),
            Failure::Protocol(what) => write!(f, "protocol: {what}"),
            Failure::Tls(what) => write!(f, "TLS: {what}"),
            Failure::NoPorts => f.write_str("no local port is left"),
            Failure::NoDescriptors => f.write_str("no descriptor is left"),
            Failure::Reported(words) => f.write_str(words),
            Failure::AgentLost => f.write_str("agent lost"),
            Failure::ComeBack { refusal, .. } => refusal.fmt(f),
            Failure::Os(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            Failure::Refusal(status, text) => write!(f, "status {status}: {text}"),
            Failure::Message(text) => write!(f, "the server says {text}"),
        }
    }
}

impl Failure {
    /// The same with the moment to come back, if there is one.
    pub(crate) fn with_moment(self, after_ms: Option<u64>) -> Failure {
        match after_ms {
            Some(after_ms) => Failure::ComeBack { after_ms, refusal: Box::new(self) },
            None => self,
        }
    }

    /// The failure without the server's text.
    pub(crate) fn without_words(&self) -> Failure {
        match self {
            Failure::Refusal(status, _) => Failure::Status(*status),
            Failure::Message(_) => Failure::Message("more".to_owned()),
            other => other.clone(),
        }
    }
}

/// Failures that an agent has counted are texts.
impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Failure, D::Error> {
        String::deserialize(from).map(Failure::Reported)
    }
}

impl From<TlsFailure> for Failure {
    fn from(failure: TlsFailure) -> Failure {
        Failure::Tls(failure)
    }
}

/// Classifies an error of a socket.
impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        match error {
            Errno::CONNREFUSED => Failure::Refused,
            Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Failure::Reset,
            Errno::TIMEDOUT => Failure::ConnectTimeout,
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => Failure::NoPorts,
            Errno::MFILE | Errno::NFILE => Failure::NoDescriptors,
            error => Failure::Os(error.raw_os_error()),
        }
    }
}
