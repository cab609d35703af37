//! What a connection of the client asks for, and when the answer makes it a subscriber.

use crate::http;

/// A fixed key: the probe checks the accept value that belongs to it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// How a connection becomes a subscriber.
#[derive(Clone, Debug)]
pub enum Target {
    /// By being connected: the raw loop knows no requests.
    Raw,
    /// By the `101` to an upgrade.
    WebSocket(Path),
    /// By the `200` to a request for an event stream.
    EventStream(Path),
}

/// Which URL a connection follows.
#[derive(Clone, Debug)]
pub enum Path {
    /// All the same one.
    Shared(String),
    /// Each its own: this, and the connection's number.
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
    pub fn request(&self, index: usize) -> Option<Vec<u8>> {
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

    /// Whether what was received is the whole head of the right answer, and how long that head is.
    pub fn answered(&self, received: &[u8]) -> Result<Option<usize>, String> {
        let Some(end) = http::find(received, http::HEAD_END) else {
            return Ok(None);
        };
        let head_bytes = end + http::HEAD_END.len();
        let head = String::from_utf8_lossy(&received[..head_bytes]);
        let is_right = match self {
            Self::Raw => false,
            Self::WebSocket(_) => http::status(&head) == Some(101) && head.contains(ACCEPT),
            Self::EventStream(_) => http::status(&head) == Some(200),
        };
        if is_right { Ok(Some(head_bytes)) } else { Err(format!("the server answered {head:?}")) }
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
    fn only_the_right_answer_subscribes() {
        let target = Target::WebSocket(Path::Shared("/channels/a".into()));
        let head = format!("HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n");
        assert_eq!(target.answered(head.as_bytes()), Ok(Some(head.len())));
        assert_eq!(target.answered(&head.as_bytes()[..head.len() - 1]), Ok(None));
        assert!(target.answered(b"HTTP/1.1 101 Switching\r\n\r\n").is_err());
        assert!(target.answered(b"HTTP/1.1 503 Full\r\n\r\n").is_err());
    }
}
