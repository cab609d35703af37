//! A client of JetStream without a library and without a node: the most that a nats-server does for
//! one connection, beside which nodes are measured.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long the server may take to say anything.
const TIMEOUT: Duration = Duration::from_secs(10);

const READ_BYTES: usize = 64 << 10;

/// The start of the subjects that acknowledgements come to.
const INBOX: &str = "_INBOX.bench";

/// A client that is connected.
pub(super) struct JetStreamClient {
    stream: TcpStream,
    /// Bytes that were not taken yet.
    received: Vec<u8>,
    /// Bytes to be sent with the next ones.
    unsent: Vec<u8>,
}

/// What the server has said.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Ping,
    /// A publication is stored.
    Stored,
    Other,
}

impl JetStreamClient {
    /// Connects to a server by its URL.
    pub(super) fn connect(url: &str) -> Result<JetStreamClient, String> {
        let address = url.trim_start_matches("nats://");
        let connect = || {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let options = r#"{"verbose":false,"headers":true,"no_responders":true}"#;
            let start = format!("CONNECT {options}\r\nSUB {INBOX}.* 1\r\n");
            stream.write_all(start.as_bytes())?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: io::Error| format!("{url}: {error}"))?;
        Ok(JetStreamClient { stream, received: Vec::new(), unsent: Vec::new() })
    }

    /// Publishes for `time`, as long as fewer than `in_flight` publications are not acknowledged.
    /// Returns how many a second were stored.
    pub(super) fn publish(
        &mut self,
        subject: &str,
        body: &[u8],
        in_flight: usize,
        time: Duration,
    ) -> Result<f64, String> {
        let (begun, mut sent, mut stored) = (Instant::now(), 0, 0);
        while begun.elapsed() < time || stored < sent {
            while sent < stored + in_flight && begun.elapsed() < time {
                sent += 1;
                let head = format!("PUB {subject} {INBOX}.{sent} {}\r\n", body.len());
                self.unsent.extend_from_slice(head.as_bytes());
                self.unsent.extend_from_slice(body);
                self.unsent.extend_from_slice(b"\r\n");
            }
            stored += self.exchange()?;
        }
        Ok(stored as f64 / begun.elapsed().as_secs_f64())
    }

    /// Sends what waits, and takes what has come. Returns how many publications were stored.
    fn exchange(&mut self) -> Result<usize, String> {
        let sent = self.stream.write_all(&self.unsent);
        sent.map_err(|error| format!("nats-server takes nothing more: {error}"))?;
        self.unsent.clear();
        let mut part = [0; READ_BYTES];
        match self.stream.read(&mut part) {
            Ok(0) => return Err("nats-server closed the connection".to_owned()),
            Ok(bytes) => self.received.extend_from_slice(&part[..bytes]),
            Err(error) => return Err(format!("nats-server says nothing: {error}")),
        }
        let (mut taken, mut stored) = (0, 0);
        while let Some((said, bytes)) = parse(&self.received[taken..])? {
            taken += bytes;
            match said {
                Said::Ping => self.unsent.extend_from_slice(b"PONG\r\n"),
                Said::Stored => stored += 1,
                Said::Other => {}
            }
        }
        self.received.drain(..taken);
        Ok(stored)
    }
}

/// The next thing that the server has said, and its length; `None` if it is incomplete.
fn parse(received: &[u8]) -> Result<Option<(Said, usize)>, String> {
    let Some(end) = received.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8_lossy(&received[..end]);
    let after = end + 2;
    if line.starts_with("-ERR") {
        return Err(format!("nats-server says {line}"));
    }
    if !line.starts_with("MSG ") && !line.starts_with("HMSG ") {
        let said = if line == "PING" { Said::Ping } else { Said::Other };
        return Ok(Some((said, after)));
    }
    let length: usize = line.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(payload) = received.get(after..after + length) else { return Ok(None) };
    if received.len() < after + length + 2 {
        return Ok(None);
    }
    if !payload.starts_with(b"{\"stream\":") {
        let said = String::from_utf8_lossy(payload);
        return Err(format!("a publication is not stored: {said}"));
    }
    Ok(Some((Said::Stored, after + length + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_counted_when_they_are_whole() {
        let text = b"MSG _INBOX.bench.1 1 26\r\n{\"stream\":\"a\",\"seq\":12345}\r\nPING\r\n";
        for end in 0..text.len() - 6 {
            assert_eq!(parse(&text[..end]), Ok(None), "{end}");
        }
        assert_eq!(parse(text), Ok(Some((Said::Stored, text.len() - 6))));
        assert_eq!(parse(b"PING\r\n"), Ok(Some((Said::Ping, 6))));
        assert_eq!(parse(b"INFO {}\r\n"), Ok(Some((Said::Other, 9))));
    }

    #[test]
    fn a_refusal_is_an_error() {
        for text in ["-ERR 'no'\r\n", "HMSG _INBOX.bench.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
