//! One run: a new server, Throng or the raw loop, with its clients.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::client::target::{Path, Target};
use crate::client::{Client, Deliveries};
use crate::http::{self, Http};
use crate::raw_process::RawProcess;
use crate::results::Side;
use crate::server_process::{ServerProcess, Setup};
use crate::settings::Settings;
use crate::{frame, machine};

/// The channel that all subscribers follow.
const CHANNEL_PATH: &str = "/channels/bench";

/// The maximum time until all subscribers have a message.
const ROUND_DEADLINE: Duration = Duration::from_secs(30);

/// Messages in a burst.
pub(crate) const BURST_MESSAGES: usize = 10;

/// How the messages of a round are published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Publish {
    /// One message in one request.
    Single,
    /// [`BURST_MESSAGES`] in one `POST /publish`.
    Batch,
    /// [`BURST_MESSAGES`] POSTs on one connection, without waiting for responses in between.
    Pipelined,
}

/// A server with its clients. The clients are closed before the server is stopped.
pub(crate) struct Session {
    /// The client with all subscribers.
    pub(crate) client: Client,
    /// The server that sends to them.
    pub(crate) server: Server,
}

/// The server of a session.
pub(crate) enum Server {
    /// The raw loop.
    Raw(RawProcess),
    /// The Throng server.
    Throng(ServerProcess),
}

impl Server {
    /// CPU time so far: of the raw loop's sends, or of the whole Throng process.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        match self {
            Self::Raw(raw) => Ok(raw.cpu_ns),
            Self::Throng(process) => machine::cpu_ns(process.id()),
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Raw(raw) => raw.id(),
            Self::Throng(process) => process.id(),
        }
    }

    /// The port that answers `GET /health`.
    pub(crate) fn health_port(&self) -> u16 {
        match self {
            Self::Raw(raw) => raw.health_port,
            Self::Throng(process) => process.port,
        }
    }
}

impl Session {
    /// Starts a server, without connections.
    pub(crate) fn start(settings: &Settings, side: Side, heartbeat: &str) -> Result<Self> {
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

    /// Adds subscribers of `target`; for the raw loop, connections, and all at once. Returns the
    /// time until all are subscribed.
    pub(crate) fn connect(&mut self, target: &Target, count: usize) -> Result<Duration> {
        let started = Instant::now();
        match &mut self.server {
            Server::Raw(raw) => {
                self.client.connect(&Target::Raw, &raw.ports, count)?;
                // The kernel connects them before the raw loop accepts them.
                raw.await_accepted()?;
            }
            Server::Throng(process) => {
                self.client.connect(target, &[process.port], count)?;
            }
        }
        Ok(started.elapsed())
    }

    /// Sends a message or a burst to all subscribers, and waits for the last delivery.
    pub(crate) fn round(&mut self, publish: Publish, payload_bytes: usize) -> Result<Deliveries> {
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
                // A new connection: an older one may be closed as idle.
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
pub(crate) fn websocket() -> Target {
    Target::WebSocket(Path::Shared(CHANNEL_PATH.to_owned()))
}

/// Server-sent events of the common channel.
pub(crate) fn event_stream() -> Target {
    Target::EventStream(Path::Shared(CHANNEL_PATH.to_owned()))
}

/// A WebSocket that follows the inbox of another user each.
pub(crate) fn own_user() -> Target {
    Target::WebSocket(Path::Own("/users/u".to_owned()))
}

/// The bytes of the requests, and the number of responses.
fn requests(publish: Publish, payload: &[u8]) -> (Vec<u8>, usize) {
    let single = || http::post(CHANNEL_PATH, "text/plain", payload);
    match publish {
        Publish::Single => (single(), 1),
        Publish::Pipelined => (single().repeat(BURST_MESSAGES), BURST_MESSAGES),
        Publish::Batch => {
            // The payload has only letters, which need no escaping.
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
