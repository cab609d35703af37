//! How the values of options are parsed and printed: the same text in a flag and in a plan file.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use throng_units::suggest::nearest;
use throng_units::{Count, Invalid, decimal, range, url};

/// Defines an enum with one word for each variant, in any case. `$invalid` makes the error for
/// another word.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $type:ident, $invalid:expr;
        $( $(#[$value_doc:meta])* $word:literal => $value:ident, )+
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $( $(#[$value_doc])* $value, )+ }

        impl $type {
            const WORDS: &'static [(&'static str, $type)] = &[$(($word, $type::$value)),+];

            /// The word for it.
            pub fn name(self) -> &'static str {
                Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
            }
        }

        impl FromStr for $type {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$type, Invalid> {
                let found = Self::WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
                found.map(|(_, value)| *value).ok_or_else(|| $invalid(text))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }
    };
}

words! {
    /// The kind of server.
    Profile, unknown_profile;
    /// Throng, on any of its transports.
    "throng" => Throng,
    /// Nchan's locations, on any of its transports.
    "nchan" => Nchan,
    /// Centrifugo's JSON protocol over WebSocket.
    "centrifugo" => Centrifugo,
    /// Centrifugo's one-way SSE.
    "centrifugo-sse" => CentrifugoSse,
    /// A Mercure hub of version 1.
    "mercure" => Mercure,
    /// A Mercure hub before version 1.
    "mercure-0" => Mercure0,
    /// The Pusher protocol, version 7: Soketi, Reverb, Sockudo and others.
    "pusher" => Pusher,
    /// A plain WebSocket server that sends one client's message to all.
    "websocket" => WebSocket,
    /// Any server: the options alone say how to speak to it.
    "custom" => Custom,
}

words! {
    /// How a client receives messages.
    Transport, not("a transport: websocket, sse, stream or long-poll");
    /// One message per WebSocket frame.
    "websocket" => WebSocket,
    /// Server-sent events, a response of type `text/event-stream`.
    "sse" => Sse,
    /// One message per line of an endless response.
    "stream" => Stream,
    /// One response per request.
    "long-poll" => LongPoll,
}

words! {
    /// How the clients' connections are carried.
    Network, not("what carries the clients' connections: sockets or tunnel");
    /// Sockets of the kernel.
    "sockets" => Sockets,
    /// User-space TCP over a network device of this machine: a connection to a server on this
    /// machine costs the kernel the server's half only.
    "tunnel" => Tunnel,
}

words! {
    /// Which streams get messages.
    Pattern, not("where messages go: one, in-turn or random");
    /// Only stream 0.
    "one" => One,
    /// All streams, in turn.
    "in-turn" => InTurn,
    /// Uniformly random streams.
    "random" => Random,
}

words! {
    /// How messages are published.
    PublishTransport, not("a way to publish: http or websocket");
    /// By HTTP requests.
    "http" => Http,
    /// By frames on a connection like a subscriber's.
    "websocket" => WebSocket,
}

words! {
    /// Where a client shows its token.
    TokenPlace, not("where tokens are shown: header, query or subprotocol");
    /// In the header `Authorization`.
    "header" => Header,
    /// In the query of the URL, as the `EventSource` of a browser must.
    "query" => Query,
    /// In a sub-protocol, as the `WebSocket` of a browser must.
    "subprotocol" => Subprotocol,
}

impl Transport {
    /// The response status that confirms a subscription.
    pub(crate) fn status(self) -> u16 {
        if self == Transport::WebSocket { 101 } else { 200 }
    }
}

impl Pattern {
    /// The pattern of a plan that names none.
    pub(super) fn default_for(streams: Streams) -> Pattern {
        if streams == Streams::One { Pattern::One } else { Pattern::InTurn }
    }
}

/// The error for a word that is not `expected`.
fn not(expected: &'static str) -> impl Fn(&str) -> Invalid {
    move |text| Invalid::new(text, expected)
}

fn unknown_profile(text: &str) -> Invalid {
    let hint = hint(text, Profile::WORDS.iter().map(|(word, _)| *word));
    Invalid(format!("there is no profile {text:?}; {hint}"))
}

/// Which of the names is meant, or all names.
pub(super) fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(written, names.clone()) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("known are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// Elements as one text, with commas between them.
pub(super) fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Says how types are read from a text, with the error for any other, and written as one.
macro_rules! texts {
    (
        $( $type:ident, $expected:expr; $text:ident => $read:expr; $value:ident => $write:expr; )+
    ) => { $(
        impl FromStr for $type {
            type Err = Invalid;

            fn from_str($text: &str) -> Result<$type, Invalid> {
                let read: Option<$type> = $read;
                read.ok_or_else(|| Invalid::new($text, $expected))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $value = self;
                f.write_str(&$write)
            }
        }
    )+ };
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

/// When a client counts as subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Subscribed {
    /// With the response head, `101` or `200`.
    Handshake,
    /// With the first message, event or line that contains this text.
    Message(String),
}

/// The word for [`Subscribed::Handshake`]; any other text is [`Subscribed::Message`].
const HANDSHAKE: &str = "handshake";

/// An application-level ping: a message, or a line of one, that is exactly `ask` is answered with
/// `answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ping {
    /// The server's message.
    pub ask: String,
    /// The client's answer.
    pub answer: String,
}

/// A header, `NAME: VALUE` in a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header(pub String, pub String);

/// A range of ports, `FROM-TO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PortRange(pub (u16, u16));

/// A further node of the service: a host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port of the service.
    pub port: u16,
}

/// A share of the clients, from 0 to 1: `0.1` or `10%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

texts! {
    Streams, "what clients follow: one, own, a number of streams, or friends:EDGES";
    text => {
        let word = text.to_ascii_lowercase();
        let number = |text: &str| u32::try_from(text.parse::<Count>().ok()?.0).ok();
        match (word.as_str(), word.strip_prefix("friends:")) {
            ("one", _) => Some(Streams::One),
            ("own", _) => Some(Streams::Own),
            (_, Some(edges)) => number(edges).map(|edges| Streams::Friends { edges }),
            (_, None) => number(text).map(Streams::Spread),
        }
    };
    streams => match streams {
        Streams::One => "one".to_owned(),
        Streams::Spread(number) => number.to_string(),
        Streams::Own => "own".to_owned(),
        Streams::Friends { edges } => format!("friends:{edges}"),
    };

    Subscribed, "";
    text => Some(match text {
        HANDSHAKE => Subscribed::Handshake,
        _ => Subscribed::Message(text.to_owned()),
    });
    subscribed => match subscribed {
        Subscribed::Handshake => HANDSHAKE,
        Subscribed::Message(text) => text,
    };

    Ping, "a ping and its answer, like 'ping=pong' or '{}={}'";
    text => text.split_once('=').filter(|(ask, _)| !ask.is_empty()).map(|(ask, answer)| Ping {
        ask: ask.to_owned(),
        answer: answer.to_owned(),
    });
    ping => format!("{}={}", ping.ask, ping.answer);

    Header, "a header, like 'Authorization: Bearer abc'";
    text => text.split_once(':').map(|(name, value)| {
        Header(name.trim().to_owned(), value.trim().to_owned())
    });
    header => format!("{}: {}", header.0, header.1);

    PortRange, "a range of ports, like 10000-60000";
    text => range(text).map(PortRange);
    range => format!("{}-{}", range.0.0, range.0.1);

    Node, "a host and a port, like 10.0.0.2:8080";
    text => text.rsplit_once(':').and_then(|(host, port)| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = inner.or((!host.contains([':', '/', '[', ' '])).then_some(host))?;
        let port = port.parse().ok().filter(|&port| port > 0)?;
        (!host.is_empty()).then(|| Node { host: host.to_owned(), port })
    });
    node => match &node.host {
        host if host.contains(':') => format!("[{host}]:{}", node.port),
        host => format!("{host}:{}", node.port),
    };

    Share, "a share, like 0.1 or \"10%\"";
    text => match text.strip_suffix('%') {
        Some(percent) => decimal(percent.trim_end()).map(|percent| Share(percent / 100.0)),
        None => decimal(text).map(Share),
    };
    share => share.0.to_string();
}

/// The URL of an address such as `:8080`. Any other text, which may be a template, stays as it is.
pub(super) fn with_scheme(text: &str) -> String {
    url(text).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_and_shown() {
        for (text, streams) in [
            ("one", Streams::One),
            ("own", Streams::Own),
            ("10000", Streams::Spread(10_000)),
            ("friends:12", Streams::Friends { edges: 12 }),
        ] {
            assert_eq!(text.parse(), Ok(streams), "{text}");
            assert_eq!(streams.to_string(), text);
        }
        assert_eq!("10k".parse(), Ok(Streams::Spread(10_000)));
        for text in ["", "friends", "friends:", "friends:-1", "many", "99999999999"] {
            assert!(text.parse::<Streams>().is_err(), "{text}");
        }
    }

    #[test]
    fn words_are_read_in_any_case() {
        assert_eq!("in-turn".parse(), Ok(Pattern::InTurn));
        assert!("all".parse::<Pattern>().is_err());
        assert_eq!("long-poll".parse(), Ok(Transport::LongPoll));
        assert_eq!("WebSocket".parse(), Ok(Transport::WebSocket));
        assert!("poll".parse::<Transport>().is_err());
        assert_eq!("tunnel".parse(), Ok(Network::Tunnel));
        assert!("tun".parse::<Network>().is_err());
        assert_eq!("http".parse(), Ok(PublishTransport::Http));
        assert_eq!("Own".parse(), Ok(Streams::Own));
    }

    #[test]
    fn other_values_are_read() {
        assert_eq!("A:b: c ".parse(), Ok(Header("A".into(), "b: c".into())));
        assert!("A b".parse::<Header>().is_err());
        assert_eq!("{}={}".parse(), Ok(Ping { ask: "{}".into(), answer: "{}".into() }));
        assert!("=a".parse::<Ping>().is_err());
        assert_eq!("10%".parse(), Ok(Share(0.1)));
        assert!("1/2".parse::<Share>().is_err());
    }
}
