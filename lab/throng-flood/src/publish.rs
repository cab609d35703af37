//! Publishes in an open loop. Each message has a scheduled time before the first one is sent, and
//! carries it in its mark. A server that is slow to respond makes messages late, and pays for it:
//! latencies count from the scheduled time.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`schedule`] | when each message is sent, and to which stream |
//! | [`request`] | the bytes that publish a message |
//! | `thread`, `connection` | publishing threads and their connections |
//! | `protocol` | HTTP or WebSocket, behind one interface |
//! | `output` | bytes on their way to a socket |
//! | `response`, `websocket` | responses to publishers; publishing by frames |
//! | [`counts`] | what publishers count |
//! | `pace` | a precise timer |
//!
//! # Invariants
//!
//! * The schedule does not depend on the server.
//! * The messages of a stream use one connection, in order.
//! * Each message that is due ends as published, or as a failure with its reason.

mod connection;
pub(crate) mod counts;
mod output;
mod pace;
mod protocol;
pub(crate) mod request;
mod response;
pub(crate) mod schedule;
mod thread;
mod websocket;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::clients::request::Requests;
use crate::plan::{Plan, PublishBy, Target, Transport};
use crate::protocol::url::HttpUrl;
use crate::streams::StreamCounters;
use crate::template::TemplateValues;
use crate::tls::{TlsError, TlsTarget};
use counts::PublishCounts;
use request::RequestBuilder;
use schedule::Schedule;
use thread::{PublisherCommand, PublisherShare, PublisherThread, SharedStatus};

/// Messages per second of one thread, with a margin: sharing two busy cores with its server, one
/// thread sent 16,000.
const RATE_PER_THREAD: f64 = 10_000.0;

const POLL_STEP: Duration = Duration::from_millis(2);

/// Why publishers cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The plan does not say how to publish.
    #[error("the plan does not say how to publish")]
    NoTarget,
    /// The URL cannot be parsed.
    #[error("{url:?} cannot be published to: it is not an address like http://127.0.0.1:8080")]
    Url {
        /// The URL, rendered for stream 0.
        url: String,
    },
    /// Name resolution failed.
    #[error("the host {host:?} to publish to has no address: {reason}")]
    Dns {
        /// The host of the URL.
        host: String,
        reason: String,
    },
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread cannot be started.
    #[error("a publishing thread cannot be started: {0}")]
    Thread(io::Error),
}

/// The settings of a run's publishers.
pub(crate) struct PublisherSettings<'a> {
    /// The server, and how to speak to it.
    pub target: &'a Target,
    /// The number of the run, for the marks.
    pub run: u32,
    /// The counters that tell clients what is published.
    pub counters: Arc<StreamCounters>,
    /// The most clients at any time.
    pub max_clients: usize,
    /// The highest rate of all phases.
    pub max_rate: f64,
}

/// All publishing threads. Dropping it ends them.
pub(crate) struct Publishers {
    threads: Vec<PublisherHandle>,
    /// How many commands were sent.
    commands: u64,
}

struct PublisherHandle {
    commands: Sender<PublisherCommand>,
    shared: Arc<SharedStatus>,
    handle: Option<JoinHandle<()>>,
}

impl Publishers {
    /// Starts the threads, if the plan publishes; nothing connects yet.
    pub(crate) fn of_plan(
        plan: &Plan,
        run: u32,
        counters: &Arc<StreamCounters>,
    ) -> Result<Option<Publishers>, PublishError> {
        let settings = |max_rate| PublisherSettings {
            target: &plan.target,
            run,
            counters: Arc::clone(counters),
            max_clients: plan.max_clients(),
            max_rate,
        };
        plan.max_rate().map(|max_rate| Publishers::start(&settings(max_rate))).transpose()
    }

    /// Starts the threads; nothing connects yet.
    pub(crate) fn start(settings: &PublisherSettings<'_>) -> Result<Publishers, PublishError> {
        let publish = settings.target.publish.as_ref().ok_or(PublishError::NoTarget)?;
        let builder = Arc::new(builder(settings)?);
        let connections = publish.connections.max(1);
        let threads_wanted = (settings.max_rate / RATE_PER_THREAD).ceil().max(1.0) as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads_wanted.min(cores).min(connections);
        let threads = (0..threads)
            .map(|thread| {
                let share = PublisherShare { thread, threads, connections };
                PublisherHandle::start(share, &builder, Arc::clone(&settings.counters))
            })
            .collect::<io::Result<Vec<PublisherHandle>>>()
            .map_err(PublishError::Thread)?;
        Ok(Publishers { threads, commands: 0 })
    }

    /// Opens the connections, and waits until all are ready or have failed, or for `timeout`.
    /// Later errors show up as failed messages.
    pub(crate) fn open(&mut self, timeout: Duration) {
        self.command(|| PublisherCommand::Open);
        let deadline = Instant::now() + timeout;
        while self.is_opening() && Instant::now() < deadline {
            std::thread::sleep(POLL_STEP);
        }
    }

    /// Starts to publish. The rest of an earlier schedule is dropped.
    pub(crate) fn begin(&mut self, schedule: Schedule, size: usize) {
        self.command(|| PublisherCommand::Begin(schedule, size));
    }

    /// Ends the schedule. Messages that are due are still sent.
    pub(crate) fn end(&mut self) {
        self.command(|| PublisherCommand::End);
    }

    /// Gives up all messages that are not published.
    pub(crate) fn abandon(&mut self) {
        self.command(|| PublisherCommand::Abandon);
    }

    /// Whether every message is sent and answered, or given up.
    pub(crate) fn is_idle(&self) -> bool {
        self.threads.iter().all(|thread| {
            let status = thread.shared.status();
            status.commands == self.commands && status.is_idle
        })
    }

    /// The counts since the last call.
    pub(crate) fn counts(&self) -> PublishCounts {
        let mut counts = PublishCounts::default();
        for thread in &self.threads {
            counts += &std::mem::take(&mut thread.shared.status().counts);
        }
        counts
    }

    fn is_opening(&self) -> bool {
        self.threads.iter().any(|thread| {
            let status = thread.shared.status();
            status.commands < self.commands || status.opening > 0
        })
    }

    fn command(&mut self, command: impl Fn() -> PublisherCommand) {
        self.commands += 1;
        for thread in &self.threads {
            thread.send(command());
        }
    }
}

/// The last sequence of each stream, for the audit.
pub(crate) fn sent(counters: &StreamCounters) -> Arc<[u64]> {
    (0..counters.streams()).map(|stream| u64::from(counters.last_published(stream))).collect()
}

impl Drop for Publishers {
    fn drop(&mut self) {
        self.command(|| PublisherCommand::Stop);
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // A thread that panicked has closed its connections.
            let _ = handle.join();
        }
    }
}

impl PublisherHandle {
    fn start(
        share: PublisherShare,
        builder: &Arc<RequestBuilder>,
        counters: Arc<StreamCounters>,
    ) -> io::Result<PublisherHandle> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(SharedStatus::new(wake));
        let (commands, commanded) = channel();
        let publisher =
            PublisherThread::new(share, builder, counters, Arc::clone(&shared), commanded)?;
        let name = format!("publisher-{}", share.thread);
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            // Only `epoll_wait` itself can fail. The runner then sees a publisher that does not
            // execute commands, and gives it up at the end of the phase.
            let _ = publisher.run();
        })?;
        Ok(PublisherHandle { commands, shared, handle: Some(handle) })
    }

    fn send(&self, command: PublisherCommand) {
        // Both fail only after the thread has ended.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
}

fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, PublishError> {
    let dns = |reason: String| PublishError::Dns { host: host.to_owned(), reason };
    let addresses = (host, port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| dns(error.to_string()))?.collect();
    if addresses.is_empty() {
        return Err(dns("the name has none".to_owned()));
    }
    Ok(addresses)
}

fn builder(settings: &PublisherSettings<'_>) -> Result<RequestBuilder, PublishError> {
    let target = settings.target;
    let publish = target.publish.as_ref().ok_or(PublishError::NoTarget)?;
    let values = TemplateValues {
        run: settings.run,
        client: settings.max_clients,
        ..TemplateValues::default()
    };
    let url = match &publish.by {
        PublishBy::Http { url, .. } => url.rendered(&values),
        PublishBy::WebSocket { .. } => target.url.rendered(&values),
    };
    let Some(place) = HttpUrl::parse(&url) else { return Err(PublishError::Url { url }) };
    let others = target.nodes.iter().map(|node| look_up(&node.host, node.port));
    let nodes = std::iter::once(look_up(place.host, place.port)).chain(others);
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let tls = TlsTarget::of(&url, &target.tls)?;
    Ok(RequestBuilder {
        tls,
        // Messages to publishers are dropped, compressed or not.
        requests: Requests::new(&Target {
            transport: Transport::WebSocket,
            deflate: false,
            ..target.clone()
        }),
        streams: target.streams,
        run: settings.run,
        nodes,
        pipeline: publish.pipeline,
        timeout: target.handshake_timeout,
        first_client: settings.max_clients,
        refused: publish.refused.clone(),
        by: publish.by.clone(),
    })
}
