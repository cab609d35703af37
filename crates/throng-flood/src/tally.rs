//! What a thread counts. Tallies of all threads are merged into one.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::refusal;

/// Why a client failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Nobody listens there.
    Refused,
    /// The connection was reset.
    Reset,
    /// No answer to the attempt to connect.
    ConnectTimeout,
    /// Connected, but no (whole) answer to the request.
    HandshakeTimeout,
    /// Another status than `101` or `200`.
    Status(u16),
    /// The answer is not what the protocol asks for.
    Handshake(&'static str),
    /// The server ended the connection before it was subscribed.
    ClosedInHandshake,
    /// The server ended a subscribed connection, with a WebSocket close code if it gave one.
    Closed(Option<u16>),
    /// What came breaks the protocol.
    Protocol(&'static str),
    /// No local port or address is left.
    NoPorts,
    /// No descriptor is left.
    NoDescriptors,
    /// Something else that the kernel said, by its number.
    Os(i32),
    /// Another status than `101` or `200`, and what the server says to it.
    Refusal(u16, String),
    /// A refusal in words of the server.
    Said(String),
    /// What an agent on another machine has counted, in words.
    Told(String),
    /// The agent whose client it was is gone.
    AgentLost,
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
            Failure::NoPorts => f.write_str("no local port is left"),
            Failure::NoDescriptors => f.write_str("no descriptor is left"),
            Failure::Told(words) => f.write_str(words),
            Failure::AgentLost => f.write_str("agent lost"),
            Failure::Os(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            Failure::Refusal(status, text) => write!(f, "status {status}: {text}"),
            Failure::Said(text) => write!(f, "the server says {text}"),
        }
    }
}

impl Failure {
    /// The line of a message that contains a text, if there is one.
    pub fn said(message: &[u8], text: &str) -> Option<Failure> {
        let at = memchr::memmem::find(message, text.as_bytes())?;
        let start = memchr::memrchr(b'\n', &message[..at]).map_or(0, |end| end + 1);
        let end = memchr::memchr(b'\n', &message[at..]).map_or(message.len(), |end| at + end);
        Some(Failure::Said(refusal::said(&message[start..end])))
    }

    /// The same without the server's words.
    pub fn without_words(&self) -> Failure {
        match self {
            Failure::Refusal(status, _) => Failure::Status(*status),
            Failure::Said(_) => Failure::Said("more".to_owned()),
            other => other.clone(),
        }
    }
}

/// A histogram of nanoseconds, two to three digits, that grows as it must.
pub type Nanoseconds = Histogram<u64>;

/// An empty histogram of nanoseconds.
pub fn nanoseconds() -> Nanoseconds {
    // One microsecond is below what a timestamp between two system calls can tell.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
}

/// What one thread has seen since the last time it was asked.
#[derive(Debug)]
pub struct Tally {
    /// Clients by state, now.
    pub states: States,
    /// Connects begun.
    pub attempts: u64,
    /// Clients that became subscribed.
    pub subscribed: u64,
    /// Clients that ended as asked.
    pub ended: u64,
    /// Failures by reason.
    pub failures: BTreeMap<Failure, u64>,
    /// Marked messages received.
    pub received: u64,
    /// Marked messages that were sent before the client was subscribed, not counted in `received`.
    pub early: u64,
    /// Marked messages of a stream that the client does not follow, not counted in `received`.
    pub stray: u64,
    /// Other messages received: welcomes, notices, protocol answers.
    pub unmarked: u64,
    /// Bytes read.
    pub received_bytes: u64,
    /// Pings answered, of either kind.
    pub pings: u64,
    /// Heartbeats that need no answer: pongs nobody asked for, comments of an event stream, empty
    /// lines of a stream.
    pub heartbeats: u64,
    /// From the start of the first connect to the last client subscribed.
    pub connecting: Span,
    /// From the first message to the last, of any kind.
    pub arriving: Span,
    /// From the start of a connect to subscribed.
    pub connect: Nanoseconds,
    /// From the intended time of a publish to each delivery.
    pub delivery: Nanoseconds,
    /// The longest time that a thread took from one look at its events to the next: what came
    /// meanwhile was stamped so much too late.
    pub lag_ns: u64,
    /// Packets of a tunnel that were lost, or sent again by either side.
    pub repeated: u64,
}

/// From the first time that something happened to the last, in nanoseconds of `CLOCK_MONOTONIC`;
/// of the clients of one machine, whose clock that is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span(Option<(u64, u64)>);

impl Span {
    /// It happened at this time.
    pub fn note(&mut self, at_ns: u64) {
        self.merge(Span(Some((at_ns, at_ns))));
    }

    /// The span over both.
    pub fn merge(&mut self, other: Span) {
        self.0 = match (self.0, other.0) {
            (Some((first, last)), Some((other_first, other_last))) => {
                Some((first.min(other_first), last.max(other_last)))
            }
            (one, other) => one.or(other),
        };
    }

    /// When it happened first, if ever.
    pub fn first_ns(self) -> Option<u64> {
        self.0.map(|(first, _)| first)
    }

    /// When it happened last, if ever.
    pub fn last_ns(self) -> Option<u64> {
        self.0.map(|(_, last)| last)
    }

    /// Its length in seconds; `None` if nothing happened.
    pub fn seconds(self) -> Option<f64> {
        self.0.map(|(first, last)| (last - first) as f64 / 1e9)
    }
}

/// Clients by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct States {
    /// Connecting, or waiting to be subscribed.
    pub connecting: u64,
    /// Subscribed.
    pub active: u64,
    /// Closed, by either side, and not coming back.
    pub closed: u64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            states: States::default(),
            attempts: 0,
            subscribed: 0,
            ended: 0,
            failures: BTreeMap::new(),
            received: 0,
            early: 0,
            stray: 0,
            unmarked: 0,
            received_bytes: 0,
            pings: 0,
            heartbeats: 0,
            connecting: Span::default(),
            arriving: Span::default(),
            connect: nanoseconds(),
            delivery: nanoseconds(),
            lag_ns: 0,
            repeated: 0,
        }
    }
}

impl Tally {
    /// Counts a failure.
    pub fn fail(&mut self, failure: Failure) {
        self.add_failures(failure, 1);
    }

    fn add_failures(&mut self, failure: Failure, count: u64) {
        refusal::count(&mut self.failures, failure, count);
    }

    /// Forgets everything, and keeps the memory for what comes.
    pub fn clear(&mut self) {
        self.states = States::default();
        let counts = [
            &mut self.attempts,
            &mut self.subscribed,
            &mut self.ended,
            &mut self.received,
            &mut self.early,
            &mut self.stray,
            &mut self.unmarked,
            &mut self.received_bytes,
            &mut self.pings,
            &mut self.heartbeats,
            &mut self.lag_ns,
            &mut self.repeated,
        ];
        counts.into_iter().for_each(|count| *count = 0);
        self.failures.clear();
        self.connecting = Span::default();
        self.arriving = Span::default();
        self.connect.reset();
        self.delivery.reset();
    }

    /// Adds what another thread, or the same one later, has seen. States are added too: merge the
    /// tallies of different threads of one moment, or keep the states of the later one.
    pub fn merge(&mut self, other: &Tally) {
        self.states.connecting += other.states.connecting;
        self.states.active += other.states.active;
        self.states.closed += other.states.closed;
        self.attempts += other.attempts;
        self.subscribed += other.subscribed;
        self.ended += other.ended;
        for (failure, count) in &other.failures {
            self.add_failures(failure.clone(), *count);
        }
        self.received += other.received;
        self.early += other.early;
        self.stray += other.stray;
        self.unmarked += other.unmarked;
        self.received_bytes += other.received_bytes;
        self.pings += other.pings;
        self.heartbeats += other.heartbeats;
        self.connecting.merge(other.connecting);
        self.arriving.merge(other.arriving);
        // Both grow as they must, so that adding cannot fail.
        let _ = self.connect.add(&other.connect);
        let _ = self.delivery.add(&other.delivery);
        self.lag_ns = self.lag_ns.max(other.lag_ns);
        self.repeated += other.repeated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_covers_all_that_was_noted() {
        let mut span = Span::default();
        assert_eq!((span.seconds(), span.last_ns()), (None, None));
        span.note(7_000_000_000);
        assert_eq!(span.seconds(), Some(0.0));
        let mut other = Span::default();
        other.note(5_000_000_000);
        other.merge(Span::default());
        span.merge(other);
        assert_eq!((span.first_ns(), span.last_ns()), (Some(5_000_000_000), Some(7_000_000_000)));
        assert_eq!(span.seconds(), Some(2.0));
    }
}
