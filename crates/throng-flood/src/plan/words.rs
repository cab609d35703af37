//! Choices that are written as words, in any case: the same in a flag and in a plan's file.

use std::str::FromStr;

use super::draft::ServerProcess;
use super::{Network, Pattern, Ping, Streams, Subscribed, Transport};
use crate::profile;
use throng_units::{Count, Invalid, decimal, range};

/// `one`, a number, `own` or `friends:EDGES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed(pub Streams);

impl FromStr for Followed {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Followed, Invalid> {
        let expected = "what clients follow: one, own, a number of streams, or friends:EDGES";
        let number =
            |text: &str| text.parse::<Count>().ok().and_then(|count| u32::try_from(count.0).ok());
        let word = text.to_ascii_lowercase();
        let streams = match word.as_str() {
            "one" => Some(Streams::One),
            "own" => Some(Streams::Own),
            _ => match word.strip_prefix("friends:") {
                Some(edges) => number(edges).map(|edges| Streams::Friends { edges }),
                None => number(text).map(Streams::Spread),
            },
        };
        streams.map(Followed).ok_or_else(|| Invalid::new(text, expected))
    }
}

/// `one`, `in-turn` or `random`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct To(pub Pattern);

impl FromStr for To {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<To, Invalid> {
        match text.to_ascii_lowercase().as_str() {
            "one" => Ok(To(Pattern::One)),
            "in-turn" => Ok(To(Pattern::InTurn)),
            "random" => Ok(To(Pattern::Random)),
            _ => Err(Invalid::new(text, "where messages go: one, in-turn or random")),
        }
    }
}

/// `sockets` or `tunnel`.
impl FromStr for Network {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Network, Invalid> {
        let all = [Network::Sockets, Network::Tunnel];
        let found = all.into_iter().find(|network| network.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            Invalid::new(text, "what carries the clients' connections: sockets or tunnel")
        })
    }
}

/// `websocket`, `sse`, `stream` or `long-poll`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct By(pub Transport);

impl FromStr for By {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<By, Invalid> {
        profile::transport_named(text).map(By)
    }
}

/// `handshake`, or a text that the first message contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When(pub Subscribed);

impl FromStr for When {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<When, Invalid> {
        Ok(When(match text {
            "handshake" => Subscribed::Handshake,
            _ => Subscribed::Message(text.to_owned()),
        }))
    }
}

/// `websocket` or `http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IsWebSocket(pub bool);

impl FromStr for IsWebSocket {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<IsWebSocket, Invalid> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Ok(IsWebSocket(false)),
            "websocket" => Ok(IsWebSocket(true)),
            _ => Err(Invalid::new(text, "a way to publish: http or websocket")),
        }
    }
}

impl FromStr for ServerProcess {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<ServerProcess, Invalid> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(ServerProcess::Auto);
        }
        let read = |pid: &str| pid.trim().parse().ok().filter(|&pid| pid > 0);
        let pids: Option<Vec<u32>> = text.split(',').map(read).collect();
        pids.map(ServerProcess::Ids)
            .ok_or_else(|| Invalid::new(text, "a process id, several like 123,456, or \"auto\""))
    }
}

/// `NAME: VALUE`.
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

/// `ASK=ANSWER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingPair(pub Ping);

impl FromStr for PingPair {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<PingPair, Invalid> {
        let (ask, answer) =
            text.split_once('=').filter(|(ask, _)| !ask.is_empty()).ok_or_else(|| {
                Invalid::new(text, "a ping and its answer, like 'ping=pong' or '{}={}'")
            })?;
        Ok(PingPair(Ping { ask: ask.to_owned(), answer: answer.to_owned() }))
    }
}

/// `FROM-TO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange(pub (u16, u16));

impl FromStr for PortRange {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<PortRange, Invalid> {
        let expected = "a range of ports, like 10000-60000";
        range(text).map(PortRange).ok_or_else(|| Invalid::new(text, expected))
    }
}

/// A part of the clients: `0.1` or `10%`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_clients_follow() {
        for (text, streams) in [
            ("one", Streams::One),
            ("own", Streams::Own),
            ("10k", Streams::Spread(10_000)),
            ("friends:12", Streams::Friends { edges: 12 }),
        ] {
            assert_eq!(text.parse(), Ok(Followed(streams)), "{text}");
        }
        for text in ["", "friends", "friends:", "friends:-1", "many", "99999999999"] {
            assert!(text.parse::<Followed>().is_err(), "{text}");
        }
    }

    #[test]
    fn reads_the_other_words() {
        assert_eq!("in-turn".parse(), Ok(To(Pattern::InTurn)));
        assert!("all".parse::<To>().is_err());
        assert_eq!("long-poll".parse(), Ok(By(Transport::LongPoll)));
        assert!("poll".parse::<By>().is_err());
        assert_eq!("tunnel".parse(), Ok(Network::Tunnel));
        assert!("tun".parse::<Network>().is_err());
        assert_eq!("http".parse(), Ok(IsWebSocket(false)));
        assert_eq!("Auto".parse(), Ok(ServerProcess::Auto));
        assert_eq!("WebSocket".parse(), Ok(By(Transport::WebSocket)));
        assert_eq!("Own".parse(), Ok(Followed(Streams::Own)));
        assert_eq!("7".parse(), Ok(ServerProcess::Ids(vec![7])));
        assert_eq!("7, 12".parse(), Ok(ServerProcess::Ids(vec![7, 12])));
        for text in ["0", "7,", "7,x", ""] {
            assert!(text.parse::<ServerProcess>().is_err(), "{text}");
        }
        assert_eq!("A:b: c ".parse(), Ok(Header("A".into(), "b: c".into())));
        assert!("A b".parse::<Header>().is_err());
        let ping = Ping { ask: "{}".into(), answer: "{}".into() };
        assert_eq!("{}={}".parse(), Ok(PingPair(ping)));
        assert!("=a".parse::<PingPair>().is_err());
        assert_eq!("10%".parse(), Ok(Share(0.1)));
        assert!("1/2".parse::<Share>().is_err());
    }
}
