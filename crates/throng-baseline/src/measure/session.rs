//! One run: a fresh server, Throng or raw, with connected clients.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::client::target::{Path, Target};
use crate::client::{Client, Deliveries};
use crate::http::{self, Http};
use crate::ledger::Side;
use crate::raw_process::RawProcess;
use crate::server_process::{ServerProcess, Setup};
use crate::settings::Settings;
use crate::{frame, machine};

/// The channel that all subscribers follow.
const CHANNEL_PATH: &str = "/channels/bench";

/// A message must have reached every subscriber within this.
const ROUND_DEADLINE: Duration = Duration::from_secs(30);

/// Messages in a burst.
pub const BURST_MESSAGES: usize = 10;

/// What is published in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Publish {
    /// One message in one request.
    Single,
    /// [`BURST_MESSAGES`] in one `POST /publish`.
    Batch,
    /// [`BURST_MESSAGES`] POSTs on one connection, none waiting for the answer to another.
    Pipelined,
}

/// A server with its clients. The clients are closed before the server is stopped.
pub struct Session {
    /// The client with all subscribers.
    pub client: Client,
    /// The server that sends to them.
    pub server: Server,
}

/// The server of a session.
pub enum Server {
    /// The raw loop.
    Raw(RawProcess),
    /// The Throng server.
    Throng(ServerProcess),
}

impl Server {
    /// CPU time so far: of the raw loop's sending, of everything that Throng does.
    pub fn cpu_ns(&self) -> Result<u64> {
        match self {
            Self::Raw(raw) => Ok(raw.cpu_ns),
            Self::Throng(process) => machine::cpu_ns(process.id()),
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        match self {
            Self::Raw(raw) => raw.id(),
            Self::Throng(process) => process.id(),
        }
    }

    /// Where `GET /health` is answered.
    pub fn health_port(&self) -> u16 {
        match self {
            Self::Raw(raw) => raw.health_port,
            Self::Throng(process) => process.port,
        }
    }
}

impl Session {
    /// Starts a server for all connections, and no connection yet.
    pub fn start(settings: &Settings, side: Side, heartbeat: &str) -> Result<Self> {
        let connections = settings.connections;
        let server = match side {
            Side::Raw => Server::Raw(RawProcess::start(settings.senders, connections)?),
            Side::Throng => Server::Throng(ServerProcess::start(&Setup {
                program: &settings.server,
                connections,
                workers: settings.senders,
                heartbeat,
            })?),
        };
        Ok(Self { client: Client::start(settings.client_threads)?, server })
    }

    /// Adds subscribers of `target` (the raw loop knows only connections), and says how long that
    /// took until the last was subscribed. On a raw server all are to be added at once.
    pub fn connect(&mut self, target: &Target, count: usize) -> Result<Duration> {
        let started = Instant::now();
        match &mut self.server {
            Server::Raw(raw) => {
                self.client.connect(&Target::Raw, &raw.ports, count)?;
                // Connected only means queued: the raw server, too, has to have them.
                raw.await_accepted()?;
            }
            Server::Throng(process) => {
                self.client.connect(target, &[process.port], count)?;
            }
        }
        Ok(started.elapsed())
    }

    /// Sends to all subscribers and waits for the last delivery.
    pub fn round(&mut self, publish: Publish, payload_bytes: usize) -> Result<Deliveries> {
        let payload = frame::payload(payload_bytes);
        let message_bytes = frame::text(&payload).len();
        let Self { client, server } = self;
        match server {
            Server::Raw(raw) => {
                let deliveries = client
                    .round(message_bytes, ROUND_DEADLINE, || raw.start_send(payload_bytes))?;
                raw.finish_send()?;
                Ok(deliveries)
            }
            Server::Throng(process) => {
                // A connection that waited since the session's start might be closed as idle.
                let mut publisher = Http::connect(process.port)?;
                publisher.send(&http::get("/health"))?;
                publisher.expect_success()?;
                let (requests, answers) = requests(publish, &payload);
                let messages = if publish == Publish::Single { 1 } else { BURST_MESSAGES };
                client.round(message_bytes * messages, ROUND_DEADLINE, || {
                    publisher.send(&requests)?;
                    (0..answers).try_for_each(|_| publisher.expect_success())
                })
            }
        }
    }
}

/// A WebSocket subscriber of the common channel.
pub fn websocket() -> Target {
    Target::WebSocket(Path::Shared(CHANNEL_PATH.to_owned()))
}

/// An event stream of the common channel.
pub fn event_stream() -> Target {
    Target::EventStream(Path::Shared(CHANNEL_PATH.to_owned()))
}

/// A WebSocket that follows a user's inbox of its own.
pub fn own_user() -> Target {
    Target::WebSocket(Path::Own("/users/u".to_owned()))
}

/// The bytes of the requests, and how many answers they have.
fn requests(publish: Publish, payload: &[u8]) -> (Vec<u8>, usize) {
    let single = || http::post(CHANNEL_PATH, "text/plain", payload);
    match publish {
        Publish::Single => (single(), 1),
        Publish::Pipelined => (single().repeat(BURST_MESSAGES), BURST_MESSAGES),
        Publish::Batch => {
            // The payload is plain letters, so it needs no escaping.
            let data = String::from_utf8_lossy(payload);
            let line = format!("{{\"channel\":\"bench\",\"data\":\"{data}\"}}\n");
            let body = line.repeat(BURST_MESSAGES);
            (http::post("/publish", "application/x-ndjson", body.as_bytes()), 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_holds_ten_messages_either_way() {
        let count = |bytes: &[u8], part: &str| String::from_utf8_lossy(bytes).matches(part).count();
        let payload = frame::payload(64);
        let (pipelined, answers) = requests(Publish::Pipelined, &payload);
        assert_eq!((count(&pipelined, "POST "), answers), (10, 10));
        let (batch, answers) = requests(Publish::Batch, &payload);
        assert_eq!((count(&batch, "POST "), count(&batch, "\n{\""), answers), (1, 10, 1));
    }
}
