//! A request that subscribes, and its bytes.

use throng_core::Kind;

use crate::model::Model;
use crate::topics::Topic;

/// The transport of a subscription; for WebSocket, also the sub-protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    V1,
    Sse,
    Stream,
    Poll,
}

/// An id from which a client resumes one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SinceId {
    /// An offset in the epoch of this world, which may be beyond the head.
    Ours(u64),
    /// An offset in another epoch.
    Foreign(u64),
}

/// Where a subscription is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    Live,
    /// With this many of the last messages.
    History(usize),
    /// After these ids, one for each channel: in the header `Last-Event-ID` if true, otherwise in
    /// the query.
    Since(Vec<SinceId>, bool),
    /// After an invalid id.
    Nonsense,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) transport: Transport,
    /// The indices of the channels in order, then the user's.
    pub(crate) targets: Vec<usize>,
    /// Where the subscription is to start.
    pub(crate) start: Start,
    /// True if it is to begin with the state of its channel, unless it recovers.
    pub(crate) state: bool,
    /// The channels whose members it is to follow, and the changes after which.
    pub(crate) presence: Vec<(usize, Option<SinceId>)>,
    /// True if messages are to come in envelopes.
    pub(crate) envelope: bool,
    /// Given if envelopes are to be compact; whether with times.
    pub(crate) compact: Option<bool>,
    pub(crate) welcome: Option<bool>,
    /// The pace that it asks for.
    pub(crate) pace_ms: Option<u64>,
    pub is_http10: bool,
    /// True if the connection is to stay open after a long poll.
    pub(crate) keep_alive: bool,
    /// The time that a long poll waits, in seconds.
    pub(crate) wait_s: u64,
    /// True if a WebSocket offers to compress messages.
    pub(crate) deflate: bool,
}

/// The key of each handshake, from RFC 6455, section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// The value of `Sec-WebSocket-Accept` that answers [`KEY`].
pub(crate) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

impl SinceId {
    fn text(&self, model: &Model, topic: usize) -> String {
        match self {
            SinceId::Ours(offset) => model.id(topic, *offset),
            SinceId::Foreign(offset) => format!("1z-{offset}"),
        }
    }
}

impl Plan {
    /// True if messages arrive in envelopes.
    pub(crate) fn has_envelopes(&self) -> bool {
        self.envelope || self.transport == Transport::V1
    }

    pub(crate) fn is_websocket(&self) -> bool {
        matches!(self.transport, Transport::Plain | Transport::V1)
    }

    /// True if it resumes from ids.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self.start, Start::Since(..))
    }

    /// The error code with which it must be refused, if it is invalid.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match &self.start {
            Start::Nonsense => Some("bad_id"),
            Start::Since(ids, _) if ids.len() != self.targets.len() => Some("bad_id"),
            _ => None,
        }
    }

    /// The bytes of the request.
    pub(crate) fn request(&self, model: &Model) -> String {
        let (path, mut query) = self.path_and_query(model);
        let mut headers = String::new();
        match &self.start {
            Start::Live => {}
            Start::History(count) => query.push(format!("history={count}")),
            Start::Nonsense => query.push("since=7".into()),
            Start::Since(ids, is_header) => {
                // A request may have more ids than channels, which is an error.
                let targets = self.targets.iter().chain(self.targets.last()).copied();
                let ids: Vec<String> =
                    ids.iter().zip(targets).map(|(id, topic)| id.text(model, topic)).collect();
                let ids = ids.join(",");
                if *is_header {
                    headers.push_str(&format!("Last-Event-ID: {ids}\r\n"));
                } else {
                    query.push(format!("since={}", encoded(&ids)));
                }
            }
        }
        if self.state {
            query.push("state=true".into());
        }
        if !self.presence.is_empty() {
            query.push(format!("presence={}", self.wanted_presence(model)));
        }
        match self.compact {
            Some(is_timed) => query.push(format!("envelope=compact&time={is_timed}")),
            None if self.envelope => query.push("envelope=true".into()),
            None => {}
        }
        if let Some(pace_ms) = self.pace_ms.filter(|_| self.transport != Transport::Poll) {
            query.push(format!("pace={pace_ms}ms"));
        }
        if let Some(welcome) = self.welcome {
            query.push(format!("welcome={welcome}"));
        }
        headers.push_str(&self.transport_headers(&mut query));
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        let version = if self.is_http10 { "1.0" } else { "1.1" };
        format!("GET {path}{query} HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n")
    }

    /// For each channel whether its members are to be followed, or after which change.
    fn wanted_presence(&self, model: &Model) -> String {
        let wanted = |target: &usize| {
            let wanted = self.presence.iter().find(|(channel, _)| channel == target);
            match (wanted, model.members_of(*target)) {
                (Some((_, Some(id))), Some(log)) => id.text(model, log),
                (wanted, _) => wanted.is_some().to_string(),
            }
        };
        let channels =
            self.targets.iter().filter(|&&target| model.topics[target].kind == Kind::Channel);
        channels.map(wanted).collect::<Vec<_>>().join(",")
    }

    fn path_and_query(&self, model: &Model) -> (String, Vec<String>) {
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
                let named = |topic: &&Topic| match topic.kind {
                    Kind::User => format!("user={}", encoded(topic.name)),
                    _ => format!("channel={}", encoded(topic.name)),
                };
                ("/subscribe".into(), targets.iter().map(named).collect())
            }
        }
    }

    fn transport_headers(&self, query: &mut Vec<String>) -> String {
        let mut headers = String::new();
        match self.transport {
            Transport::Plain | Transport::V1 => {
                headers.push_str("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n");
                headers.push_str("Sec-WebSocket-Version: 13\r\n");
                headers.push_str(&format!("Sec-WebSocket-Key: {KEY}\r\n"));
                if self.transport == Transport::V1 {
                    headers.push_str("Sec-WebSocket-Protocol: throng.v1\r\n");
                }
                if self.deflate {
                    headers.push_str("Sec-WebSocket-Extensions: permessage-deflate; ");
                    headers.push_str("client_max_window_bits\r\n");
                }
            }
            Transport::Sse => headers.push_str("Accept: text/event-stream\r\n"),
            Transport::Stream => {}
            Transport::Poll if self.wait_s.is_multiple_of(2) => {
                headers.push_str(&format!("Prefer: wait={}\r\n", self.wait_s));
            }
            Transport::Poll => query.push(format!("wait={}", self.wait_s)),
        }
        if self.transport == Transport::Poll && !self.keep_alive && !self.is_http10 {
            headers.push_str("Connection: close\r\n");
        }
        if self.transport == Transport::Poll && self.keep_alive && self.is_http10 {
            headers.push_str("Connection: keep-alive\r\n");
        }
        headers
    }
}

/// Percent-encodes all bytes but letters and digits.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
