//! How the values of options are parsed and printed: the same text in a flag and in a plan file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use throng_units::suggest::nearest;
use throng_units::{Count, Invalid, decimal, range};

use super::model::{Network, Pattern, Ping, Profile, Streams, Subscribed, Transport};
use crate::template::{ColumnTable, TableError};

/// Gives an enum one word per variant, in any case. `$invalid` makes the error for another word.
macro_rules! words {
    ($type:ident, $invalid:expr, $($word:literal => $value:ident),+ $(,)?) => {
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
                f.write_str(self.name())
            }
        }
    };
}

words!(Transport, not("a transport: websocket, sse, stream or long-poll"),
    "websocket" => WebSocket, "sse" => Sse, "stream" => Stream, "long-poll" => LongPoll);
words!(Network, not("what carries the clients' connections: sockets or tunnel"),
    "sockets" => Sockets, "tunnel" => Tunnel);
words!(Pattern, not("where messages go: one, in-turn or random"),
    "one" => One, "in-turn" => InTurn, "random" => Random);
words!(PublishTransport, not("a way to publish: http or websocket"),
    "http" => Http, "websocket" => WebSocket);
words!(Profile, unknown_profile,
    "throng" => Throng, "nchan" => Nchan, "centrifugo" => Centrifugo,
    "centrifugo-sse" => CentrifugoSse, "mercure" => Mercure, "mercure-0" => Mercure0,
    "pusher" => Pusher, "websocket" => WebSocket, "custom" => Custom);

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

/// How messages are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishTransport {
    /// By HTTP requests.
    Http,
    /// By frames on a connection like a subscriber's.
    WebSocket,
}

impl FromStr for Streams {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Streams, Invalid> {
        let expected = "what clients follow: one, own, a number of streams, or friends:EDGES";
        let number =
            |text: &str| text.parse::<Count>().ok().and_then(|count| u32::try_from(count.0).ok());
        let word = text.to_ascii_lowercase();
        let streams = match (word.as_str(), word.strip_prefix("friends:")) {
            ("one", _) => Some(Streams::One),
            ("own", _) => Some(Streams::Own),
            (_, Some(edges)) => number(edges).map(|edges| Streams::Friends { edges }),
            (_, None) => number(text).map(Streams::Spread),
        };
        streams.ok_or_else(|| Invalid::new(text, expected))
    }
}

impl fmt::Display for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Streams::One => f.write_str("one"),
            Streams::Spread(number) => number.fmt(f),
            Streams::Own => f.write_str("own"),
            Streams::Friends { edges } => write!(f, "friends:{edges}"),
        }
    }
}

/// The word for [`Subscribed::Handshake`]; any other text is [`Subscribed::Message`].
const HANDSHAKE: &str = "handshake";

impl FromStr for Subscribed {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Subscribed, Invalid> {
        Ok(match text {
            HANDSHAKE => Subscribed::Handshake,
            _ => Subscribed::Message(text.to_owned()),
        })
    }
}

impl fmt::Display for Subscribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subscribed::Handshake => f.write_str(HANDSHAKE),
            Subscribed::Message(text) => f.write_str(text),
        }
    }
}

/// In a flag, a ping is `ASK=ANSWER`.
impl FromStr for Ping {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Ping, Invalid> {
        match text.split_once('=') {
            Some((ask, answer)) if !ask.is_empty() => {
                Ok(Ping { ask: ask.to_owned(), answer: answer.to_owned() })
            }
            _ => Err(Invalid::new(text, "a ping and its answer, like 'ping=pong' or '{}={}'")),
        }
    }
}

/// A header, `NAME: VALUE` in a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header(pub String, pub String);

impl FromStr for Header {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Header, Invalid> {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| Invalid::new(text, "a header, like 'Authorization: Bearer abc'"))?;
        Ok(Header(name.trim().to_owned(), value.trim().to_owned()))
    }
}

/// A range of ports, `FROM-TO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange(pub (u16, u16));

impl FromStr for PortRange {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<PortRange, Invalid> {
        let expected = "a range of ports, like 10000-60000";
        range(text).map(PortRange).ok_or_else(|| Invalid::new(text, expected))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.0, self.0.1)
    }
}

/// A share of the clients, from 0 to 1: `0.1` or `10%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Share, Invalid> {
        let share = match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end()).map(|percent| percent / 100.0),
            None => decimal(text),
        };
        share.map(Share).ok_or_else(|| Invalid::new(text, "a share, like 0.1 or \"10%\""))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A CSV file whose first line names its columns, loaded.
#[derive(Debug, Clone)]
pub struct ValueTable(pub Arc<ColumnTable>);

impl FromStr for ValueTable {
    type Err = TableError;

    fn from_str(path: &str) -> Result<ValueTable, TableError> {
        ColumnTable::read_csv(Path::new(path)).map(|table| ValueTable(Arc::new(table)))
    }
}

/// A file with one URL per line, loaded.
#[derive(Debug, Clone)]
pub struct UrlTable(pub Arc<ColumnTable>);

impl FromStr for UrlTable {
    type Err = TableError;

    fn from_str(path: &str) -> Result<UrlTable, TableError> {
        ColumnTable::read_urls(Path::new(path)).map(|table| UrlTable(Arc::new(table)))
    }
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
