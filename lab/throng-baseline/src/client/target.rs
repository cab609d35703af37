//! The request of a connection, and the response that makes it a subscriber.

use crate::http;

/// The key of all handshakes, from RFC 6455, section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// The value of `Sec-WebSocket-Accept` that answers [`KEY`].
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// How a connection becomes a subscriber.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// By being connected: the raw loop reads no requests.
    Raw,
    /// By status 101 to an upgrade.
    WebSocket(Path),
    /// By status 200 to a request for server-sent events.
    EventStream(Path),
}

/// The path of a connection's request.
#[derive(Clone, Debug)]
pub(crate) enum Path {
    /// The same for all connections.
    Shared(String),
    /// This prefix with the connection's number.
    Own(String),
}

impl Path {
    fn of(&self, index: usize) -> String {
        match self {
            Self::Shared(path) => path.clone(),
            Self::Own(prefix) => format!("{prefix}{index}"),
        }
    }
}

impl Target {
    /// The request that the connection with this number sends; `None` if it sends nothing.
    pub(crate) fn request(&self, index: usize) -> Option<Vec<u8>> {
        let (path, headers) = match self {
            Self::Raw => return None,
            Self::WebSocket(path) => (
                path.of(index),
                format!(
                    "Upgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
                ),
            ),
            Self::EventStream(path) => (path.of(index), "Accept: text/event-stream\r\n".to_owned()),
        };
        Some(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n").into_bytes())
    }

    /// The length of the response's head; `None` while it is incomplete. An error if it does not
    /// subscribe the connection.
    pub(crate) fn response_bytes(&self, received: &[u8]) -> Result<Option<usize>, String> {
        let Some(head_bytes) = http::head_bytes(received) else { return Ok(None) };
        let head = String::from_utf8_lossy(&received[..head_bytes]);
        let is_subscribed = match self {
            Self::Raw => false,
            Self::WebSocket(_) => http::status(&head) == Some(101) && head.contains(ACCEPT),
            Self::EventStream(_) => http::status(&head) == Some(200),
        };
        if is_subscribed {
            Ok(Some(head_bytes))
        } else {
            Err(format!("the server answered {head:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_paths_differ_by_the_number() {
        let target = Target::EventStream(Path::Own("/users/u".into()));
        let request = target.request(17).expect("a request");
        assert!(request.starts_with(b"GET /users/u17 HTTP/1.1\r\n"));
        assert!(request.ends_with(b"\r\n\r\n"));
        assert!(Target::Raw.request(17).is_none());
    }

    #[test]
    fn other_responses_are_errors() {
        let target = Target::WebSocket(Path::Shared("/channels/a".into()));
        let head = format!("HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n");
        assert_eq!(target.response_bytes(head.as_bytes()), Ok(Some(head.len())));
        assert_eq!(target.response_bytes(&head.as_bytes()[..head.len() - 1]), Ok(None));
        assert!(target.response_bytes(b"HTTP/1.1 101 Switching\r\n\r\n").is_err());
        assert!(target.response_bytes(b"HTTP/1.1 503 Full\r\n\r\n").is_err());
    }
}
