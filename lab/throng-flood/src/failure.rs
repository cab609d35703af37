//! Why a client or a message failed.

use rustix::io::Errno;
use serde::{Deserialize, Deserializer};

use crate::tls::TlsFailure;

/// Why a client failed, or a message was not published.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// The connection was refused.
    #[error("refused")]
    Refused,
    /// The connection was reset.
    #[error("reset")]
    Reset,
    /// The connect timed out.
    #[error("timeout while connecting")]
    ConnectTimeout,
    /// The handshake timed out after the connect.
    #[error("timeout in the handshake")]
    HandshakeTimeout,
    /// The response has another status than `101` or `200`.
    #[error("status {0}")]
    Status(u16),
    /// The response violates the protocol.
    #[error("handshake: {0}")]
    Handshake(&'static str),
    /// The server closed the connection before the client was subscribed.
    #[error("closed in the handshake")]
    ClosedInHandshake,
    /// The server closed a subscribed connection, with a WebSocket close code if it sent one.
    #[error("closed by the server{}", with_code(*.0))]
    Closed(Option<u16>),
    /// Received data violates the protocol.
    #[error("protocol: {0}")]
    Protocol(&'static str),
    /// A TLS handshake failed, or a connection under TLS.
    #[error("TLS: {0}")]
    Tls(TlsFailure),
    /// No local port or address is free.
    #[error("no local port is left")]
    NoPorts,
    /// No descriptor is free.
    #[error("no descriptor is left")]
    NoDescriptors,
    /// Another error of the kernel, by number.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// Another status than `101` or `200`, and the first line of the response body.
    #[error("status {0}: {1}")]
    Refusal(u16, String),
    /// A rejection in a message of the server.
    #[error("the server says {0}")]
    Message(String),
    /// A failure counted by an agent, as text.
    #[error("{0}")]
    Reported(String),
    /// The client's agent is lost.
    #[error("agent lost")]
    AgentLost,
    /// A message was sent, and the response did not come in time.
    #[error("no answer in time")]
    Unanswered,
    /// A message was not sent, because too many were waiting.
    #[error("not sent: too many messages were waiting")]
    Behind,
    /// A message was not sent before the phase ended.
    #[error("not sent before the phase was over")]
    Unsent,
    /// The server closes after a response, as it may: the client goes on with a new connection.
    /// Never counted.
    #[error("closed after a response")]
    Reconnect,
    /// A refusal with the moment to come back, in milliseconds from then. Never counted as such:
    /// clients that come back have not failed, and for all others the refusal is counted.
    #[error("{refusal}")]
    ComeBack {
        /// The time until then, in milliseconds.
        after_ms: u64,
        /// Why the server did not take it now.
        refusal: Box<Failure>,
    },
}

fn with_code(code: Option<u16>) -> String {
    code.map_or(String::new(), |code| format!(" with code {code}"))
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
