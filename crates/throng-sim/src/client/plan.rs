//! What a client asks for, and the bytes in which it does.

use throng_core::Kind;

use crate::model::Model;

/// The transport, by what it takes to follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A WebSocket of messages only.
    Plain,
    /// A WebSocket that speaks `throng.v1`.
    V1,
    /// A stream of server-sent events.
    Sse,
    /// A chunked stream.
    Stream,
    /// One answer after the other.
    Poll,
}

/// The id that a client gives for one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// One of this epoch, perhaps ahead of the log.
    Ours(u64),
    /// One of another epoch.
    Foreign(u64),
}

/// Where a client wants to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// With the next message.
    Live,
    /// With the last so many.
    History(usize),
    /// After these ids, one for each channel; in the header or in the query.
    Since(Vec<Given>, bool),
    /// After something that is no id.
    Nonsense,
}

/// A request that subscribes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The transport of the subscription.
    pub way: Way,
    /// To what: the channels in order, then the user.
    pub targets: Vec<usize>,
    /// Where the subscription starts.
    pub from: From,
    /// Each message as an envelope.
    pub envelope: bool,
    /// What the query says about a welcome.
    pub welcome: Option<bool>,
    /// Whether the request is HTTP/1.0.
    pub is_http10: bool,
    /// Whether the connection is to stay open after a long-poll.
    pub keep_alive: bool,
    /// How long a long-poll waits, in seconds.
    pub wait_s: u64,
}

/// The key of every handshake, and the accept that answers it, from RFC 6455.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// The answer to [`KEY`].
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

impl Given {
    fn text(&self, model: &Model) -> String {
        match self {
            Given::Ours(offset) => model.id(*offset),
            Given::Foreign(offset) => format!("1z-{offset}"),
        }
    }
}

impl Plan {
    /// Whether messages arrive in envelopes.
    pub fn has_envelopes(&self) -> bool {
        self.envelope || self.way == Way::V1
    }

    /// Whether it is a WebSocket.
    pub fn is_websocket(&self) -> bool {
        matches!(self.way, Way::Plain | Way::V1)
    }

    /// Whether an id is given.
    pub fn resumes(&self) -> bool {
        matches!(self.from, From::Since(..))
    }

    /// The code with which it must be refused.
    pub fn refusal(&self) -> Option<&'static str> {
        match &self.from {
            From::Nonsense => Some("bad_id"),
            From::Since(ids, _) if ids.len() != self.targets.len() => Some("bad_id"),
            _ => None,
        }
    }

    /// The bytes of the request.
    pub fn request(&self, model: &Model) -> String {
        let (path, mut query) = self.place(model);
        let mut headers = String::new();
        match &self.from {
            From::Live => {}
            From::History(count) => query.push(format!("history={count}")),
            From::Nonsense => query.push("since=7".into()),
            From::Since(ids, is_header) => {
                let ids: Vec<String> = ids.iter().map(|id| id.text(model)).collect();
                let ids = ids.join(",");
                match is_header {
                    true => headers.push_str(&format!("Last-Event-ID: {ids}\r\n")),
                    false => query.push(format!("since={}", encoded(&ids))),
                }
            }
        }
        if self.envelope {
            query.push("envelope=true".into());
        }
        if let Some(welcome) = self.welcome {
            query.push(format!("welcome={welcome}"));
        }
        headers.push_str(&self.transport_headers(&mut query));
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        let version = if self.is_http10 { "1.0" } else { "1.1" };
        format!("GET {path}{query} HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n")
    }

    fn place(&self, model: &Model) -> (String, Vec<String>) {
        let of = |&target: &usize| &model.topics[target];
        let targets: Vec<_> = self.targets.iter().map(of).collect();
        match targets[..] {
            [only] if only.kind == Kind::Channel => {
                (format!("/channels/{}", encoded(only.name)), Vec::new())
            }
            [only] => (format!("/users/{}", encoded(only.name)), Vec::new()),
            [channel, user] if user.kind == Kind::User && self.wait_s.is_multiple_of(2) => {
                let query = format!("user={}", encoded(user.name));
                (format!("/channels/{}", encoded(channel.name)), vec![query])
            }
            _ => {
                let named = |it: &&crate::topics::Topic| match it.kind {
                    Kind::User => format!("user={}", encoded(it.name)),
                    _ => format!("channel={}", encoded(it.name)),
                };
                ("/subscribe".into(), targets.iter().map(named).collect())
            }
        }
    }

    fn transport_headers(&self, query: &mut Vec<String>) -> String {
        let mut headers = String::new();
        match self.way {
            Way::Plain | Way::V1 => {
                headers.push_str("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n");
                headers.push_str("Sec-WebSocket-Version: 13\r\n");
                headers.push_str(&format!("Sec-WebSocket-Key: {KEY}\r\n"));
                if self.way == Way::V1 {
                    headers.push_str("Sec-WebSocket-Protocol: throng.v1\r\n");
                }
            }
            Way::Sse => headers.push_str("Accept: text/event-stream\r\n"),
            Way::Stream => {}
            Way::Poll if self.wait_s.is_multiple_of(2) => {
                headers.push_str(&format!("Prefer: wait={}\r\n", self.wait_s));
            }
            Way::Poll => query.push(format!("wait={}", self.wait_s)),
        }
        if self.way == Way::Poll && !self.keep_alive && !self.is_http10 {
            headers.push_str("Connection: close\r\n");
        }
        if self.way == Way::Poll && self.keep_alive && self.is_http10 {
            headers.push_str("Connection: keep-alive\r\n");
        }
        headers
    }
}

/// Percent-encodes everything but letters and digits.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
